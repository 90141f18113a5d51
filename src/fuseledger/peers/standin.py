"""A stand-in for TorchInductor's default plan, where that compiler cannot be asked for its own.

What it assumes, and no more:

- GEMM, convolution, attention and recurrent layers stay calls of a library; pooling over wide or
  dilated windows or with 3-D indices does too. A convolution's bias leaves it.
- Pointwise results exist nowhere until a library call, a window or the caller wants them: whoever
  reads one computes it again from what is stored. Reductions store their results.
- What is stored is made in one kernel with what came before, where the loops agree: the same
  points, or the results of a reduction. A reduction keeps its row on chip up to `PERSISTENT`
  elements, else what follows over the same points walks the row again. One with too few rows is
  split over blocks, which takes two launches, and then nothing over the same points joins it.
- Where the graph's convolutions make it pay, 2-D convolutions run channels last: stored operands
  are copied to it, and results that leave the graph are written row-major.

Sources: `torch/_inductor/lowering.py`, `kernel/conv.py`, `graph.py` (`decide_layout_opt`),
`scheduler.py` (`can_fuse_vertical`), `ir.py` (`Reduction.num_splits`), releases 2.5 to 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.frontends.aten_graph import AtenGraph
from fuseledger.peers.eager import EagerPlan, eager_plan
from fuseledger.peers.eager_state import Call

PERSISTENT = 1024
"""Longest row of a persistent reduction (`torch/_inductor/choices.py`, inner reductions)."""
EXTERN = frozenset({"gemm", "conv", "attention", "rnn"})
"""Kinds that stay library calls."""
REDUCING = frozenset({"reduce", "moments", "batch_norm", "layer_norm", "softmax", "scan"})
UNROLLED_WINDOW = 25
"""Windows of pooling up to this many elements are inlined (`lowering.py`, `fallback_*_pool`)."""
SPLIT_ROWS, SPLIT_LENGTH = 264, 8192
"""A reduction along memory longer than `SPLIT_LENGTH` is split over blocks where it has fewer rows
than two an SM, of 132 (`ir.py`, `Reduction.num_splits`, `inner_reduction_splits`)."""
SPLIT_COLUMNS, SPLIT_DEPTH = 33_792, 256
"""One across memory deeper than `SPLIT_DEPTH` where it has fewer columns than two blocks of 128 an
SM (`outer_reduction_splits`)."""
LAYOUT_SPEEDUP = {"grouped": 1.358, "small": 0.783, "in_out": 0.725, "default": 0.823}
"""Time of a kind of convolution channels last, of row-major (`graph.py`, `decide_layout_opt`)."""


class _Loops(Struct):
    """Loops that run as one kernel."""

    index: int
    domain: int
    """Points of the largest loop nest."""
    reads: dict[str, int] = field(default_factory=dict[str, int])
    writes: dict[str, int] = field(default_factory=dict[str, int])
    names: dict[str, None] = field(default_factory=dict[str, None])
    rows: float = 0.0
    length: float = 0.0
    """Of the reduced rows; 0 where nothing is reduced."""
    inner: float = 1.0
    window: float = 1.0
    split: bool = False
    looped: bool = False
    scans: bool = False


class _Inlined(Struct, frozen=True):
    """A pointwise result that is stored nowhere."""

    elements: int
    leaves: dict[str, int]
    """Stored tensors that it is computed from, with their bytes."""
    names: tuple[str, ...]
    window: float = 1.0
    moves: bool = False
    """Whether it is read in another order than it is computed."""


def standin_kernels(graph: AtenGraph, plan: EagerPlan | None = None) -> list[LibraryKernel]:
    """Kernels of the stand-in's plan in launch order."""
    plan = plan or eager_plan(graph)
    lowering = _Lowering(channels_last=channels_last_pays(plan, len(graph.nodes)))
    for call in plan.calls:
        kernels = plan.by_node[call.node.name]
        if not kernels:
            continue
        extern = [k for k in kernels if k.kind in EXTERN]
        if not extern and not any(_pools_apart(k) for k in kernels):
            lowering.loops(kernels, call)
            continue
        for kernel in extern or kernels:
            lowering.extern(kernel)
        if any(k.kind == "conv" for k in extern) and "bias" in call.tensors:
            lowering.loops((_bias(call),), call)
    given = {value.name for _, value in (*graph.inputs, *graph.weights)}
    outputs = [
        op.stream
        for call in plan.calls
        for value, op in zip(call.node.outputs, call.outputs, strict=True)
        if value.name in graph.outputs or (call.node.packet.endswith("_") and op.storage in given)
    ]
    return lowering.kernels(outputs)


def _bias(call: Call) -> LibraryKernel:
    """A convolution's bias as the loops that TorchInductor makes of it."""
    out = call.out.stream
    return LibraryKernel(
        name="bias", op=_name(call), kind="pointwise",
        reads=(out, call.tensors["bias"].stream), writes=(out,), shape={"broadcast": 1.0},
    )  # fmt: skip


def _name(call: Call) -> str:
    return f"{call.node.op} ({call.node.name})"


def channels_last_pays(plan: EagerPlan, nodes: int) -> bool:
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


def _pools_apart(kernel: LibraryKernel) -> bool:
    s = kernel.shape
    if kernel.kind != "pool":
        return False
    return s["window"] > UNROLLED_WINDOW or (
        bool(s["index"]) and (s["rank"] == 3 or s["dilated"] > 0)
    )


class _Lowering:
    """Kernels and library calls so far, in launch order."""

    def __init__(self, *, channels_last: bool) -> None:
        self.channels_last = channels_last
        self.items: list[_Loops | LibraryKernel] = []
        self.inlined: dict[str, _Inlined] = {}
        self.made_by: dict[str, int] = {}
        """Stored tensor → place of the item that wrote it last."""
        self.uses: dict[str, list[int]] = {}
        """Stored tensor → places of the loops that read it."""
        self.last: set[str] = set()
        """Tensors that lie channels last."""

    # -- library calls ---------------------------------------------------------------------

    def extern(self, kernel: LibraryKernel) -> None:
        """A library call; a 2-D convolution channels last where that was decided."""
        turned = kernel.kind == "conv" and kernel.shape["rank"] == 2 and self.channels_last
        if turned:
            kernel = self._to_channels_last(kernel)
        for stream in kernel.reads:
            self.store(stream)
        self._call(kernel)

    def _call(self, kernel: LibraryKernel) -> None:
        self.items.append(kernel)
        for stream in kernel.writes:
            self.made_by[stream.storage] = len(self.items) - 1
            self.inlined.pop(stream.storage, None)

    def _to_channels_last(self, kernel: LibraryKernel) -> LibraryKernel:
        """The convolution with its operands channels last, and the copies that takes.

        A depthwise one runs in cuDNN then (`Convolution.cpp`, `use_cudnn_depthwise`).
        """
        x, weight = kernel.reads[:2]
        if x.storage in self.inlined:
            self.last.add(x.storage)
        elif x.storage not in self.last:
            x = self._turned(x)
        if kernel.shape["window"] > 1 and kernel.shape["channels_in"] > 1:
            weight = self._turned(weight)
        self.last.update(stream.storage for stream in kernel.writes)
        pipe = "tf32" if kernel.pipe == "lanes" else kernel.pipe
        shape = {**kernel.shape, "channels_last": 1.0}
        return replace(kernel, reads=(x, weight), pipe=pipe, shape=shape)

    def _turned(self, stream: Stream) -> Stream:
        copy = Stream(f"{stream.storage}.channels_last", stream.bytes)
        if copy.storage not in self.made_by:
            self._call(_transposition(stream, copy))
        self.last.add(copy.storage)
        return copy

    # -- loops -----------------------------------------------------------------------------

    def loops(self, kernels: Sequence[LibraryKernel], call: Call) -> None:
        """One call that becomes loops: an inlined result, a stored statistic, or both."""
        elements, out = call.out.elements, kernels[-1].writes
        own = {s.storage for k in kernels for s in k.writes}
        reads = {s.storage: s for k in kernels for s in k.reads if s.storage not in own or _before(kernels, s)}  # noqa: E501  # fmt: skip
        window = next((k.shape["window"] for k in kernels if k.kind == "pool"), 1.0)
        if window > 1:
            for stream in reads.values():
                self.store(stream)
        leaves, names = self._leaves(reads.values())
        names = (*names, _name(call))
        if len(call.out.shape) == 4 and any(storage in self.last for storage in (*reads, *leaves)):
            self.last.update(stream.storage for stream in out)
        reducing = [k for k in kernels if k.kind in REDUCING]
        moves = kernels[0].kind == "copy" and bool(kernels[0].shape.get("strided"))
        moves = moves or any(s in self.inlined and self.inlined[s].moves for s in reads)
        if reducing:
            shape = reducing[0].shape
            applies = elements >= shape["rows"] * shape["length"] and reducing[0].kind != "scan"
            made = (
                (Stream(f"{call.node.name}.statistics", int(8 * shape["rows"])),)
                if applies
                else out
            )
            self._reduce(reducing, leaves, names, made)
            if not applies:
                return
            leaves = {**leaves, made[0].storage: made[0].bytes}
        for stream in out:
            self.inlined[stream.storage] = _Inlined(elements, leaves, names, window, moves)

    def store(self, stream: Stream) -> None:
        """See that a tensor is in memory."""
        found = self.inlined.pop(stream.storage, None)
        if found is None:
            return
        loops = self._home(found.leaves, found.elements, found.window, moves=found.moves)
        self._add(loops, found.leaves, found.names, (stream,))
        loops.window = max(loops.window, found.window)
        loops.looped |= loops.length > PERSISTENT and found.elements > loops.rows

    def _reduce(
        self, reducing: Sequence[LibraryKernel], leaves: dict[str, int], names: tuple[str, ...],
        made: Sequence[Stream],
    ) -> None:  # fmt: skip
        shape, scans = reducing[0].shape, reducing[0].kind == "scan"
        domain = int(shape["rows"] * shape["length"])
        loops = self._home(leaves, domain, 1.0, moves=False, shape=shape)
        from_last = any(storage in self.last for storage in leaves)
        loops.rows, loops.length = shape["rows"], shape["length"]
        loops.inner = min(loops.inner, 1.0 - shape["inner"] if from_last else shape["inner"])
        loops.scans |= scans
        rows, length = (
            (SPLIT_ROWS, SPLIT_LENGTH) if shape["inner"] else (SPLIT_COLUMNS, SPLIT_DEPTH)
        )
        loops.split |= shape["rows"] < rows and shape["length"] > length and not scans
        loops.looped |= len(reducing) > 1 and shape["length"] > PERSISTENT
        self._add(loops, leaves, names, made)

    def _home(
        self, leaves: Mapping[str, int], domain: int, window: float, *, moves: bool,
        shape: Mapping[str, float] | None = None,
    ) -> _Loops:  # fmt: skip
        """The latest loops that may compute this too, else new ones; `shape` of a reduction."""
        made = [self.made_by[s] for s in leaves if s in self.made_by]
        largest = max(leaves, key=lambda storage: leaves[storage], default="")
        places = {*made[-1:], *self.uses.get(largest, ())}
        for place in sorted((p for p in places if p >= max(made, default=0)), reverse=True):
            item = self.items[place]
            if not isinstance(item, _Loops) or window > 1 or item.window > 1:
                continue
            if item.length and not shape:
                over_same = item.domain == domain and not (item.split or moves)
                if over_same or (domain <= item.rows and place in made):
                    return item
            elif (
                item.domain == domain
                and not (item.split and place in made)
                and (
                    not shape
                    or not item.length
                    or (item.rows, item.length) == (shape["rows"], shape["length"])
                )
            ):
                return item
        loops = _Loops(len(self.items), domain)
        self.items.append(loops)
        return loops

    def _add(
        self, loops: _Loops, leaves: Mapping[str, int], names: Sequence[str],
        made: Sequence[Stream],
    ) -> None:  # fmt: skip
        loops.names.update(dict.fromkeys(names))
        for storage, size in leaves.items():
            if self.made_by.get(storage) != loops.index:
                loops.reads[storage] = max(size, loops.reads.get(storage, 0))
                self.uses.setdefault(storage, []).append(loops.index)
        for stream in made:
            loops.writes[stream.storage] = stream.bytes
            self.made_by[stream.storage] = loops.index

    def _leaves(self, streams: Iterable[Stream]) -> tuple[dict[str, int], tuple[str, ...]]:
        leaves: dict[str, int] = {}
        names: dict[str, None] = {}
        for stream in streams:
            found = self.inlined.get(stream.storage)
            names.update(dict.fromkeys(found.names if found else ()))
            for storage, size in (
                found.leaves.items() if found else ((stream.storage, stream.bytes),)
            ):
                leaves[storage] = max(size, leaves.get(storage, 0))
        return leaves, tuple(names)

    # -- the plan --------------------------------------------------------------------------

    def kernels(self, outputs: Sequence[Stream]) -> list[LibraryKernel]:
        """The plan; what is made for the caller is row-major."""
        leaving = {stream.storage for stream in outputs}
        for stream in outputs:
            self.store(stream)
        made: list[LibraryKernel] = []
        for item in self.items:
            if isinstance(item, _Loops):
                made.append(self._kernel(item, leaving))
                continue
            made.append(item)
            for stream in item.writes:
                if stream.storage in leaving and stream.storage in self.last:
                    copy = Stream(f"{stream.storage}.out", stream.bytes)
                    made.append(_transposition(stream, copy))
        return made

    def _kernel(self, item: _Loops, leaving: set[str]) -> LibraryKernel:
        reads = tuple(Stream(storage, size) for storage, size in item.reads.items())
        writes = tuple(Stream(storage, size) for storage, size in item.writes.items())
        return LibraryKernel(
            name="triton_fused", op=" + ".join(item.names), kind="fused",
            reads=reads + reads if item.looped else reads, writes=writes,
            flops=float(item.domain * len(item.names)), launches=1 + item.split,
            shape={
                "rows": item.rows, "length": item.length, "inner": item.inner,
                "window": item.window, "reduces": float(item.length > 0),
                "ops": float(len(item.names)), "scans": float(item.scans),
                "split": float(item.split),
                "transposes": float(self._transposes(item, reads, writes, leaving)),
            },
        )  # fmt: skip

    def _transposes(
        self, item: _Loops, reads: Sequence[Stream], writes: Sequence[Stream], leaving: set[str]
    ) -> bool:
        """Whether it reads channels last and writes row-major, or the other way round."""
        into = {s.storage in self.last for s in reads if 8 * s.bytes >= item.domain}
        out = {
            s.storage in self.last and s.storage not in leaving
            for s in writes
            if 8 * s.bytes >= item.domain
        }
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


def _before(kernels: Sequence[LibraryKernel], stream: Stream) -> bool:
    """Whether the call reads the storage before it writes it: in-place ops do."""
    for kernel in kernels:
        if stream.storage in {s.storage for s in kernel.reads}:
            return True
        if stream.storage in {s.storage for s in kernel.writes}:
            return False
    return False
