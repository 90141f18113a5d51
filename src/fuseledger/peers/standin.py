"""A stand-in for TorchInductor's default plan, until that compiler's own plan can be asked for.

What it assumes, and no more: GEMM, convolution, attention, recurrent layers, scans and 3-D
max-pooling stay calls of a library, a convolution's bias leaves it and joins what follows; all
else is loops, which join the kernel of their latest producer where the loops agree. A reduction
keeps its row on chip up to `PERSISTENT` elements, else walks it again; one that does not run along
its rows (batch norm) ends its kernel. Sources: `torch/_inductor/lowering.py`,
`kernel/conv.py`, `scheduler.py` (`can_fuse_vertical`), `config.py`, releases 2.5 to 2.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.frontends.aten import AtenGraph
from fuseledger.peers.eager import EagerPlan, eager_plan
from fuseledger.peers.eager_state import Call

PERSISTENT = 1024
"""Longest row of a persistent reduction (`torch/_inductor/choices.py`, inner reductions)."""
EXTERN = frozenset({"gemm", "conv", "attention", "rnn", "scan", "gather"})
"""Kinds that stay library calls."""
REDUCING = frozenset({"reduce", "moments", "batch_norm", "layer_norm", "softmax"})
UNROLLED_WINDOW = 25
"""Windows of pooling up to this many elements are inlined (`lowering.py`, `fallback_*_pool`)."""


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


def standin_kernels(graph: AtenGraph, plan: EagerPlan | None = None) -> list[LibraryKernel]:
    """Kernels of the stand-in's plan in launch order."""
    plan = plan or eager_plan(graph)
    grouped = _Grouping()
    for call in plan.calls:
        kernels = plan.by_node[call.node.name]
        if not kernels:
            continue
        extern = [k for k in kernels if k.kind in EXTERN]
        if extern or _pools_apart(kernels):
            grouped.extern(extern or list(kernels))
            rest = (
                [k for k in kernels if k.kind not in EXTERN and "bias" in k.name] if extern else []
            )
        else:
            rest = list(kernels)
        if rest:
            grouped.loops(rest, call.out.elements)
    kept = {op.storage for call in plan.calls for op in call.outputs if _is_output(graph, call)}
    return grouped.kernels(kept)


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

    def __init__(self) -> None:
        self.items: list[_Group | LibraryKernel] = []
        self.made_by: dict[str, int] = {}
        """Storage → place of the item that wrote it last."""
        self.uses: dict[str, set[int]] = {}

    def extern(self, kernels: list[LibraryKernel]) -> None:
        for kernel in kernels:
            self.items.append(kernel)
            place = len(self.items) - 1
            for stream in kernel.reads:
                self.uses.setdefault(stream.storage, set()).add(place)
            for stream in kernel.writes:
                self.made_by[stream.storage] = place

    def loops(self, kernels: list[LibraryKernel], elements: int) -> None:
        """The loops of one call: where it has several kernels the reductions come first."""
        own = {s.storage for k in kernels for s in k.writes}
        reads = {s.storage: s.bytes for k in kernels for s in k.reads if s.storage not in own or _before(kernels, s)}  # noqa: E501  # fmt: skip
        writes = kernels[-1].writes
        reducing = [k for k in kernels if k.kind in REDUCING]
        window = next((k.shape["window"] for k in kernels if k.kind == "pool"), 1.0)
        domain = max(elements, int(reducing[0].shape["rows"] * reducing[0].shape["length"]) if reducing else 0)  # noqa: E501  # fmt: skip
        group = self._target(reads, domain, bool(reducing), window)
        self._add(group, reads, kernels[0].op)
        group.window = max(group.window, window)
        if not reducing:
            self._write(group, writes, elements)
            return
        shape = reducing[0].shape
        group.length, group.rows = shape["length"], shape["rows"]
        group.inner = min(group.inner, shape["inner"])
        applies = elements == domain
        across = reducing[0].kind == "batch_norm" or "batch_norm" in reducing[0].name
        if applies and across:
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

    def _target(self, reads: dict[str, int], domain: int, reducing: bool, window: float) -> _Group:
        """The group of the latest producer where the loops agree; else a new one."""
        places = [self.made_by[s] for s in reads if s in self.made_by]
        latest = self.items[max(places)] if places else None
        if isinstance(latest, _Group) and not latest.closed and window == 1.0:
            same = latest.domain == domain
            small = latest.length > 0 and domain <= latest.rows and not reducing
            if (same and not (reducing and latest.length)) or small:
                return latest
        group = _Group(len(self.items), domain)
        self.items.append(group)
        return group

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
                        "ops": float(len(item.names)),
                    },
                )
            )  # fmt: skip
        return made


def _before(kernels: list[LibraryKernel], stream: Stream) -> bool:
    """Whether the call reads the storage before it writes it: in-place ops do."""
    for kernel in kernels:
        if stream.storage in {s.storage for s in kernel.reads}:
            return True
        if stream.storage in {s.storage for s in kernel.writes}:
            return False
    return False
