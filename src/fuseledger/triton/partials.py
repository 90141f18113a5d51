"""Partial results: what a reduced axis on the grid leaves behind, and how its parts are merged.

A kernel that splits a reduced axis writes one state a part, in fp32. Its readers fold the parts
themselves, or a combine kernel does, as the schedule says. Where it says that the last block of a
tile does, the emitted code has a combine kernel all the same, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import prod

from msgspec import Struct

from fuseledger.errors import CannotEmit
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import Kernel
from fuseledger.planner.side_by_side import parts_of

SUFFIX = ".parts"
"""Of the buffer that holds a tensor's parts."""
MERGED = frozenset({"sum", "prod", "max", "min", "any", "all", "max_sumexp", "moments"})
"""Combines whose results are their state. A position alone cannot be merged: its value is lost."""


class Partial(Struct, frozen=True, kw_only=True):
    """The results of one op as parts: buffers `[parts, *shape]` of fp32."""

    combine: str
    results: tuple[str, ...]
    """Tensors that the parts make."""
    axes: tuple[tuple[str, int, int], ...]
    """(axis, size, elements of it in one part) of the split axes, outermost first."""
    rest: int
    """Points of the reduced axes that are not split."""
    is_combined: bool
    """Whether a combine kernel merges the parts; else every reader folds them."""

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return prod(-(-size // tile) for _, size, tile in self.axes)

    def count_text(self, part: str) -> str:
        """Points of a part, as text: the last part along an axis may be short."""
        factors = [str(self.rest)] if self.rest > 1 else []
        inner = self.parts
        for position, (_, size, tile) in enumerate(self.axes):
            count = -(-size // tile)
            inner //= count
            if size % tile == 0:
                factors.append(str(tile))
                continue
            digit = part if inner == 1 else f"{part} // {inner}"
            digit = f"({digit}) % {count}" if position else digit
            factors.append(f"tl.minimum({tile}, {size} - ({digit}) * {tile})")
        if all(factor.isdigit() for factor in factors):
            return f"{prod(int(factor) for factor in factors)}.0"
        return f"({' * '.join(factors)}).to(tl.float32)"


def buffer_of(tensor: str) -> str:
    """The name of the buffer with a tensor's parts."""
    return tensor if tensor.endswith(SUFFIX) else tensor + SUFFIX


def split_tile(size: int, parts: int) -> int:
    """Elements of a split axis in one part."""
    return -(-size // parts)


def partials_of(graph: Graph, kernel: Kernel) -> dict[int, Partial]:
    """Op position → the parts of its results, for the ops of a kernel that reduce a split axis.

    Raises CannotEmit for a combine whose parts cannot be merged from its results.
    """
    found: dict[int, Partial] = {}
    for part in parts_of(graph, kernel):
        found |= _partials_of_part(graph, part)
    return found


def _partials_of_part(graph: Graph, kernel: Kernel) -> dict[int, Partial]:
    split = {name: axis.tile for name, axis in kernel.schedule.axes if axis.treatment == "split"}
    found: dict[int, Partial] = {}
    for i in kernel.ops if split else ():
        op = graph.ops[i]
        mine = [name for name in op.sizes if name in op.reduces and name in split]
        if not mine or op.combine is None:
            continue
        if op.combine not in MERGED:
            raise CannotEmit(f"{op.name}: parts of {op.combine} cannot be merged without its value")
        rest = prod(op.sizes[name] for name in op.reduces if name not in mine)
        found[i] = Partial(
            combine=op.combine,
            results=tuple(write.tensor for write in op.writes),
            axes=tuple((n, op.sizes[n], split_tile(op.sizes[n], split[n])) for n in mine),
            rest=rest,
            is_combined=kernel.schedule.merge != "readers",
        )
    return found


def folded_tensors(graph: Graph, kernels: Iterable[Kernel]) -> dict[str, Partial]:
    """Tensors that kernels leave as parts for their readers to fold."""
    found: dict[str, Partial] = {}
    for kernel in kernels:
        with suppress(CannotEmit):  # a kernel without code leaves no parts
            for partial in partials_of(graph, kernel).values():
                if not partial.is_combined:
                    found |= dict.fromkeys(partial.results, partial)
    return found
