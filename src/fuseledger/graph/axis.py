"""Axes and index maps: how an op's loops address a tensor."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Axis(Struct, frozen=True):
    """A loop index: a name, unique in its graph, and a size in elements."""

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"


class Index(Struct, frozen=True, dict=True):
    """One coordinate of a tensor as a function of loop indices.

    `coordinate = (Σ stride·axis + offset + value of read `lookup`) / divisor`

    A coordinate that is no integer or lies outside the tensor reads the access's `fill`.
    Convolution: `x·stride + r·dilation − padding`. Transposed convolution:
    `(x + padding − r·dilation) / stride`. Embedding: `lookup=0`.
    """

    terms: tuple[tuple[str, int], ...] = ()
    """(axis name, stride) pairs, no axis twice."""
    offset: int = 0
    divisor: int = 1
    lookup: int | None = None
    """Position, among the op's reads, of the tensor whose value is the coordinate."""

    @staticmethod
    def of(axis: str) -> Index:
        """The coordinate that is the axis itself."""
        return Index(((axis, 1),))

    @cached_property
    def axis(self) -> str | None:
        """The axis this coordinate equals, or None where it is anything else."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.is_affine and not self.offset:
            return self.terms[0][0]
        return None

    @property
    def is_affine(self) -> bool:
        """Whether neither a lookup nor a divisor is involved."""
        return self.lookup is None and self.divisor == 1

    def bounds(self, size_of: Callable[[str], int]) -> tuple[int, int]:
        """Least and greatest coordinate (before `divisor`), both inclusive."""
        low = high = self.offset
        for name, stride in self.terms:
            reach = stride * (size_of(name) - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def substitute(self, replacement: Mapping[str, Index]) -> Index:
        """This index with every axis named in `replacement` replaced by an affine index.

        A replacement by a lookup is possible only where this index is that axis alone.
        """
        if self.axis is not None and self.axis in replacement:
            return replacement[self.axis]
        strides: dict[str, int] = {}
        offset = self.offset
        for name, stride in self.terms:
            inner = replacement.get(name)
            if inner is None:
                strides[name] = strides.get(name, 0) + stride
                continue
            if not inner.is_affine:
                raise ValueError(f"axis {name} has no affine replacement")
            offset += stride * inner.offset
            for inner_name, inner_stride in inner.terms:
                strides[inner_name] = strides.get(inner_name, 0) + stride * inner_stride
        terms = tuple((name, stride) for name, stride in strides.items() if stride)
        return Index(terms, offset, self.divisor, self.lookup)

    def __str__(self) -> str:
        parts = [name if stride == 1 else f"{stride}·{name}" for name, stride in self.terms]
        if self.lookup is not None:
            parts.append(f"@{self.lookup}")
        if self.offset or not parts:
            parts.append(str(self.offset))
        text = "+".join(parts).replace("+-", "-")
        return text if self.divisor == 1 else f"({text})/{self.divisor}"


def mixed_radix(axes: Iterable[Axis]) -> Index:
    """The coordinate along a dimension that is the product of `axes`, outermost first."""
    terms: list[tuple[str, int]] = []
    stride = 1
    for axis in reversed(tuple(axes)):
        terms.append((axis.name, stride))
        stride *= axis.size
    return Index(tuple(reversed(terms)))


def common_refinement(factorings: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The coarsest factoring that splits each of `factorings` of one size, or None.

    Factorings are outermost first: (6,) and (2, 3) give (2, 3); (4, 6) and (6, 4) give None.
    """
    cuts = {1}
    totals: set[int] = set()
    for factors in factorings:
        inner = 1
        for factor in reversed(factors):
            inner *= factor
            cuts.add(inner)
        totals.add(inner)
    if len(totals) > 1:
        raise ValueError("factorings of different sizes")
    pieces: list[int] = []
    for low, high in pairwise(sorted(cuts)):
        if high % low:
            return None
        pieces.append(high // low)
    return tuple(reversed(pieces))
