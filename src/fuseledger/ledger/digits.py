"""A dimension taken apart into digits, where the maps that read it never carry between them.

A flat dimension that is walked as `192·c + 96·d + e`, e < 96 and d < 2, is read as if it had three
dimensions. What is read along each is then a question of one axis, as it is for any tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseledger.graph.axis import Index

Digit = tuple[int, tuple[Index, ...]]
"""A dimension's size, and the index by which each read walks it."""


def digits(size: int, indices: Sequence[Index], extents: Mapping[str, int]) -> list[Digit]:
    """The finest digits, outermost first, that all reads of a dimension agree on.

    A place of weight w splits where each read's terms are multiples of w, or stay below it
    together. Coordinates outside the dimension are outside its first digit.
    """
    if all(len(index.terms) < 2 for index in indices) or not all(i.is_affine for i in indices):
        return [(size, tuple(indices))]
    weights = {abs(stride) for index in indices for _, stride in index.terms}
    for weight in sorted(weights):
        if 1 < weight < size and not size % weight:
            low = [_low(index, weight, extents) for index in indices]
            if None not in low:
                high = [_high(index, weight) for index in indices]
                inner = tuple(index for index in low if index is not None)
                return [*digits(size // weight, high, extents), (weight, inner)]
    return [(size, tuple(indices))]


def _low(index: Index, weight: int, extents: Mapping[str, int]) -> Index | None:
    """The part of an index below a weight, or None where it would carry."""
    terms = tuple((name, stride) for name, stride in index.terms if stride % weight)
    part = Index(terms, index.offset % weight)
    low, high = part.bounds(extents.__getitem__)
    return part if low >= 0 and high < weight else None


def _high(index: Index, weight: int) -> Index:
    """The part that counts in steps of the weight."""
    terms = tuple((name, step // weight) for name, step in index.terms if not step % weight)
    return Index(terms, index.offset // weight)
