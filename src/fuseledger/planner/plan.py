"""From a graph and a device to a plan with its ledger."""

from __future__ import annotations

import time as clock_time
from collections.abc import Callable, Sequence
from math import inf

from msgspec import Struct, field

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import Device, LaunchMode
from fuseledger.errors import CutError
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import Plan, check_legal
from fuseledger.ledger.ledger import KernelLedger, Totals, kernel_ledger
from fuseledger.ledger.library_calls import library_calls
from fuseledger.ledger.nest import analyse
from fuseledger.ledger.renamed import Names, can_be_renamed, renamed
from fuseledger.planner.candidates import Limits, enumerate_candidates
from fuseledger.planner.partition import Effort
from fuseledger.planner.schedules import Objective, ScheduleSearch
from fuseledger.planner.solve import Partition, solve

Step = Callable[[str], object]
"""Hears what the planner is doing."""


def _silent(words: str) -> None:
    """Tell nobody."""


TIE = 1e-6
"""Weight of time (µs) beside bytes: of two plans with equal bytes the faster one."""


class PlanOptions(Struct, frozen=True, kw_only=True):
    """How to plan."""

    objective: Objective = "time"
    launch: LaunchMode = "queued"
    tf32: bool = False
    """Matrix products of fp32 in TF32, as cuDNN convolutions run in PyTorch by default."""
    limits: Limits = field(default_factory=Limits)
    """How far candidates are grown."""
    effort: Effort = field(default_factory=Effort)
    """Work of each search over down-sets, in counts."""
    library_only: bool = False
    """Only ops that a library computes in one call share a kernel."""
    charge_rereads: bool = False
    """Where bytes are minimised: with what the tiling reads again and L2 does not absorb."""
    time_limit_s: float = 600.0
    """Time after which the best plan so far is taken, with the gap proved by then."""


class Planned(Struct, frozen=True, kw_only=True):
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


def make_plan(
    graph: Graph,
    device: Device,
    options: PlanOptions | None = None,
    *,
    search: ScheduleSearch | None = None,
    step: Step = _silent,
) -> Planned:
    """The best plan found.

    `search` brings schedules and evidence that are known already; `step` hears what is being
    done, in words.
    """
    options = options or PlanOptions()
    started = clock_time.perf_counter()
    search = search or new_search(graph, device, options)
    found = _cut_chain(graph, device, options)
    if found is not None:
        return _finish(graph, device, options, search, found, started)
    deadline = clock_time.monotonic() + options.time_limit_s
    count = f"{len(graph.ops):,} ops"
    candidates = enumerate_candidates(
        graph,
        lambda group, limit: _cost(search, group, options, limit),
        options.limits,
        distinct=lambda: search.searched,
        deadline=deadline,
        moved=lambda found: step(f"planning {count}: {found:,} candidate kernels"),
    )
    step(f"planning {count}: choosing among {len(candidates.starting):,} candidates")
    found = solve(
        graph,
        candidates,
        effort=options.effort,
        deadline=deadline,
        moved=lambda done: step(f"planning {count}: {done:,} of them placed"),
    )
    step(f"planning {count}: writing the ledger")
    return _finish(graph, device, options, search, found, started)


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
    )


def plan_of_groups(
    graph: Graph,
    device: Device,
    groups: list[tuple[int, ...]],
    options: PlanOptions | None = None,
    *,
    search: ScheduleSearch | None = None,
) -> Planned:
    """A given partition, priced, vetoes and all.

    Raises CutError where the ops of a group can share no kernel, IllegalPlan where the groups
    are no partition that can run.
    """
    options = options or PlanOptions()
    started = clock_time.perf_counter()
    search = search or new_search(graph, device, options)
    for group in groups:
        for account, reason in search.choose(group).vetoes:
            if account == "legality":
                names = "+".join(graph.ops[i].name for i in group)
                raise CutError(f"{graph.name}: {names} can be no kernel: {reason}")
    cost = sum(search.choose(group).cost for group in groups)
    found = Partition(groups, cost, optimal=False, candidates=0)
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


def candidate_cost(
    search: ScheduleSearch, group: tuple[int, ...], limit: float = inf
) -> float | None:
    """Cost of a candidate, or None where an account vetoes it. A single op is always allowed.

    Where it is no less than `limit`, any figure between the two.
    """
    if len(group) == 1:
        return search.choose(group).cost
    return search.cost_below(group, limit)


def _cost(
    search: ScheduleSearch, group: tuple[int, ...], options: PlanOptions, limit: float
) -> float | None:
    """Cost of a candidate under what the options allow and charge besides."""
    cost = candidate_cost(search, group, limit)
    if cost is None:
        return None
    if options.library_only and len(group) > 1 and not _is_library_call(search, group):
        return None
    if options.charge_rereads and options.objective == "bytes":
        cost += search.clock.reread_bytes(search.price(group))
    return cost


def _is_library_call(search: ScheduleSearch, group: tuple[int, ...]) -> bool:
    nest = analyse(search.graph, group)
    return library_calls(nest, search.device.vendor).call is not None


def _finish(
    graph: Graph,
    device: Device,
    options: PlanOptions,
    search: ScheduleSearch,
    found: Partition,
    started: float,
) -> Planned:
    check_legal(graph, found.groups)
    ledgers = ledgers_of(search, found.groups)
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


def ledgers_of(
    search: ScheduleSearch, groups: Sequence[tuple[int, ...]]
) -> tuple[KernelLedger, ...]:
    """The ledgers of a plan's kernels. Those that differ in names alone are computed once."""
    graph = search.graph
    known: dict[object, tuple[tuple[int, ...], KernelLedger]] = {}
    found: list[KernelLedger] = []
    for number, group in enumerate(groups, start=1):
        name = f"k{number}"
        # titles make words, not figures: a structure does not tell them apart
        key = search.structure(group), tuple(graph.ops[i].title for i in group)
        like = known.get(key)
        if like is None:
            ledger = ledger_of(search, group, name)
            if can_be_renamed(ledger, graph):
                known[key] = group, ledger
        else:
            ledger = renamed(like[1], graph, Names.between(graph, like[0], group), name)
        found.append(ledger)
    return tuple(found)
