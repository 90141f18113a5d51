"""From a graph and a device to a plan with its ledger."""

from __future__ import annotations

import time as clock_time
from dataclasses import dataclass

from fuseledger.clock.roofline import LaunchMode, Roofline
from fuseledger.devices import Device
from fuseledger.errors import CutError, MissingExtra
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import Plan, check_legal
from fuseledger.ledger.ledger import KernelLedger, Totals, kernel_ledger
from fuseledger.ledger.nest import analyse
from fuseledger.planner.bound import improve
from fuseledger.planner.partition import (
    MAX_CANDIDATES,
    MAX_OPS,
    MAX_STATES,
    Candidates,
    Partition,
    enumerate_candidates,
    partition,
)
from fuseledger.planner.schedules import Objective, ScheduleSearch

TIE = 1e-6
"""Weight of time (µs) beside bytes: of two plans with equal bytes the faster one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to plan."""

    objective: Objective = "time"
    launch: LaunchMode = "queued"
    tf32: bool = False
    """Matrix products of fp32 in TF32, as cuDNN convolutions run in PyTorch by default."""
    max_ops: int = MAX_OPS
    """Most ops in one kernel."""
    max_candidates: int = MAX_CANDIDATES
    max_states: int = MAX_STATES
    """Down-sets up to which the partition is exact without a solver."""
    time_limit_s: float = 20.0
    """Time for the integer search that follows a beam; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, its ledger, and what it is compared with."""

    graph: Graph
    device: Device
    options: PlanOptions
    plan: Plan
    kernels: tuple[KernelLedger, ...]
    baseline: Totals
    """One kernel an op."""
    partition: Partition
    search: ScheduleSearch
    seconds: float

    @property
    def totals(self) -> Totals:
        """Sums over the plan's kernels."""
        return Totals.of(self.kernels)

    @property
    def status(self) -> str:
        """What is proved of the plan."""
        found = self.partition
        if found.optimal:
            return "optimal for this model and these candidates"
        if not found.candidates:
            return "as given"
        proved = (
            "no bound"
            if found.gap is None
            else f"within {found.gap:.2%} of the optimum"
            if found.gap
            else "optimal"
        )
        return f"{proved} for this model and {found.candidates:,} candidates; " + "; ".join(
            found.cut_short
        )


def make_plan(graph: Graph, device: Device, options: PlanOptions | None = None) -> Planned:
    """The best plan found."""
    options = options or PlanOptions()
    started = clock_time.perf_counter()
    search = new_search(graph, device, options)
    found = _cut_chain(graph, device, options)
    if found is not None:
        return _finish(graph, device, options, search, found, started)
    candidates = enumerate_candidates(
        graph,
        lambda group: candidate_cost(search, group),
        max_ops=options.max_ops,
        limit=options.max_candidates,
        distinct=lambda: search.searched,
    )
    found = partition(graph, candidates, max_states=options.max_states)
    if found.gap is None and options.time_limit_s > 0:
        _prove(graph, candidates, found, options.time_limit_s)
    return _finish(graph, device, options, search, found, started)


def _prove(graph: Graph, candidates: Candidates, found: Partition, time_limit_s: float) -> None:
    """Bound a beam's partition from below, and replace it where a cheaper one is found."""
    try:
        bound = improve(graph, candidates.cost, found.cost, time_limit_s=time_limit_s)
    except MissingExtra as missing:
        found.cut_short.append(f"no bound: {missing}")
        return
    if bound.groups is not None:
        found.groups, found.cost = bound.groups, bound.cost
    found.gap = 0.0 if bound.closed else max(0.0, 1 - bound.lower / bound.cost)


def _cut_chain(graph: Graph, device: Device, options: PlanOptions) -> Partition | None:
    """The exact partition of a chain of declared ops, whose kernels may hold any number of them.

    None where the graph is anything else.
    """
    if not graph.ops or graph.ops[0].kind != "declared":
        return None
    from fuseledger.planner.chain import Chain, cut_chain  # NumPy is slow to import

    chain = Chain.of(graph)
    if chain is None:
        return None
    by_bytes = options.objective == "bytes"
    lengths, cost = cut_chain(
        chain, device, (lambda moved, us: moved + TIE * us) if by_bytes else None
    )
    count = len(chain)
    return Partition(
        cut_groups(graph, lengths),
        cost,
        optimal=True,
        candidates=count * (count + 1) // 2,
        states=count + 1,
    )


def plan_of_groups(
    graph: Graph, device: Device, groups: list[tuple[int, ...]], options: PlanOptions | None = None
) -> Planned:
    """A given partition, priced, vetoes and all.

    Raises CutError where the ops of a group can share no kernel, IllegalPlan where the groups
    are no partition that can run.
    """
    options = options or PlanOptions()
    started = clock_time.perf_counter()
    search = new_search(graph, device, options)
    for group in groups:
        for account, reason in search.choose(group).vetoes:
            if account == "legality":
                names = "+".join(graph.ops[i].name for i in group)
                raise CutError(f"{graph.name}: {names} can be no kernel: {reason}")
    cost = sum(search.choose(group).cost for group in groups)
    found = Partition(groups, cost, optimal=False, candidates=0, states=0)
    return _finish(graph, device, options, search, found, started)


def cut_groups(graph: Graph, cut: list[int]) -> list[tuple[int, ...]]:
    """Consecutive groups of the given lengths; raises CutError where they do not cover the ops."""
    if any(length < 1 for length in cut) or sum(cut) != len(graph.ops):
        raise CutError(
            f"cut {','.join(map(str, cut))}: lengths must be at least 1 and add up to the "
            f"{len(graph.ops)} ops of {graph.name}"
        )
    groups: list[tuple[int, ...]] = []
    start = 0
    for length in cut:
        groups.append(tuple(range(start, start + length)))
        start += length
    return groups


def new_search(graph: Graph, device: Device, options: PlanOptions) -> ScheduleSearch:
    """A schedule search with the clock that the options ask for."""
    clock = Roofline(device, options.launch, options.tf32)
    return ScheduleSearch(graph, device, clock, options.objective)


def candidate_cost(search: ScheduleSearch, group: tuple[int, ...]) -> float | None:
    """Cost of a candidate, or None where an account vetoes it. A single op is always allowed."""
    choice = search.choose(group)
    return choice.cost if choice.usable or len(group) == 1 else None


def _finish(
    graph: Graph,
    device: Device,
    options: PlanOptions,
    search: ScheduleSearch,
    found: Partition,
    started: float,
) -> Planned:
    check_legal(graph, found.groups)
    ledgers = tuple(
        ledger_of(search, group, f"k{number}") for number, group in enumerate(found.groups, start=1)
    )
    singles = [search.choose((i,)) for i in range(len(graph.ops))]
    baseline = Totals(
        kernels=len(singles),
        bytes=sum(c.bytes for c in singles),
        launches=sum(c.launches for c in singles),
        time_us=sum(c.time_us for c in singles),
    )
    return Planned(
        graph=graph,
        device=device,
        options=options,
        plan=Plan(graph=graph, kernels=tuple(k.kernel for k in ledgers)),
        kernels=ledgers,
        baseline=baseline,
        partition=found,
        search=search,
        seconds=clock_time.perf_counter() - started,
    )


def ledger_of(search: ScheduleSearch, group: tuple[int, ...], name: str) -> KernelLedger:
    """The ledger of one group as one kernel, usable or not."""
    nest = analyse(search.graph, group)
    price = search.price(group)
    time = search.time(group, price)
    return kernel_ledger(search.graph, search.kernel(group), nest, price, time, search.device, name)
