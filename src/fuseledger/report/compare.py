"""The JSON document of a comparison, `fuseledger/compare@1`: plans of several systems for a graph.

Every other report of a comparison is rendered from this document. `docs/peers.md` describes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from fuseledger import __version__
from fuseledger.report.document import DevicePart, Part, device_part
from fuseledger.report.figures import bytes_in_one_unit, bytes_words, times, times_in_one_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuseledger.graph.graph import Graph
    from fuseledger.peers.priced import PricedKernel, PricedPlan
    from fuseledger.planner.plan import Planned
    from fuseledger.verdict.edges import EdgeVerdict

InOneUnit = Callable[..., tuple[str, list[str]]]

COMPARE_SCHEMA = "fuseledger/compare@1"
OURS = "fuseledger"
TITLES = {
    OURS: "fuseledger", "eager": "eager PyTorch", "inductor": "TorchInductor",
    "inductor-templates": "TorchInductor (templates)", "xla": "XLA",
}  # fmt: skip
BETTER = 0.999
"""A total is better than another below this share of it."""


class ResourcesPart(Part, frozen=True, kw_only=True):
    """What a real compiler said of a generated kernel: per thread, and per block."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


class PeerKernelPart(Part, frozen=True, kw_only=True):
    """One kernel of a plan."""

    name: str
    kind: str
    ops: list[str]
    """Our ops that it computes; empty for a copy or an update of state."""
    aten: list[str]
    reads: dict[str, int]
    writes: dict[str, int]
    bytes: int
    launches: int
    time_us: float
    provenance: str
    compiled: ResourcesPart | None
    """With `--evidence compiled`, of a kernel that the peer generates in Triton."""
    config: str | None
    """The library call, or fusion kind, tiles, warps and stages, where the compiler says so."""
    source: str | None


class PeerPart(Part, frozen=True, kw_only=True):
    """One system's plan; no totals where it gave none."""

    name: str
    version: str | None
    status: Literal["planned", "failed", "timeout", "unavailable"]
    reason: str | None
    launches: int | None
    bytes: int | None
    time_us: float | None
    seconds: float
    kernels: list[PeerKernelPart]
    left_out: list[str]
    notes: list[str]


class DifferencePart(Part, frozen=True, kw_only=True):
    """A tensor that some systems keep on chip and others write to memory."""

    tensor: str
    producer: str
    consumers: list[str]
    bytes: int
    fused_by: list[str]
    cut_by: list[str]
    account: str
    """The account that speaks for our choice."""
    reason: str


class CompareDocument(Part, frozen=True, kw_only=True):
    """Plans side by side."""

    schema: Literal["fuseledger/compare@1"] = COMPARE_SCHEMA
    version: str
    source: str
    graph: str
    ops: list[str]
    device: DevicePart
    optimise: Literal["time", "bytes"]
    floor_bytes: int
    headline: str
    peers: list[PeerPart]
    differences: list[DifferencePart]


def compare_document(
    planned: Planned,
    peers: Sequence[PricedPlan],
    verdicts: Sequence[EdgeVerdict],
    *,
    source: str,
) -> CompareDocument:
    """The document of our plan beside those of peers; `verdicts` are the edges of our plan."""
    graph, device = planned.graph, planned.device
    parts = [_ours(planned), *(_peer(graph, peer) for peer in peers)]
    return CompareDocument(
        version=__version__,
        source=source,
        graph=graph.name,
        ops=[op.name for op in graph.ops],
        device=device_part(device),
        optimise=planned.options.objective,
        floor_bytes=graph.floor_bytes,
        headline=headline(parts),
        peers=parts,
        differences=_differences(planned, peers, verdicts),
    )


def to_json(document: CompareDocument) -> str:
    """The document as indented JSON with a final line break."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def headline(peers: Sequence[PeerPart]) -> str:
    """Who moves fewer bytes and who is faster; a better peer is named first."""
    ours, answered = peers[0], [peer for peer in peers[1:] if peer.status == "planned"]
    if not answered:
        missing = "; ".join(f"{TITLES[p.name]}: {p.reason}" for p in peers[1:])
        return f"No peer gave a plan: {missing}"
    best = min(answered, key=lambda peer: peer.bytes or 0)
    fastest = min(answered, key=lambda peer: peer.time_us or 0.0)
    sentences = [
        _sentence(ours, best, "bytes", "moves fewer bytes", bytes_in_one_unit),
        _sentence(ours, fastest, "time_us", "is faster by our clock", times_in_one_unit),
    ]
    losses = [words for lost, words in sentences if lost]
    wins = [words for lost, words in sentences if not lost]
    return " ".join([*losses, *wins])


def _sentence(
    ours: PeerPart, other: PeerPart, field: str, verb: str, show: InOneUnit
) -> tuple[bool, str]:
    """Whether the peer is better, and the sentence."""
    mine, theirs = float(getattr(ours, field)), float(getattr(other, field))
    unit, (my_words, their_words) = show(mine, theirs)
    name = TITLES[other.name]
    if theirs < BETTER * mine:
        return True, (
            f"{name[0].upper()}{name[1:]}'s plan {verb}: {their_words} {unit} against our "
            f"{my_words} {unit} ({times(mine, theirs)})."
        )
    if mine < BETTER * theirs:
        return False, (
            f"Our plan {verb}: {my_words} {unit} against {their_words} {unit} of "
            f"{name} ({times(theirs, mine)})."
        )
    quantity = "bytes" if field == "bytes" else "time by our clock"
    return False, f"Our plan and {name}'s tie in {quantity}: {my_words} {unit}."


def _ours(planned: Planned) -> PeerPart:
    graph, totals = planned.graph, planned.totals
    kernels: list[PeerKernelPart] = []
    for ledger in planned.kernels:
        traffic = ledger.accounts["traffic"]
        inside = [graph.ops[i] for i in ledger.kernel.ops]
        made = {write.tensor for op in inside for write in op.writes}
        reads = {r.tensor for op in inside for r in op.reads} - made
        leaving = {
            name for name in made
            if name in graph.outputs or set(graph.consumers.get(name, ())) - set(ledger.kernel.ops)
        }  # fmt: skip
        kernels.append(
            PeerKernelPart(
                name=ledger.name, kind="planned", ops=list(ledger.ops), aten=[],
                reads={n: graph.touched_bytes(n) for n in sorted(reads)},
                writes={n: graph.tensors[n].bytes for n in sorted(leaving)},
                bytes=int(traffic.value), launches=int(ledger.accounts["launches"].value),
                time_us=ledger.time.total_us, provenance="our clock",
                compiled=None, config=None, source=None,
            )
        )  # fmt: skip
    return PeerPart(
        name=OURS, version=__version__, status="planned", reason=None, launches=totals.launches,
        bytes=totals.bytes, time_us=totals.time_us, seconds=round(planned.seconds, 3),
        kernels=kernels, left_out=[], notes=[planned.status],
    )  # fmt: skip


def _peer(graph: Graph, peer: PricedPlan) -> PeerPart:
    plan = peer.plan
    planned = plan.status == "planned"
    return PeerPart(
        name=plan.name, version=plan.version, status=plan.status, reason=plan.reason,
        launches=plan.launches if planned else None, bytes=plan.bytes if planned else None,
        time_us=peer.time_us if planned else None, seconds=round(plan.seconds, 3),
        kernels=[_kernel(graph, kernel) for kernel in peer.kernels],
        left_out=list(plan.left_out), notes=list(plan.notes),
    )  # fmt: skip


def _kernel(graph: Graph, priced: PricedKernel) -> PeerKernelPart:
    kernel = priced.kernel
    resources = kernel.resources
    return PeerKernelPart(
        name=kernel.name, kind=kernel.kind, ops=[graph.ops[i].name for i in priced.ops],
        aten=list(kernel.aten), reads=kernel.reads, writes=kernel.writes, bytes=kernel.bytes,
        launches=kernel.launches, time_us=priced.time_us, provenance=priced.provenance,
        compiled=resources and ResourcesPart(
            registers=resources.registers, spilled_bytes=resources.spilled_bytes,
            shared_bytes=resources.shared_bytes,
        ),
        config=kernel.config, source=kernel.source,
    )  # fmt: skip


def _differences(
    planned: Planned, peers: Sequence[PricedPlan], verdicts: Sequence[EdgeVerdict]
) -> list[DifferencePart]:
    """Edges on which the systems disagree, in the order of the graph."""
    graph = planned.graph
    places = {op.name: i for i, op in enumerate(graph.ops)}
    homes = {OURS: dict(planned.plan.home)}
    homes |= {peer.plan.name: peer.home for peer in peers if peer.plan.status == "planned"}
    found: list[DifferencePart] = []
    for verdict in verdicts:
        ends = [places[verdict.producer], *(places[name] for name in verdict.consumers)]
        fused: list[str] = []
        cut: list[str] = []
        for name, home in homes.items():
            if all(end in home for end in ends):
                (fused if len({home[end] for end in ends}) == 1 else cut).append(name)
        if not (fused and cut):
            continue
        size = graph.tensors[verdict.tensor].bytes
        found.append(
            DifferencePart(
                tensor=verdict.tensor, producer=verdict.producer,
                consumers=list(verdict.consumers), bytes=size, fused_by=fused, cut_by=cut,
                account=verdict.account, reason=_reason(verdict, size, OURS in fused),
            )
        )  # fmt: skip
    return found


def _reason(verdict: EdgeVerdict, size: int, we_fuse: bool) -> str:
    if we_fuse:
        return f"a cut writes {bytes_words(size)} and reads it again; fused: {verdict.reason}"
    return f"we cut: {verdict.reason}"
