"""The JSON document of a plan, `fuseledger/plan@1`: the structs are its schema.

Every other report is rendered from this document and from nothing else. `docs/json.md` describes
each field; a test keeps the two equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from fuseledger.devices import Device

PLAN_SCHEMA = "fuseledger/plan@1"
KERNEL_SCHEMA = "fuseledger/kernel@1"

L2_BANDWIDTH = "l2_bandwidth_gbs"
"""The figure without which what tiles load again through L2 has no price."""

Number = int | float


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document: fixed fields. Its children say `frozen` again for type checkers."""


class OpPart(Part, frozen=True, kw_only=True):
    """One op of the graph."""

    name: str
    function: str
    label: str | None
    kind: Literal["loop", "move", "opaque", "declared"]
    axes: dict[str, int]
    reduces: list[str]
    reads: list[str]
    writes: list[str]
    flops: int
    special_ops: int


class TensorPart(Part, frozen=True, kw_only=True):
    """One tensor of the graph."""

    name: str
    shape: list[int]
    dtype: str
    role: Literal["input", "weight", "constant", "intermediate", "output"]
    bytes: int


class GraphPart(Part, frozen=True, kw_only=True):
    """What was planned."""

    name: str
    ops: list[OpPart]
    tensors: list[TensorPart]
    floor_bytes: int
    barriers: dict[str, int]
    notes: list[str]


class DevicePart(Part, frozen=True, kw_only=True):
    """The GPU that it was planned for."""

    name: str
    title: str
    arch: str
    unstated: list[str] = []
    """Figures that its file does not state, so that the clock leaves their terms out."""


class EvidencePart(Part, frozen=True, kw_only=True):
    """What a compiler said on the way to the plan."""

    source: Literal["modelled", "compiled"] = "modelled"
    compiler: str | None = None
    compiled: int = 0
    stable: bool = True
    changes: list[str] = []
    missing: dict[str, str] = {}
    instructions: dict[str, dict[str, int]] = {}


class OptionsPart(Part, frozen=True, kw_only=True):
    """How it was planned."""

    optimise: Literal["time", "bytes"]
    launch: Literal["eager", "queued", "graph"]
    tf32: bool


class AccountPart(Part, frozen=True, kw_only=True):
    """One account of one kernel."""

    value: Number
    unit: str
    derivation: str
    provenance: Literal["declared", "modelled", "compiled", "measured"]
    limit: Number | None
    veto: str | None
    modelled: Number | None = None


class AccountsPart(Part, frozen=True, kw_only=True):
    """The six accounts of one kernel."""

    traffic: AccountPart
    launches: AccountPart
    registers: AccountPart
    capacity: AccountPart
    parallelism: AccountPart
    epilogue: AccountPart


class AxisPart(Part, frozen=True, kw_only=True):
    """What becomes of one axis in a kernel."""

    name: str
    size: int
    treatment: Literal["grid", "loop", "whole", "split"]
    tile: int


class SchedulePart(Part, frozen=True, kw_only=True):
    """How a kernel walks its axes."""

    axes: list[AxisPart]
    blocks: int
    warps: int
    stages: int
    step_bytes: int = 64
    """Of each row of a product's operands, in one step of its pipeline."""
    walks: int
    merge: Literal["readers", "launch", "last block"] | None = None


class TermPart(Part, frozen=True, kw_only=True):
    """Time that one resource would need by itself."""

    name: str
    time_us: float


class TimePart(Part, frozen=True, kw_only=True):
    """What the clock adds up: launch + the greatest of `terms` + latency + combine + layout +
    spill."""

    launch_us: float
    terms: list[TermPart]
    latency_us: float
    combine_us: float
    layout_us: float = 0.0
    spill_us: float
    bound: str


class WorkPart(Part, frozen=True, kw_only=True):
    """What a kernel computes and loads: what the clock divides by the device's rates."""

    flops: dict[str, float]
    special_ops: float
    recomputed: float
    l2_bytes: int


class RealisationPart(Part, frozen=True, kw_only=True):
    """How a kernel is realised at its time."""

    kind: Literal["library", "generated"]
    call: str | None
    core: Literal["gemm", "conv", "attention"] | None
    peak_share: Number | None
    reason: str
    padding: Number = 1.0
    """Matrix work of its products' tiles over that of the elements they hold."""
    computed: Number = 1.0
    """Share of its points that the call computes: a mask by position hides the others."""


class KernelPart(Part, frozen=True, kw_only=True):
    """One kernel with its accounts and its time."""

    name: str
    ops: list[str]
    label: str
    schedule: SchedulePart
    accounts: AccountsPart
    work: WorkPart
    realisation: RealisationPart
    time_us: float
    time: TimePart


class TotalsPart(Part, frozen=True, kw_only=True):
    """Sums over kernels."""

    kernels: int
    bytes: int
    launches: int
    time_us: float


class PlanPart(Part, frozen=True, kw_only=True):
    """The plan: kernels in an order in which they can run."""

    kernels: list[KernelPart]
    totals: TotalsPart
    status: str


class EdgePart(Part, frozen=True, kw_only=True):
    """A tensor, the op that makes it, and the ops that read it."""

    tensor: str
    producer: str
    consumers: list[str]


class AlternativePart(Part, frozen=True, kw_only=True):
    """What the other choice would add; None where it cannot run."""

    bytes_delta: int | None
    time_delta_us: float | None


class VerdictPart(Part, frozen=True, kw_only=True):
    """Why one edge was fused or cut."""

    edge: EdgePart
    kernels: list[str]
    choice: Literal["fused", "cut"]
    account: str
    reason: str
    runner_up: AlternativePart
    flips: list[str]
    rule: Literal["fused", "cut", "neither"]
    disagreement: str | None = None
    proposal: str | None = None


class DifferencePart(Part, frozen=True, kw_only=True):
    """What a plan saves against another; `saved_by_account` adds up to `saved_us`."""

    cut: str
    against: str
    saved_us: float
    saved_by_account: dict[str, float]
    sentence: str


class CutPart(Part, frozen=True, kw_only=True):
    """One of several cuts that were compared."""

    cut: list[int]
    totals: TotalsPart
    registers: int
    vetoes: list[str]


class ErrorBarPart(Part, frozen=True, kw_only=True):
    """How far the clock was off where graphs of this kind were measured."""

    side: Literal["plan", "one kernel an op"]
    graphs: int
    within_half: float
    within_most: float
    shift: float
    devices: list[str]
    against: list[str]


class ErrorPart(Part, frozen=True, kw_only=True):
    """The kind of graph that this is, and what was measured of such."""

    kind: str = "declared"
    dtype: str = "none"
    bars: list[ErrorBarPart] = []


class SecondsPart(Part, frozen=True, kw_only=True):
    """How long the work took."""

    load: float
    plan: float


class PlanDocument(Part, frozen=True, kw_only=True):
    """All that a plan's reports say."""

    schema: Literal["fuseledger/plan@1"] = PLAN_SCHEMA
    version: str
    source: str
    graph: GraphPart
    device: DevicePart
    options: OptionsPart
    plan: PlanPart
    baseline: TotalsPart
    saved: DifferencePart
    cuts: list[CutPart]
    differences: list[DifferencePart]
    shared: list[str]
    verdicts: list[VerdictPart]
    seconds: SecondsPart
    evidence: EvidencePart = EvidencePart()
    error: ErrorPart = ErrorPart()


class KernelDocument(Part, frozen=True, kw_only=True):
    """All that an explanation of one kernel says."""

    schema: Literal["fuseledger/kernel@1"] = KERNEL_SCHEMA
    version: str
    source: str
    graph: str
    device: DevicePart
    options: OptionsPart
    number: int
    kernels: int
    kernel: KernelPart
    verdicts: list[VerdictPart]


def device_part(device: Device) -> DevicePart:
    """A device, with what the clock misses of it."""
    return DevicePart(
        name=device.name, title=device.title, arch=device.arch,
        unstated=[name for name in (L2_BANDWIDTH,) if device.figure(name) is None],
    )  # fmt: skip


def kernel_document(document: PlanDocument, number: int) -> KernelDocument:
    """The part of a plan's document that is about kernel `number`, counted from 1."""
    kernel = document.plan.kernels[number - 1]
    inside = set(kernel.ops)
    return KernelDocument(
        version=document.version, source=document.source, graph=document.graph.name,
        device=document.device, options=document.options, number=number,
        kernels=len(document.plan.kernels), kernel=kernel,
        verdicts=[v for v in document.verdicts if inside & {v.edge.producer, *v.edge.consumers}],
    )  # fmt: skip


def to_json(document: PlanDocument | KernelDocument) -> str:
    """The document as indented JSON with a final line break."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
