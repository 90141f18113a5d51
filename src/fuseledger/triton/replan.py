"""Planning with a compiler's evidence: schedules that the compiler contradicts are chosen again.

The model proposes, the compiler answers. In each round the plan's kernels are compiled and their
figures take the model's place; their schedules are searched again, with other tiles and warps,
until every kernel's schedule is one that the compiler has seen. Only then is the graph cut again,
with all that is known by now: un-fusing is what is left where no schedule helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from fuseledger.clock.time import GENERATED
from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import Kernel
from fuseledger.ledger.ledger import KernelLedger
from fuseledger.planner.plan import Planned, PlanOptions, make_plan, new_search, plan_of_groups
from fuseledger.planner.schedules import ScheduleSearch
from fuseledger.triton.compile import Compiled
from fuseledger.triton.emit import EmitOptions, EmittedKernel
from fuseledger.triton.evidence import figures_of
from fuseledger.triton.package import emit_plan

CUTS = 4
"""Times that the graph is cut again."""
RETILES = 8
"""Times that the schedules of one cut are searched again."""

Compile = Callable[[Sequence[EmittedKernel]], list[Compiled]]
"""Compiles kernels, in order."""


class Evidenced(Struct, kw_only=True):
    """A plan whose kernels were compiled, and how it came about."""

    planned: Planned
    missing: dict[str, str] = field(default_factory=dict[str, str])
    """Kernel → why it has no evidence and keeps its model."""
    code: dict[str, EmittedKernel] = field(default_factory=dict[str, EmittedKernel])
    """Kernel → its code, or that of a kernel of equal structure and schedule."""
    compiled: int = 0
    """Kernels compiled on the way."""
    changed: tuple[str, ...] = ()
    """What evidence changed, one sentence each."""
    is_stable: bool = True
    """Whether the last cut is one that all evidence agrees with."""


def plan_compiled(
    graph: Graph,
    device: Device,
    options: PlanOptions,
    compile_: Compile,
    *,
    groups: list[tuple[int, ...]] | None = None,
    step: Callable[[str], None] = lambda words: None,
) -> Evidenced:
    """Plan with compiled registers, spills and shared memory; `groups` fixes the cut.

    `step` is told what is being done. Kernels that cannot be emitted or do not compile keep their
    model. Where the cuts do not settle, the cheapest plan whose kernels were all compiled is kept.
    """
    search = new_search(graph, device, options)
    return _Replan(graph, device, options, compile_, step, search).run(groups)


class _Replan(Struct):
    graph: Graph
    device: Device
    options: PlanOptions
    compile_: Compile
    step: Callable[[str], None]
    search: ScheduleSearch
    why_missing: dict[tuple[int, ...], str] = field(default_factory=dict[tuple[int, ...], str])
    seen: dict[tuple[object, ...], EmittedKernel] = field(
        default_factory=dict[tuple[object, ...], EmittedKernel]
    )
    compiled: int = 0

    def run(self, groups: list[tuple[int, ...]] | None) -> Evidenced:
        """Plan, compile, choose again, cut again."""
        first = planned = self._planned(groups)
        best: Planned | None = None
        is_stable = False
        for cut in range(CUTS):
            planned = self._settled(planned)
            if best is None or planned.partition.cost < best.partition.cost:
                best = planned
            self.step(f"cutting again with evidence, round {cut + 1}")
            again = self._planned(groups)
            if _schedules(again) == _schedules(planned):
                best, is_stable = again, True
                break
            planned = again
        assert best is not None
        return Evidenced(
            planned=best,
            missing={
                ledger.name: self.why_missing[ledger.kernel.ops]
                for ledger in best.kernels
                if ledger.kernel.ops in self.why_missing
            },
            code={
                ledger.name: self.seen[key]
                for ledger in best.kernels
                if ledger.price.modelled is not None
                and (key := self._schedule_of(ledger)) in self.seen
            },
            compiled=self.compiled,
            changed=tuple(_changes(first, best)),
            is_stable=is_stable,
        )

    def _planned(self, groups: list[tuple[int, ...]] | None) -> Planned:
        if groups is None:
            return make_plan(self.graph, self.device, self.options, search=self.search)
        return plan_of_groups(self.graph, self.device, groups, self.options, search=self.search)

    def _settled(self, planned: Planned) -> Planned:
        """The same cut, its schedules chosen again until each was compiled."""
        for _ in range(RETILES):
            if not self._compile(planned.kernels):
                break
            planned = plan_of_groups(
                self.graph, self.device, planned.partition.groups, self.options, search=self.search
            )
        return planned

    def _compile(self, ledgers: Sequence[KernelLedger]) -> int:
        """Compile what was not compiled before; how many kernels that were."""
        emitted: list[tuple[KernelLedger, EmittedKernel]] = []
        for each in emit_plan(
            self.graph, ledgers, self.device, EmitOptions(tf32=self.options.tf32)
        ):
            ledger = each.ledger
            if ledger.price.modelled is not None:
                continue
            if ledger.time.realised != GENERATED:
                self.why_missing[ledger.kernel.ops] = f"is a library's: {ledger.time.realised}"
            elif each.kernel is None:
                self.why_missing[ledger.kernel.ops] = f"cannot be emitted: {each.missing}"
            elif self._schedule_of(ledger) not in self.seen:
                self.seen[self._schedule_of(ledger)] = each.kernel
                emitted.append((ledger, each.kernel))
        if emitted:
            self.step(f"compiling {len(emitted)} kernels ({self.compiled} so far)")
        for (ledger, _), found in zip(
            emitted, self.compile_([kernel for _, kernel in emitted]), strict=True
        ):
            if found.failed:
                self.why_missing[ledger.kernel.ops] = f"does not compile: {found.failed}"
            else:
                self.why_missing.pop(ledger.kernel.ops, None)
                self.search.learn(ledger.kernel.ops, figures_of(found))
        self.compiled += len(emitted)
        return len(emitted)

    def _schedule_of(self, ledger: KernelLedger) -> tuple[object, ...]:
        """Equal for kernels of equal structure and schedule: one of them is compiled."""
        kernel = ledger.kernel
        return (self.search.structure(kernel.ops), *schedule_without_names(kernel))


def schedule_without_names(kernel: Kernel) -> tuple[object, ...]:
    """A schedule, and those of a kernel's parts, without the names of axes."""
    schedule = kernel.schedule
    return (
        tuple(axis for _, axis in schedule.axes), schedule.warps, schedule.pipeline, schedule.walks,
        schedule.online, schedule.merge, *map(schedule_without_names, kernel.parts),
    )  # fmt: skip


def _schedules(planned: Planned) -> list[tuple[object, ...]]:
    return [(kernel.ops, kernel.schedule, kernel.parts) for kernel in planned.plan.kernels]


def _changes(before: Planned, after: Planned) -> list[str]:
    """What differs between the modelled plan and the one with evidence."""
    known = {kernel.ops: kernel.schedule for kernel in before.plan.kernels}
    found: list[str] = []
    for ledger in after.kernels:
        kernel = ledger.kernel
        schedule = known.pop(kernel.ops, None)
        if schedule is None:
            found.append(f"{ledger.name} {ledger.label}: cut anew")
        elif schedule != kernel.schedule:
            was = f"{schedule}, {schedule.warps} warps"
            now = f"{kernel.schedule}, {kernel.schedule.warps} warps"
            found.append(f"{ledger.name} {ledger.label}: {was} → {now}")
    return found
