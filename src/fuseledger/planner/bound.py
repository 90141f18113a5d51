"""Proof where dynamic programming cannot finish: a lower bound, and a MILP to close the gap.

A plan is a set partition of the ops into candidates whose quotient graph has no cycle. Without the
last condition its LP relaxation is a lower bound. With integer choices, cycles are cut off one at
a time: of the groups on a cycle at least one must go.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from fuseledger.errors import MissingExtra
from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits

REDUCED_COST_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What the relaxation proves, and the better partition if one was found."""

    lower: float
    groups: list[tuple[int, ...]] | None
    """A runnable partition cheaper than the one given, or None."""
    cost: float
    """Cost of `groups`, or of the partition given."""
    closed: bool
    """Whether the MILP was solved to the end."""


def improve(
    graph: Graph, cost: dict[int, float], known: float, *, time_limit_s: float = 20.0
) -> Bound:
    """Bound the cheapest partition into candidates from below, and look for one under `known`.

    Candidates whose reduced cost exceeds the gap cannot be in a better plan and are dropped
    before the integer search. Raises MissingExtra without `highspy`.
    """
    started = time.monotonic()
    masks = list(cost)
    solver = _Solver(masks, [cost[m] for m in masks], len(graph.ops))
    lower, reduced = solver.relax()
    if known - lower <= REDUCED_COST_SLACK * max(1.0, known):
        return Bound(lower=lower, groups=None, cost=known, closed=True)
    kept = [m for m, r in zip(masks, reduced, strict=True) if r <= known - lower + 1e-9]
    solver = _Solver(kept, [cost[m] for m in kept], len(graph.ops))
    solver.make_integer()
    while True:
        left = time_limit_s - (time.monotonic() - started)
        if left <= 0:
            return Bound(lower=lower, groups=None, cost=known, closed=False)
        chosen = solver.solve(left)
        if chosen is None:
            return Bound(lower=lower, groups=None, cost=known, closed=False)
        total = sum(cost[kept[k]] for k in chosen)
        if total >= known - REDUCED_COST_SLACK * max(1.0, known):
            return Bound(lower=known, groups=None, cost=known, closed=True)
        groups = [kept[k] for k in chosen]
        order, cycle = in_order(graph, groups)
        if order is not None:
            ordered = [tuple(bits(mask)) for mask in order]
            return Bound(lower=total, groups=ordered, cost=total, closed=True)
        solver.forbid([chosen[k] for k in cycle])


def in_order(graph: Graph, groups: Sequence[int]) -> tuple[list[int] | None, list[int]]:
    """(groups in an order in which they run, []) or (None, positions of groups on a cycle)."""
    home = {i: k for k, mask in enumerate(groups) for i in bits(mask)}
    before: list[set[int]] = [set() for _ in groups]
    for i, reads in enumerate(graph.predecessors):
        before[home[i]] |= {home[j] for j in reads if home[j] != home[i]}
    order: list[int] = []
    done: set[int] = set()
    pending = list(range(len(groups)))
    while pending:
        ready = [k for k in pending if before[k] <= done]
        if not ready:
            return None, _cycle(pending, before, done)
        order += ready
        done.update(ready)
        pending = [k for k in pending if k not in done]
    return [groups[k] for k in order], []


def _cycle(pending: list[int], before: list[set[int]], done: set[int]) -> list[int]:
    """Some cycle among the groups that wait for each other."""
    path = [pending[0]]
    while True:
        following = min(before[path[-1]] - done)
        if following in path:
            return path[path.index(following) :]
        path.append(following)


@contextlib.contextmanager
def _unheard() -> Generator[None]:
    """Standard output to nowhere: the solver prints a banner before it can be told not to."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class _Solver:
    """The set-partition model in HiGHS."""

    def __init__(self, masks: Sequence[int], costs: Sequence[float], ops: int) -> None:
        try:
            import highspy
        except ModuleNotFoundError as error:
            raise MissingExtra("solver", "highspy") from error
        self.kinds: Any = highspy
        with _unheard():
            self.model: Any = highspy.Highs()
        self.model.silent()
        self.model.setOptionValue("random_seed", 0)
        self.model.setOptionValue("threads", 1)
        self.count = len(masks)
        for _ in range(ops):
            self.model.addRow(1.0, 1.0, 0, [], [])
        for mask, price in zip(masks, costs, strict=True):
            rows = list(bits(mask))
            self.model.addCol(price, 0.0, 1.0, len(rows), rows, [1.0] * len(rows))

    def relax(self) -> tuple[float, list[float]]:
        """(LP optimum, reduced cost of each candidate)."""
        self.model.run()
        value: float = self.model.getInfo().objective_function_value
        reduced: list[float] = list(self.model.getSolution().col_dual)
        return value, reduced

    def make_integer(self) -> None:
        """Every candidate is taken or not."""
        kind = self.kinds.HighsVarType.kInteger
        for column in range(self.count):
            self.model.changeColIntegrality(column, kind)

    def solve(self, time_limit_s: float) -> list[int] | None:
        """Columns of the optimum, or None where the time ran out."""
        self.model.setOptionValue("time_limit", self.model.getRunTime() + time_limit_s)
        self.model.run()
        if self.model.getModelStatus() != self.kinds.HighsModelStatus.kOptimal:
            return None
        values = self.model.getSolution().col_value
        return [column for column in range(self.count) if values[column] > 0.5]

    def forbid(self, columns: list[int]) -> None:
        """Not all of these at once."""
        self.model.addRow(0.0, len(columns) - 1.0, len(columns), columns, [1.0] * len(columns))
