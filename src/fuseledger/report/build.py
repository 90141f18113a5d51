"""From a priced plan to its document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fuseledger import __version__
from fuseledger.clock.error_bars import bars_of
from fuseledger.clock.time import GENERATED
from fuseledger.report.document import (
    AccountPart,
    AccountsPart,
    AlternativePart,
    AxisPart,
    CutPart,
    DifferencePart,
    EdgePart,
    ErrorBarPart,
    ErrorPart,
    EvidencePart,
    GraphPart,
    KernelPart,
    OpPart,
    OptionsPart,
    PlanDocument,
    PlanPart,
    RealisationPart,
    SchedulePart,
    SecondsPart,
    TensorPart,
    TermPart,
    TimePart,
    TotalsPart,
    VerdictPart,
    WorkPart,
    device_part,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuseledger.graph.graph import Graph
    from fuseledger.graph.op import Op
    from fuseledger.ledger.account import Account
    from fuseledger.ledger.ledger import KernelLedger, Totals
    from fuseledger.ledger.price import Price
    from fuseledger.planner.compare import CutDifference
    from fuseledger.planner.plan import Planned
    from fuseledger.verdict.edges import EdgeVerdict


def plan_document(
    planned: Planned,
    *,
    source: str,
    load_seconds: float,
    verdicts: Sequence[EdgeVerdict] = (),
    cuts: Sequence[tuple[list[int], Planned]] = (),
    evidence: EvidencePart | None = None,
) -> PlanDocument:
    """The document of a plan; `cuts` are the plans of several cuts that were compared."""
    from fuseledger.planner.compare import against_baseline, compare_cuts

    device, options = planned.device, planned.options
    compared = compare_cuts([each for _, each in cuts]) if cuts else None
    return PlanDocument(
        version=__version__,
        source=source,
        graph=_graph(planned.graph),
        device=device_part(device),
        options=OptionsPart(optimise=options.objective, launch=options.launch, tf32=options.tf32),
        plan=PlanPart(
            kernels=[_kernel(planned.graph, ledger) for ledger in planned.kernels],
            totals=_totals(planned.totals),
            status=planned.status,
        ),
        baseline=_totals(planned.baseline),
        saved=difference_part(against_baseline(planned)),
        cuts=[_cut(cut, each) for cut, each in cuts],
        differences=[difference_part(each) for each in compared.differences] if compared else [],
        shared=list(compared.notes) if compared else [],
        verdicts=[_verdict(verdict) for verdict in verdicts],
        seconds=SecondsPart(load=round(load_seconds, 3), plan=round(planned.seconds, 3)),
        evidence=evidence or EvidencePart(),
        error=_error(planned.graph),
    )


def _error(graph: Graph) -> ErrorPart:
    found = bars_of(graph)
    if found is None:
        return ErrorPart()
    kind, dtype, bars = found
    return ErrorPart(
        kind=kind,
        dtype=dtype,
        bars=[
            ErrorBarPart(
                side=bar.side, graphs=bar.graphs, within_half=math.expm1(bar.median),
                within_most=math.expm1(bar.p90), shift=math.exp(bar.shift),
                devices=list(bar.devices), against=list(bar.against),
            )
            for bar in bars.values()
        ],
    )  # fmt: skip


def _graph(graph: Graph) -> GraphPart:
    return GraphPart(
        name=graph.name,
        ops=[_op(op) for op in graph.ops],
        tensors=[
            TensorPart(name=t.name, shape=list(t.shape), dtype=t.dtype, role=t.role, bytes=t.bytes)
            for t in graph.tensors.values()
        ],
        floor_bytes=graph.floor_bytes,
        barriers=graph.barriers,
        notes=list(graph.notes),
    )


def _op(op: Op) -> OpPart:
    return OpPart(
        name=op.name, function=op.function, label=op.label, kind=op.kind, axes=op.sizes,
        reduces=sorted(op.reduces), reads=list(dict.fromkeys(read.tensor for read in op.reads)),
        writes=[write.tensor for write in op.writes], flops=op.flops, special_ops=op.special_ops,
    )  # fmt: skip


def _kernel(graph: Graph, ledger: KernelLedger) -> KernelPart:
    schedule, time = ledger.kernel.schedule, ledger.time
    sizes = {axis.name: axis.size for i in ledger.kernel.ops for axis in graph.ops[i].axes}
    is_opaque = any(graph.ops[i].is_opaque for i in ledger.kernel.ops)
    return KernelPart(
        name=ledger.name,
        ops=list(ledger.ops),
        label=ledger.label,
        schedule=SchedulePart(
            axes=[
                AxisPart(name=name, size=sizes[name], treatment=axis.treatment, tile=axis.tile)
                for name, axis in schedule.axes
                if not is_opaque
            ],
            blocks=0 if is_opaque else ledger.price.blocks, warps=schedule.warps,
            stages=schedule.pipeline.stages, step_bytes=schedule.pipeline.step_bytes,
            walks=schedule.walks, merge=schedule.merge,
        ),
        accounts=AccountsPart(**{name: _account(each) for name, each in ledger.accounts.items()}),
        work=WorkPart(
            flops=ledger.price.flops, special_ops=ledger.price.special_ops,
            recomputed=_recomputed(ledger.price), l2_bytes=ledger.price.l2_bytes,
        ),
        realisation=_realisation(ledger),
        time_us=time.total_us,
        time=TimePart(
            launch_us=time.launch_us,
            terms=[TermPart(name=name, time_us=us) for name, us in time.terms],
            latency_us=time.latency_us, combine_us=time.combine_us, layout_us=time.layout_us,
            spill_us=time.spill_us, bound=time.bound,
        ),
    )  # fmt: skip


def _realisation(ledger: KernelLedger) -> RealisationPart:
    calls, time = ledger.price.calls, ledger.time
    generated = time.realised == GENERATED
    return RealisationPart(
        kind="generated" if generated else "library",
        call=None if generated else time.realised,
        core=calls.core,
        peak_share=time.matrix_share if calls.core is not None else None,
        padding=time.padding,
        computed=1.0 if generated else calls.unmasked,
        reason=calls.why_generated if generated else "",
    )


def _recomputed(price: Price) -> float:
    """Share of the kernel's work that it does more than once."""
    once = sum(price.flops.values()) + price.special_ops - price.extra_flops
    return price.extra_flops / once if once > 0 else 0.0


def _account(account: Account) -> AccountPart:
    return AccountPart(
        value=account.value, unit=account.unit, derivation=account.derivation,
        provenance=account.provenance, limit=account.limit, veto=account.veto,
        modelled=account.modelled,
    )  # fmt: skip


def _totals(totals: Totals) -> TotalsPart:
    return TotalsPart(
        kernels=totals.kernels, bytes=totals.bytes, launches=totals.launches,
        time_us=totals.time_us,
    )  # fmt: skip


def difference_part(difference: CutDifference) -> DifferencePart:
    """What one plan saves against another."""
    return DifferencePart(
        cut=difference.cut, against=difference.against, saved_us=difference.saved_us,
        saved_by_account=difference.saved_by_account, sentence=difference.sentence,
    )  # fmt: skip


def _cut(cut: list[int], planned: Planned) -> CutPart:
    from fuseledger.planner.compare import peak_registers

    return CutPart(
        cut=cut,
        totals=_totals(planned.totals),
        registers=peak_registers(planned),
        vetoes=[
            f"{kernel.name}: {reason}" for kernel in planned.kernels for _, reason in kernel.vetoes
        ],
    )


def _verdict(verdict: EdgeVerdict) -> VerdictPart:
    moved, longer_us = verdict.bytes_delta, verdict.time_delta_us
    return VerdictPart(
        edge=EdgePart(
            tensor=verdict.tensor, producer=verdict.producer, consumers=list(verdict.consumers)
        ),
        kernels=list(verdict.kernels),
        choice="fused" if verdict.choice == "fused" else "cut",
        account=verdict.account,
        reason=verdict.reason,
        runner_up=AlternativePart(
            bytes_delta=int(moved) if math.isfinite(moved) else None,
            time_delta_us=longer_us if math.isfinite(longer_us) else None,
        ),
        flips=list(verdict.flips),
        rule=verdict.rule,
        disagreement=verdict.disagreement,
        proposal=verdict.proposal,
    )
