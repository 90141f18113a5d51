"""What PyTorch eager launches for an ATen graph: one table, a rule and a source for each op.

The kernels are those of PyTorch 2.5–2.9 on an NVIDIA GPU in train mode under `no_grad`, fp32 GEMMs
without TF32 and cuDNN convolutions with it, which are PyTorch's defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.frontends.aten_graph import AtenGraph, AtenNode, Ref
from fuseledger.peers.eager_state import VIEWS, Call, Operand, Rule, dense, dense_strides


class Entry(Struct, frozen=True):
    """A row of the table: what an op launches, and where that is written down."""

    rule: Rule
    source: str


class EagerPlan(Struct, frozen=True):
    """The kernels in launch order, and the calls that the table does not know."""

    kernels: tuple[LibraryKernel, ...]
    by_node: Mapping[str, tuple[LibraryKernel, ...]]
    """Node → its kernels; a view or an allocation has none."""
    calls: tuple[Call, ...]
    """Every call with its tensors resolved to storages, in order."""
    unknown: tuple[str, ...]
    """Ops priced as one pass over their tensors because no row of the table covers them."""

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        """Bytes read and written, before any cache."""
        return sum(kernel.bytes for kernel in self.kernels)


@cache
def table() -> dict[str, Entry]:
    """Op (`max.dim`, else the packet `max`) → its row."""
    from fuseledger.peers import eager_matrix, eager_passes

    return {**eager_passes.TABLE, **eager_matrix.TABLE}


NOTHING = frozenset(
    {"empty", "empty_like", "scalar_tensor", "new_empty", "empty_strided", "_assert_async"}
)
"""Calls that allocate, or only the host sees."""


def eager_kernels(graph: AtenGraph) -> list[LibraryKernel]:
    """Kernels of an ATen graph in the order in which eager PyTorch launches them."""
    return list(eager_plan(graph).kernels)


def eager_plan(graph: AtenGraph) -> EagerPlan:
    """The eager plan of an ATen graph: its kernels by node, and what the table does not know."""
    bound = {value.name: dense(value) for _, value in (*graph.inputs, *graph.weights)}
    kernels: list[LibraryKernel] = []
    by_node: dict[str, tuple[LibraryKernel, ...]] = {}
    unknown: dict[str, None] = {}
    calls: list[Call] = []
    for node in graph.nodes:
        call = _call(node, bound)
        calls.append(call)
        if not _run(call):
            unknown[node.op] = None
        for value, operand in zip(node.outputs, call.outputs, strict=True):
            bound[value.name] = operand
        by_node[node.name] = tuple(call.kernels)
        kernels.extend(call.kernels)
    return EagerPlan(tuple(kernels), by_node, tuple(calls), tuple(unknown))


def _call(node: AtenNode, bound: Mapping[str, Operand]) -> Call:
    tensors = {name: bound[ref] for name, ref in tensor_args(node) if ref in bound}
    call = Call(node, tensors, tuple(dense(value) for value in node.outputs), [])
    first = next(iter(tensors.values()), None)
    if first is None or not node.outputs:
        return call
    packet = node.packet
    if packet in VIEWS:
        view = VIEWS[packet]
        call.outputs = tuple(
            _fit(view(_at(call, i), first), value.shape) for i, value in enumerate(node.outputs)
        )
    elif packet.endswith("_") and not packet.endswith("__"):
        call.outputs = (first, *call.outputs[1:])
    elif packet in LIKE_INPUT and call.out.shape == first.shape and not _gappy(first):
        kept = Operand(call.out.storage, first.shape, first.strides, call.out.dtype)
        call.outputs = (kept, *call.outputs[1:])
    return call


LIKE_INPUT = frozenset(
    {"relu", "gelu", "sigmoid", "tanh", "mul", "add", "div", "sub", "exp", "silu", "hardswish"}
)
"""Pointwise calls, whose result keeps the strides of a dense permuted input."""


def _gappy(operand: Operand) -> bool:
    """Whether the view leaves holes in its storage or repeats elements."""
    order = sorted(range(len(operand.shape)), key=lambda i: -operand.strides[i])
    shape = tuple(operand.shape[i] for i in order)
    wanted = dense_strides(shape)
    return any(
        n != 1 and operand.strides[i] != step
        for i, n, step in zip(order, shape, wanted, strict=True)
    )


def _fit(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """The view with the recorded shape, dense strides where our own walk of it does not fit."""
    if len(operand.strides) != len(shape) or operand.shape != shape:
        return Operand(operand.storage, shape, dense_strides(shape), operand.dtype)
    return operand


def _at(call: Call, i: int) -> Call:
    """The call as if its i-th result were its only one."""
    if i == 0:
        return call
    node = call.node
    one = AtenNode(name=node.name, op=node.op, args=node.args, outputs=node.outputs[i : i + 1])
    return Call(one, call.tensors, call.outputs[i : i + 1], [])


def _run(call: Call) -> bool:
    """Add the call's kernels; whether the table covers it."""
    packet = call.node.packet
    if packet in VIEWS or packet in NOTHING or not call.outputs:
        return True
    if packet.endswith("_") and not packet.endswith("__"):
        packet = packet.removesuffix("_")
    rows = table()
    overload = call.node.op.rsplit(".", 1)[-1]
    entry = rows.get(f"{packet}.{overload}") or rows.get(packet)
    if entry is not None:
        entry.rule(call)
        return True
    if all(operand.elements == 0 for operand in call.outputs):
        return True
    call.launch(packet, "unknown", list(call.tensors.values()), list(call.outputs))
    return False


def tensor_args(node: AtenNode) -> Iterator[tuple[str, str]]:
    """(argument, value) of every tensor that a call takes; lists as `name[i]`."""

    def named(name: str, arg: Any) -> Iterator[tuple[str, str]]:
        if isinstance(arg, Ref):
            yield name, arg.name
        elif isinstance(arg, list):
            for i, item in enumerate(arg):  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
                yield from named(f"{name}[{i}]", item)

    for name, arg in node.args.items():
        yield from named(name, arg)
