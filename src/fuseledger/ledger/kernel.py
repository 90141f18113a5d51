"""Kernels, schedules and plans."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from msgspec import Struct

from fuseledger.errors import IllegalPlan
from fuseledger.graph.graph import Graph

Treatment = Literal["grid", "loop", "whole", "split"]
Merge = Literal["readers", "launch", "last block"]
"""Who merges the parts of split axes: every kernel that reads them, a second kernel, or, of the
blocks that make the parts of one tile, the one that ends last (a ticket tells it so)."""
MERGES: dict[Merge, str] = {
    "readers": "folded by whoever reads them",
    "launch": "merged by a second kernel",
    "last block": "merged by the last block of each tile",
}
"""The same in words."""


class AxisSchedule(Struct, frozen=True):
    """What becomes of one axis in a kernel.

    `grid(tile)`: one block per tile. `split(parts)`: a reduced axis on the grid, which makes the
    result partial. `loop(tile)`: walked inside the block. `whole`: held at once.
    """

    treatment: Treatment
    tile: int
    """Elements per block or step; for `split`, the number of parts."""

    def __str__(self) -> str:
        return self.treatment if self.treatment == "whole" else f"{self.treatment}({self.tile})"


class Pipeline(Struct, frozen=True):
    """How products walk their reduced axes: while one step is multiplied, others are loaded."""

    step_bytes: int = 64
    """Bytes of each row of an operand that one step takes."""
    stages: int = 2
    """Steps under way at once, the one that is multiplied included."""

    @property
    def ahead(self) -> int:
        """Steps in flight while one is multiplied; with a single stage, its own before that."""
        return max(1, self.stages - 1)

    @property
    def ahead_bytes(self) -> int:
        """Bytes of each row that are in flight."""
        return self.step_bytes * self.ahead


SHALLOW = Pipeline()
"""What a kernel without products has."""


class Schedule(Struct, frozen=True, kw_only=True):
    """The treatment of every axis of a kernel, its warps and its pipeline."""

    axes: tuple[tuple[str, AxisSchedule], ...]
    warps: int = 4
    pipeline: Pipeline = SHALLOW
    walks: int = 1
    """Times that carried tensors are walked; 1 where they are owned or online."""
    online: bool = False
    """Whether sums over a carried tensor are rescaled while it is walked once."""
    merge: Merge | None = None
    """Who merges the parts of split axes; None where no axis is split."""

    def __str__(self) -> str:
        return " ".join(f"{name}={axis}" for name, axis in self.axes)


class Kernel(Struct, frozen=True, kw_only=True):
    """Ops launched together, by position in the graph, ascending; plus their schedule."""

    ops: tuple[int, ...]
    schedule: Schedule
    parts: tuple[Kernel, ...] = ()
    """Ops that run as block ranges of one grid, each with a schedule of its own; empty where the
    ops are one nest. The kernel's schedule then says of an axis what its first part does."""


class Plan(Struct, frozen=True, kw_only=True, dict=True):
    """A partition of a graph into kernels, in an order in which they can run."""

    graph: Graph
    kernels: tuple[Kernel, ...]

    @cached_property
    def home(self) -> dict[int, int]:
        """Op position → position of its kernel."""
        return {op: k for k, kernel in enumerate(self.kernels) for op in kernel.ops}


def check_legal(graph: Graph, groups: list[tuple[int, ...]]) -> None:
    """Raise IllegalPlan unless the groups are a partition that can run in the given order.

    A partition whose groups can be ordered is one of convex groups: a path out of a group and
    back would make a cycle.
    """
    done: set[int] = set()
    for number, group in enumerate(groups):
        inside = set(group)
        if not inside or len(inside) != len(group) or inside & done:
            raise IllegalPlan(f"kernel {number} is empty or repeats an op")
        for op in group:
            missing = set(graph.predecessors[op]) - inside - done
            if missing:
                names = ", ".join(graph.ops[i].name for i in sorted(missing))
                raise IllegalPlan(f"kernel {number} reads {names} before it is made")
        if len(group) > 1 and any(graph.ops[op].is_opaque for op in group):
            raise IllegalPlan(f"kernel {number} fuses an opaque op")
        done |= inside
    if len(done) != len(graph.ops):
        raise IllegalPlan(f"{len(graph.ops) - len(done)} ops are in no kernel")
