"""How far from the cheapest partition: the LP relaxation, and the integer search behind it.

Set partitioning: every op is in exactly one chosen candidate. Whether the chosen kernels can be
put in an order is not part of the model; where they wait for each other, cycles are cut off one at
a time: of the groups on a cycle at least one must go.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fuseledger.errors import MissingExtra
from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits

if TYPE_CHECKING:
    import numpy as np

SLACK = 1e-9
"""Share of a cost below which two costs are the same."""
MIP_NODES = 200
"""Nodes of the integer search: a count, so that a plan does not depend on the machine's speed."""


class Relaxation(Struct, frozen=True, kw_only=True):
    """The LP's optimum: no partition into these candidates costs less than `lower`."""

    lower: float
    reduced: dict[int, float]
    """Candidate → what a plan with it costs above `lower`, at least."""
    groups: list[int] | None
    """The LP's own optimum, in order, where it is a plan: nothing is cheaper."""


class Integer(Struct, frozen=True, kw_only=True):
    """What the integer search found."""

    lower: float
    groups: list[int] | None
    """A runnable partition cheaper than the one known, in order, or None."""
    cost: float
    """Cost of `groups`, or of the partition known."""
    closed: bool
    """Whether the search came to its end: nothing is cheaper than `cost`."""


def relax(graph: Graph, cost: Mapping[int, float]) -> Relaxation:
    """Solve the LP relaxation by sifting: on few candidates, then with those that its duals miss.

    Raises MissingExtra without `highspy`.
    """
    import numpy as np

    table = _Table.of(cost)
    solver = _Solver(len(graph.ops))
    inside = np.zeros(len(table.masks), dtype=bool)
    number = {mask: k for k, mask in enumerate(table.masks)}
    adding = np.array([number[1 << i] for i in range(len(graph.ops))])
    while True:
        solver.add(table, adding)
        inside[adding] = True
        lower, duals = solver.relax()
        reduced = table.costs - np.add.reduceat(duals[table.rows], table.starts)
        missed = np.flatnonzero((reduced < -SLACK * max(1.0, lower)) & ~inside)
        if not len(missed):
            break
        adding = missed[np.argsort(reduced[missed], kind="stable")][: len(graph.ops)]
    positive = np.maximum(reduced, 0.0).tolist()
    return Relaxation(
        lower=lower,
        reduced=dict(zip(table.masks, positive, strict=True)),
        groups=_as_plan(graph, [table.masks[k] for k in solver.taken()]),
    )


def _as_plan(graph: Graph, groups: list[int]) -> list[int] | None:
    """The groups in order, or None where they leave ops out or wait for each other."""
    if sum(mask.bit_count() for mask in groups) < len(graph.ops):
        return None
    return in_order(graph, groups)[0]


def improve(
    graph: Graph, cost: Mapping[int, float], known: float, lower: float, *, deadline: float
) -> Integer:
    """Look for a partition that costs less than `known`, among candidates that one may contain.

    Raises MissingExtra without `highspy`.
    """
    table = _Table.of(cost)
    solver = _Solver(len(graph.ops))
    solver.add(table, range(len(table.masks)))
    solver.make_integer()
    while True:
        left = deadline - time.monotonic()
        chosen, bound = solver.solve(left) if left > 0 else (None, lower)
        if bound == math.inf:  # no plan at all: those cut off were dearer than the one known
            return Integer(lower=known, groups=None, cost=known, closed=True)
        lower = max(lower, min(bound, known))
        if chosen is None:
            return Integer(lower=lower, groups=None, cost=known, closed=False)
        groups = [table.masks[k] for k in chosen]
        total = sum(cost[mask] for mask in groups)
        if total >= known - SLACK * max(1.0, known):
            return Integer(lower=known, groups=None, cost=known, closed=True)
        order, cycle = in_order(graph, groups)
        if order is not None:
            return Integer(lower=total, groups=order, cost=total, closed=True)
        solver.forbid([chosen[k] for k in cycle])


def in_order(graph: Graph, groups: Sequence[int]) -> tuple[list[int] | None, list[int]]:
    """(groups in an order in which they run, []) or (None, positions of groups on a cycle)."""
    home = {i: k for k, mask in enumerate(groups) for i in bits(mask)}
    before: list[set[int]] = [set() for _ in groups]
    for i, reads in enumerate(graph.predecessors):
        before[home[i]] |= {home[j] for j in reads if home[j] != home[i]}
    after: list[list[int]] = [[] for _ in groups]
    for k, others in enumerate(before):
        for other in others:
            after[other].append(k)
    waits = [len(others) for others in before]
    order = [k for k, count in enumerate(waits) if not count]
    for k in order:  # it grows while it is walked
        for other in after[k]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    if len(order) < len(groups):
        done = set(order)
        pending = [k for k in range(len(groups)) if k not in done]
        return None, _cycle(pending, before, done)
    return [groups[k] for k in order], []


def _cycle(pending: list[int], before: list[set[int]], done: set[int]) -> list[int]:
    """Some cycle among the groups that wait for each other."""
    path = [pending[0]]
    while True:
        following = min(before[path[-1]] - done)
        if following in path:
            return path[path.index(following) :]
        path.append(following)


class _Table(Struct, frozen=True):
    """Candidates as the columns of a sparse matrix of zeros and ones."""

    masks: list[int]
    costs: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    """Ops of all candidates, one candidate after the other."""
    starts: np.ndarray[Any, Any]
    """Where each candidate's ops start in `rows`."""

    @staticmethod
    def of(cost: Mapping[int, float]) -> _Table:
        import numpy as np

        masks = list(cost)
        rows = [row for mask in masks for row in bits(mask)]
        lengths = [mask.bit_count() for mask in masks]
        starts = np.cumsum([0, *lengths[:-1]], dtype=np.int32)
        costs = np.array([cost[mask] for mask in masks])
        return _Table(masks, costs, np.array(rows, dtype=np.int32), starts)


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

    def __init__(self, ops: int) -> None:
        try:
            import highspy
        except ModuleNotFoundError as error:
            raise MissingExtra("solver", "highspy") from error
        self.kinds: Any = highspy
        with _unheard():
            self.model: Any = highspy.Highs()
        self.model.silent()
        self.model.resetGlobalScheduler(True)  # of another number of threads it would refuse
        self.model.setOptionValue("random_seed", 0)
        self.model.setOptionValue("threads", 1)
        self.model.setOptionValue("mip_max_nodes", MIP_NODES)
        self.model.setOptionValue("mip_rel_gap", SLACK)
        self.numbers: list[int] = []
        for _ in range(ops):
            self.model.addRow(1.0, 1.0, 0, [], [])

    def add(self, table: _Table, columns: Sequence[int] | np.ndarray[Any, Any]) -> None:
        """Add candidates by their numbers in the table."""
        inf = self.kinds.kHighsInf
        ends = [*table.starts[1:], len(table.rows)]
        self.numbers += [int(k) for k in columns]
        for k in columns:
            rows = table.rows[table.starts[k] : ends[k]]
            # no upper bound: the rows imply it, and a dual of its own would be left out of the sums
            self.model.addCol(table.costs[k], 0.0, inf, len(rows), rows, [1.0] * len(rows))

    def relax(self) -> tuple[float, np.ndarray[Any, Any]]:
        """(LP optimum, dual of each op)."""
        import numpy as np

        self.model.run()
        value: float = self.model.getInfo().objective_function_value
        return value, np.array(self.model.getSolution().row_dual)

    def taken(self) -> list[int]:
        """Numbers, in the table, of the columns that are (nearly) one."""
        values = self.model.getSolution().col_value
        return [self.numbers[column] for column, value in enumerate(values) if value > 0.999]

    def make_integer(self) -> None:
        """Every candidate is taken or not."""
        kind = self.kinds.HighsVarType.kInteger
        for column in range(self.model.getNumCol()):
            self.model.changeColIntegrality(column, kind)

    def solve(self, time_limit_s: float) -> tuple[list[int] | None, float]:
        """(columns of the optimum, or None where time or nodes ran out; a lower bound).

        The bound is infinite where there is no plan.
        """
        self.model.setOptionValue("time_limit", self.model.getRunTime() + time_limit_s)
        self.model.run()
        if self.model.getModelStatus() == self.kinds.HighsModelStatus.kInfeasible:
            return None, math.inf
        bound: float = self.model.getInfo().mip_dual_bound
        if self.model.getModelStatus() != self.kinds.HighsModelStatus.kOptimal:
            return None, bound
        return self.taken(), bound

    def forbid(self, columns: list[int]) -> None:
        """Not all of these at once."""
        self.model.addRow(0.0, len(columns) - 1.0, len(columns), columns, [1.0] * len(columns))
