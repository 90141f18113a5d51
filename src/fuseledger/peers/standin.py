"""A stand-in for TorchInductor's default plan, where that compiler cannot be asked for its own.

What it assumes, and no more: GEMM, convolution, attention and recurrent layers stay calls of a
library; pooling over wide windows or with 3-D indices does too. A convolution's bias leaves it and
joins what follows. Where the graph's convolutions make it pay, 2-D convolutions run channels last:
their inputs are copied to it, results that leave the graph are written back row-major. All else is
loops, which join the kernel of their latest producer where the loops agree. A reduction keeps its
row on chip up to `PERSISTENT` elements, else walks it again; one with too few rows is split over
blocks, which takes two launches, ends its kernel, and so does batch norm.

Sources: `torch/_inductor/lowering.py`, `kernel/conv.py`, `graph.py` (`decide_layout_opt`),
`scheduler.py` (`can_fuse_vertical`), `ir.py` (`Reduction.num_splits`), releases 2.5 to 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.frontends.aten import AtenGraph
from fuseledger.peers.eager import EagerPlan, eager_plan
from fuseledger.peers.eager_state import Call

PERSISTENT = 1024
"""Longest row of a persistent reduction (`torch/_inductor/choices.py`, inner reductions)."""
EXTERN = frozenset({"gemm", "conv", "attention", "rnn"})
"""Kinds that stay library calls."""
REDUCING = frozenset({"reduce", "moments", "batch_norm", "layer_norm", "softmax", "scan"})
UNROLLED_WINDOW = 25
"""Windows of pooling up to this many elements are inlined (`lowering.py`, `fallback_*_pool`)."""
SPLIT_ROWS, SPLIT_COLUMNS, SPLIT_LENGTH = 264, 33_792, 8192
"""A reduction longer than `SPLIT_LENGTH` is split over blocks where it has fewer rows than two an SM
(of 132), or two blocks of 128 columns an SM (`ir.py`, `Reduction.num_splits`)."""
LAYOUT_SPEEDUP = {"grouped": 1.358, "small": 0.783, "in_out": 0.725, "default": 0.823}
"""Time of a kind of convolution channels last, of row-major (`graph.py`, `decide_layout_opt`)."""


@dataclass(slots=True)
class _Group:
    """Loops that run as one kernel."""

    index: int
    domain: int
    """Elements of the largest loop nest."""
    reads: dict[str, int] = field(default_factory=dict[str, int])
    writes: dict[str, int] = field(default_factory=dict[str, int])
    names: list[str] = field(default_factory=list[str])
    length: float = 0.0
    rows: float = 0.0
    inner: float = 1.0
    window: float = 1.0
    closed: bool = False
    """A reduction across blocks ended it."""
    looped: bool = False
    split: bool = False
    """Its reduction is made by several blocks a row, and a second launch."""
    scans: bool = False


def standin_kernels(graph: AtenGraph, plan: EagerPlan | None = None) -> list[LibraryKernel]:
    """Kernels of the stand-in's plan in launch order."""
    plan = plan or eager_plan(graph)
    grouped = _Grouping(channels_last=_channels_last_pays(plan, len(graph.nodes)))
    for call in plan.calls:
        kernels = plan.by_node[call.node.name]
        if not kernels:
            continue
        extern = [k for k in kernels if k.kind in EXTERN]
        if not extern and not _pools_apart(kernels):
            grouped.loops(list(kernels), call)
            continue
        grouped.extern(extern or list(kernels))
        if any(k.kind == "conv" for k in extern) and "bias" in call.tensors:
            grouped.loops([_bias(call)], call)
    kept = {op.storage for call in plan.calls for op in call.outputs if _is_output(graph, call)}
    return grouped.kernels(kept)


def _bias(call: Call) -> LibraryKernel:
    """A convolution's bias as the loops that TorchInductor makes of it."""
    out = call.out.stream
    return LibraryKernel(
        name="bias", op=f"{call.node.op} ({call.node.name})", kind="pointwise",
        reads=(out, call.tensors["bias"].stream), writes=(out,), flops=float(call.out.elements),
        shape={"broadcast": 1.0},
    )  # fmt: skip


def _channels_last_pays(plan: EagerPlan, nodes: int) -> bool:
    """Whether 2-D convolutions run channels last: FLOPs weighted by what it was seen to gain."""
    before = after = 0.0
    convolutions = [k for k in plan.kernels if k.kind == "conv"]
    if nodes >= 300 * len(convolutions):
        return False
    for kernel in convolutions:
        s = kernel.shape
        # the weight's first two dimensions; a transposed convolution's are (in, out / groups)
        first, second = s["channels_out"] * s["groups"], s["channels_in"]
        if s["transposed"]:
            first, second = s["channels_in"] * s["groups"], s["channels_out"]
        if s["groups"] > 1 and second > 1:
            kind = "grouped"
        elif first <= 64 and second <= 64:
            kind = "small"
        elif first * 2 <= second and s["window"] > 1:
            kind = "in_out"
        else:
            kind = "default"
        before += kernel.flops
        after += kernel.flops * LAYOUT_SPEEDUP[kind]
    return after <= before


def _pools_apart(kernels: tuple[LibraryKernel, ...]) -> bool:
    return any(
        k.kind == "pool"
        and (k.shape["window"] > UNROLLED_WINDOW or (k.shape["rank"] == 3 and k.shape["index"]))
        for k in kernels
    )


def _is_output(graph: AtenGraph, call: Call) -> bool:
    return any(value.name in graph.outputs for value in call.node.outputs)


class _Grouping:
    """Groups and library calls, in launch order."""

    def __init__(self, *, channels_last: bool) -> None:
        self.channels_last = channels_last
        self.items: list[_Group | LibraryKernel] = []
        self.made_by: dict[str, int] = {}
        """Storage → place of the item that wrote it last."""
        self.uses: dict[str, set[int]] = {}
        self.last: set[str] = set()
        """Storages that lie channels last."""

    def extern(self, kernels: Sequence[LibraryKernel]) -> None:
        """Library calls; 2-D convolutions channels last where that was decided."""
        for kernel in kernels:
            if kernel.kind == "conv" and kernel.shape["rank"] == 2 and self.channels_last:
                kernel = self._to_channels_last(kernel)
            self._call(kernel)

    def _call(self, kernel: LibraryKernel) -> None:
        self.items.append(kernel)
        place = len(self.items) - 1
        for stream in kernel.reads:
            self.uses.setdefault(stream.storage, set()).add(place)
        for stream in kernel.writes:
            self.made_by[stream.storage] = place

    def _to_channels_last(self, kernel: LibraryKernel) -> LibraryKernel:
        """The convolution with its operands channels last, and the copies that takes.

        A depthwise one runs in cuDNN then (`Convolution.cpp`, `use_cudnn_depthwise`).
        """
        x, weight = kernel.reads[:2]
        if x.storage not in self.last:
            maker = self.items[self.made_by[x.storage]] if x.storage in self.made_by else None
            if isinstance(maker, _Group) and not self.uses.get(x.storage):
                self.last.add(x.storage)
            else:
                x = self._copy(x, f"{x.storage}.channels_last")
        if kernel.shape["window"] > 1 and kernel.shape["channels_in"] > 1:
            weight = self._copy(weight, f"{weight.storage}.channels_last")
        self.last.update(stream.storage for stream in kernel.writes)
        pipe = "tf32" if kernel.pipe == "lanes" else kernel.pipe
        shape = {**kernel.shape, "channels_last": 1.0}
        return replace(kernel, reads=(x, weight), pipe=pipe, shape=shape)

    def _copy(self, stream: Stream, storage: str) -> Stream:
        copy = Stream(storage, stream.bytes)
        if storage not in self.made_by:
            self._call(_transposition(stream, copy))
        self.last.add(storage)
        return copy

    def loops(self, kernels: list[LibraryKernel], call: Call) -> None:
        """The loops of one call: where it has several kernels the reductions come first."""
        elements = call.out.elements
        own = {s.storage for k in kernels for s in k.writes}
        reads = {s.storage: s.bytes for k in kernels for s in k.reads if s.storage not in own or _before(kernels, s)}  # noqa: E501  # fmt: skip
        writes = kernels[-1].writes
        reducing = [k for k in kernels if k.kind in REDUCING]
        window = next((k.shape["window"] for k in kernels if k.kind == "pool"), 1.0)
        domain = max(elements, int(reducing[0].shape["rows"] * reducing[0].shape["length"]) if reducing else 0)  # noqa: E501  # fmt: skip
        shape = reducing[0].shape if reducing else {}
        moves = kernels[0].kind == "copy" and bool(kernels[0].shape.get("strided"))
        group = self._target(reads, domain, shape, window, moves=moves)
        self._add(group, reads, kernels[0].op)
        group.window = max(group.window, window)
        from_last = any(storage in self.last for storage in reads)
        if from_last and len(call.out.shape) == 4:
            self.last.update(stream.storage for stream in writes)
        if not reducing:
            walked_again = group.length > PERSISTENT and elements > group.rows and not group.scans
            group.looped = group.looped or walked_again
            self._write(group, writes, elements)
            return
        inner = 1.0 - shape["inner"] if from_last else shape["inner"]
        group.length, group.rows = shape["length"], shape["rows"]
        group.inner = min(group.inner, inner)
        group.scans = reducing[0].kind == "scan"
        applies = elements == domain and not group.scans
        few = shape["rows"] < (SPLIT_ROWS if inner else SPLIT_COLUMNS)
        group.split = few and shape["length"] > SPLIT_LENGTH and not group.scans
        if applies and (group.split or reducing[0].kind == "batch_norm"):
            group.closed = True
            apply = _Group(len(self.items), domain)
            self.items.append(apply)
            for storage, size in reads.items():
                place = self.made_by.get(storage)
                if place == group.index:
                    group.writes[storage] = size
                self._read(apply, storage, size)
            apply.names.append(kernels[-1].op)
            group = apply
        elif applies and shape["length"] > PERSISTENT:
            group.looped = True
        self._write(group, writes, elements)

    def _target(
        self, reads: dict[str, int], domain: int, shape: Mapping[str, float], window: float, *,
        moves: bool,
    ) -> _Group:  # fmt: skip
        """The group of the latest producer, or one that reads the same, where the loops agree.

        `shape` is that of a reduction and empty for other loops; `moves`: reads in another order
        than it writes, which fuses with what can be computed anywhere, not with a reduction.
        """
        places = [self.made_by[s] for s in reads if s in self.made_by]
        latest = self.items[max(places)] if places else self._beside(reads, domain, shape)
        if isinstance(latest, _Group) and not latest.closed and window == 1.0:
            same = latest.domain == domain and not (latest.length and (moves or latest.split))
            small = latest.length > 0 and domain <= latest.rows and not shape
            alike = not shape or not latest.length or (
                not places and (latest.rows, latest.length) == (shape["rows"], shape["length"])
            )
            if (same and alike) or small:
                return latest
        group = _Group(len(self.items), domain)
        self.items.append(group)
        return group

    def _beside(
        self, reads: dict[str, int], domain: int, shape: Mapping[str, float]
    ) -> _Group | None:
        """A group with the same loops that reads the largest of these inputs too."""
        if not reads:
            return None
        largest = max(reads, key=lambda storage: reads[storage])
        for place in sorted(self.uses.get(largest, ()), reverse=True):
            item = self.items[place]
            if isinstance(item, _Group) and item.domain == domain and bool(item.length) == bool(shape):
                return item
        return None

    def _add(self, group: _Group, reads: dict[str, int], op: str) -> None:
        group.names.append(op)
        for storage, size in reads.items():
            if self.made_by.get(storage) != group.index:
                self._read(group, storage, size)

    def _read(self, group: _Group, storage: str, size: int) -> None:
        group.reads[storage] = max(size, group.reads.get(storage, 0))
        self.uses.setdefault(storage, set()).add(group.index)

    def _write(self, group: _Group, writes: tuple[Stream, ...], elements: int) -> None:
        for stream in writes:
            group.writes[stream.storage] = stream.bytes
            self.made_by[stream.storage] = group.index
        group.domain = max(group.domain, elements)

    def kernels(self, outputs: set[str]) -> list[LibraryKernel]:
        """The plan: what nobody outside a group reads is not written."""
        made: list[LibraryKernel] = []
        for item in self.items:
            if isinstance(item, LibraryKernel):
                made.append(item)
                for stream in item.writes:
                    if stream.storage in outputs and stream.storage in self.last:
                        made.append(_transposition(stream, Stream(f"{stream.storage}.out", stream.bytes)))
                continue
            writes = [
                Stream(storage, size)
                for storage, size in item.writes.items()
                if storage in outputs or any(use > item.index for use in self.uses.get(storage, ()))
            ]
            if not writes and not item.length:
                continue
            reads = [Stream(storage, size) for storage, size in item.reads.items()]
            if item.looped:
                reads += reads
            made.append(
                LibraryKernel(
                    name="triton_fused", op=" + ".join(item.names), kind="fused",
                    reads=tuple(reads), writes=tuple(writes),
                    flops=float(item.domain * len(item.names)),
                    shape={
                        "rows": item.rows, "length": item.length, "inner": item.inner,
                        "window": item.window, "reduces": float(item.length > 0),
                        "ops": float(len(item.names)), "scans": float(item.scans),
                        "split": float(item.split),
                        "transposes": float(self._transposes(item, writes, outputs)),
                    },
                    launches=1 + item.split,
                )
            )  # fmt: skip
        return made


    def _transposes(self, item: _Group, writes: Sequence[Stream], outputs: set[str]) -> bool:
        """Whether it reads channels last and writes row-major, or the other way round."""
        def is_large(stream: Stream) -> bool:
            return 8 * stream.bytes >= item.domain

        reads = [Stream(storage, size) for storage, size in item.reads.items()]
        into = {s.storage in self.last for s in reads if is_large(s)}
        out = {s.storage in self.last and s.storage not in outputs for s in writes if is_large(s)}
        return bool(into) and bool(out) and into != out


def _transposition(source: Stream, copy: Stream) -> LibraryKernel:
    """A copy that turns row-major to channels last, or back."""
    return LibraryKernel(
        name="triton_fused (layout)", op="layout", kind="fused", reads=(source,), writes=(copy,),
        flops=source.bytes / 4, shape={
            "rows": 0.0, "length": 0.0, "inner": 1.0, "window": 1.0, "reduces": 0.0, "ops": 1.0,
            "scans": 0.0, "split": 0.0, "transposes": 1.0,
        },
    )  # fmt: skip


def _before(kernels: list[LibraryKernel], stream: Stream) -> bool:
    """Whether the call reads the storage before it writes it: in-place ops do."""
    for kernel in kernels:
        if stream.storage in {s.storage for s in kernel.reads}:
            return True
        if stream.storage in {s.storage for s in kernel.writes}:
            return False
    return False
