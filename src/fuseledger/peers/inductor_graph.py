"""Our own graph as an FX graph module, for sources that have no ATen nodes: expressions and ONNX.

Each op becomes the torch calls that a user would have written: `mm` or `bmm` for a contraction,
`convN d` for a convolution, else its body over broadcast operands and its reduction. What an index
map says that none of these says raises `SourceError`. Only `inductor_worker` imports this.
"""

# FX and torch are untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import chain
from math import prod
from typing import Any

from fuseledger.errors import SourceError
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Call, Const, Coord, Expr, Read
from fuseledger.peers.attention import Attention, attentions
from fuseledger.peers.inductor_attention import fused_call, is_fused
from fuseledger.peers.inductor_fx import TORCH_DTYPES, FxProgram, fake_tensor
from fuseledger.peers.torch_scalars import scalar


def graph_program(graph: Graph, mode: Any) -> FxProgram:
    """The FX form of a graph; inputs, weights and constants are its inputs.

    Raises SourceError naming an op that has no torch form here.
    """
    fx: Any = importlib.import_module("torch.fx")
    torch: Any = importlib.import_module("torch")
    made = fx.Graph()
    writer = _Writer(graph, fx, torch, made)
    inputs: list[Any] = []
    for tensor in graph.tensors.values():
        if tensor.is_external and (tensor.name in graph.consumers or tensor.name in graph.outputs):
            with mode:
                inputs.append(fake_tensor(tensor.shape, tensor.dtype))
            writer.external(tensor.name, f"in_{len(inputs)}")
    names: dict[str, list[str]] = {}
    calls = {at: call for at, call in attentions(graph).items() if is_fused(graph, call)}
    covered = {position for call in calls.values() for position in call.ops}
    for position, op in enumerate(graph.ops):
        before = {node.name for node in made.nodes}
        if position in calls:
            node = writer.attention(calls[position])
            names |= {each.name: [] for each in made.nodes if each.name not in before}
            names[node.name] = [graph.ops[each].name for each in calls[position].ops]
        elif position not in covered:
            writer.op(op)
            names |= {node.name: [op.name] for node in made.nodes if node.name not in before}
    made.output(tuple(writer.output(name) for name in graph.outputs))
    return FxProgram(fx.GraphModule(torch.nn.Module(), made), inputs, names)


class _Writer:
    """Tensors so far, each as a proxy with one dimension an axis."""

    def __init__(self, graph: Graph, fx: Any, torch: Any, made: Any) -> None:
        self.graph, self.fx, self.torch, self.made = graph, fx, torch, made
        self.tracer = fx.proxy.GraphAppendingTracer(made)
        self.values: dict[str, Any] = {}

    def external(self, name: str, label: str) -> None:
        """A tensor that exists before the graph runs."""
        proxy = self.fx.Proxy(self.made.placeholder(label), self.tracer)
        tensor = self.graph.tensors[name]
        self.values[name] = _shaped(proxy, tensor.shape, [axis.size for axis in tensor.axes])

    def output(self, name: str) -> Any:
        """The node of a stored tensor, in its source's shape."""
        tensor = self.graph.tensors[name]
        value = self.values[name]
        return _shaped(value, [axis.size for axis in tensor.axes], tensor.shape).node

    def op(self, op: Op) -> None:
        """The calls of one op."""
        if op.kind not in ("loop", "move") or op.scans or op.body is None:
            raise SourceError(f"{self.graph.name}: op {op.name} ({op.function}) has no torch form")
        if op.is_contraction:
            windowed = any(i.axis is None for read in op.reads for i in read.index)
            results = [self._conv(op) if windowed else self._matmul(op)]
            axes = list(op.kept)
        else:
            results, axes = self._loop(op)
        self._store(op, results, axes)

    def _store(self, op: Op, results: list[Any], axes: list[str]) -> None:
        for access, result in zip(op.writes, results, strict=True):
            tensor = self.graph.tensors[access.tensor]
            order = [axes.index(self._plain(op, access, i)) for i in range(len(access.index))]
            value = result if order == sorted(order) else result.permute(*order)
            dtype = getattr(self.torch, TORCH_DTYPES[tensor.dtype])
            self.values[access.tensor] = value.to(dtype)

    def attention(self, call: Attention) -> Any:
        """One call of PyTorch's fused attention, and its node: what makes a mask stands beside it.

        Its operands and its result are [batch, heads, sequence, size].
        """
        first, last = self.graph.ops[call.ops[0]], self.graph.ops[call.ops[-1]]
        (q_axes, q), (k_axes, k), (v_axes, v) = (
            self._operand(op, access)
            for op, access in ((first, call.query), (first, call.key), (last, call.value))
        )
        sizes = {**first.sizes, **last.sizes}
        inner, column = list(first.reduces), list(last.reduces)
        alone = [name for name in q_axes if name not in k_axes]
        row = alone[-1:]
        lead = [name for name in q_axes if name not in inner + row]
        out = [name for name in v_axes if name in last.kept and name not in lead]

        def heads(value: Any, axes: list[str], *trailing: list[str]) -> Any:
            here = [name for name in lead if name in axes]
            batch = here[:1] if len(here) > 1 else []
            parts = (batch, here[len(batch) :])
            shape = [prod(sizes[name] for name in part) for part in (*parts, *trailing)]
            return _permuted(value, axes, [*here, *chain(*trailing)]).reshape(*shape)

        mask = None
        if call.mask is not None:
            axes, mask = self._operand(self.graph.ops[call.ops[1]], call.mask)
            scores = [*([[]] * (2 - len(lead)) + [[name] for name in lead]), row, column]
            mask = _permuted(mask, axes, [n for part in scores for n in part if n in axes])
            mask = mask.reshape(*[prod(sizes[n] for n in part if n in axes) for part in scores])
        qkv = (
            heads(q, q_axes, row, inner), heads(k, k_axes, column, inner),
            heads(v, v_axes, column, out),
        )  # fmt: skip
        dtype = self.graph.tensors[call.query.tensor].dtype
        called = fused_call(qkv, mask, call, dtype)
        result = called[0]
        order = [*lead, *row, *out]
        result = result.reshape(*[sizes[name] for name in order])
        self._store(last, [_permuted(result, order, list(last.kept))], list(last.kept))
        return called.node

    # -- kinds of ops ----------------------------------------------------------------------

    def _loop(self, op: Op) -> tuple[list[Any], list[str]]:
        reads = [self._aligned(op, access) for access in op.reads]
        value = self._body(op, op.body, reads)
        axes = [axis.name for axis in op.axes]
        if op.combine is None:
            whole = [axis.size for axis in op.axes]
            return [value.expand(*whole) if self._narrow(op) else value], axes
        dims = [i for i, name in enumerate(axes) if name in op.reduces]
        if self._narrow(op):
            value = value.expand(*[axis.size for axis in op.axes])
        reduce = _COMBINES.get(op.combine)
        if reduce is None or (op.combine in _ONE_AXIS and len(dims) != 1):
            raise SourceError(f"{self.graph.name}: op {op.name}: {op.combine} has no torch form")
        count = prod(op.sizes[name] for name in op.reduces)
        return reduce(self.torch, value, dims, count), list(op.kept)

    def _narrow(self, op: Op) -> bool:
        """Whether an axis of the op is carried by no read."""
        carried = {name for access in op.reads for name in access.axes}
        return any(axis.name not in carried for axis in op.axes)

    def _body(self, op: Op, expr: Expr | None, reads: list[Any]) -> Any:
        if isinstance(expr, Read):
            return reads[expr.slot]
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Coord):
            place = [axis.name for axis in op.axes].index(expr.axis)
            index = self.torch.arange
            node = self.made.call_function(
                index, (op.axes[place].size,), {"device": self.torch.device("cuda", 0)}
            )
            shape = [-1 if i == place else 1 for i in range(len(op.axes))]
            return self.fx.Proxy(node, self.tracer).reshape(*shape)
        assert isinstance(expr, Call)
        args = [self._body(op, arg, reads) for arg in expr.args]
        return scalar(expr.function, args)

    def _matmul(self, op: Op) -> Any:
        (a_axes, a), (b_axes, b) = (self._operand(op, access) for access in op.reads[:2])
        sizes, kept = op.sizes, list(op.kept)
        batch = [n for n in kept if n in a_axes and n in b_axes]
        rows = [n for n in kept if n in a_axes and n not in b_axes]
        columns = [n for n in kept if n in b_axes and n not in a_axes]
        inner = [n for n in a_axes if n in op.reduces]
        groups = [prod(sizes[n] for n in part) for part in (batch, rows, inner, columns)]
        a = _permuted(a, a_axes, batch + rows + inner)
        b = _permuted(b, b_axes, batch + inner + columns)
        if batch:
            a, b = (
                a.reshape(groups[0], groups[1], groups[2]),
                b.reshape(groups[0], groups[2], groups[3]),
            )
            product = self.torch.bmm(a, b)
        else:
            a, b = a.reshape(groups[1], groups[2]), b.reshape(groups[2], groups[3])
            product = self.torch.mm(a, b)
        order = batch + rows + columns
        return _permuted(product.reshape(*[sizes[n] for n in order]), order, kept)

    def _conv(self, op: Op) -> Any:
        """A convolution whose input coordinates are `x·stride + r·dilation − padding`."""
        x, w = op.reads[:2]
        refusal = SourceError(
            f"{self.graph.name}: op {op.name} ({op.function}) reads through an index map that is "
            "no plain convolution"
        )
        windows = [i for i, index in enumerate(x.index) if index.axis is None]
        pairs: list[tuple[str, int, str, int, int]] = []
        for i in windows:
            index = x.index[i]
            moving = [t for t in index.terms if t[0] not in op.reduces]
            window = [t for t in index.terms if t[0] in op.reduces]
            if not index.is_affine or len(moving) != 1 or len(window) != 1 or index.offset > 0:
                raise refusal
            pairs.append((*moving[0], *window[0], -index.offset))
        weight_axes, weight = self._operand(op, w)
        taps = [pair[2] for pair in pairs]
        channels = [n for n in weight_axes if n in op.reduces and n not in taps]
        outputs = [n for n in weight_axes if n in op.kept]
        plain = [x.index[i].axis for i in range(len(x.index)) if i not in windows]
        groups = [n for n in outputs if n in plain]
        outputs = [n for n in outputs if n not in groups]
        batch = [n for n in plain if n is not None and n in op.kept and n not in groups]
        sizes = op.sizes

        def size(names: list[str]) -> int:
            return prod(sizes[name] for name in names)

        labels = [index.axis or f"@{i}" for i, index in enumerate(x.index)]
        spatial = [self.graph.tensors[x.tensor].axes[i].size for i in windows]
        held = _permuted(
            self.values[x.tensor], labels, batch + groups + channels + [f"@{i}" for i in windows]
        ).reshape(size(batch), size(groups) * size(channels), *spatial)
        kernel = _permuted(weight, weight_axes, groups + outputs + channels + taps).reshape(
            size(groups) * size(outputs), size(channels), *[sizes[t] for t in taps]
        )
        call = getattr(self.torch, f"conv{len(windows)}d", None)
        if call is None:
            raise refusal
        result = call(
            held, kernel, None, [p[1] for p in pairs], [p[4] for p in pairs],
            [p[3] for p in pairs], size(groups),
        )  # fmt: skip
        kept = batch + groups + outputs + [pair[0] for pair in pairs]
        for i, pair in enumerate(pairs):
            result = result.narrow(2 + i, 0, sizes[pair[0]])
        return _permuted(result.reshape(*[sizes[n] for n in kept]), kept, list(op.kept))

    # -- operands --------------------------------------------------------------------------

    def _plain(self, op: Op, access: Access, position: int) -> str:
        axis = access.index[position].axis
        if axis is None:
            raise SourceError(
                f"{self.graph.name}: op {op.name} ({op.function}) addresses {access.tensor} by "
                f"{access.index[position]}, which has no torch form here"
            )
        return axis

    def _operand(self, op: Op, access: Access) -> tuple[list[str], Any]:
        axes = [self._plain(op, access, i) for i in range(len(access.index))]
        if len(set(axes)) != len(axes):
            raise SourceError(f"{self.graph.name}: op {op.name} reads a diagonal of a tensor")
        return axes, self.values[access.tensor]

    def _aligned(self, op: Op, access: Access) -> Any:
        """An operand with one dimension for each axis of the op, 1 where it has none."""
        axes, value = self._operand(op, access)
        order = [axis.name for axis in op.axes if axis.name in axes]
        value = _permuted(value, axes, order)
        if len(order) == len(op.axes):
            return value
        return value.reshape(*[axis.size if axis.name in axes else 1 for axis in op.axes])


def _permuted(value: Any, axes: list[str], order: list[str]) -> Any:
    return value if axes == order else value.permute(*[axes.index(name) for name in order])


def _shaped(value: Any, have: Any, want: Any) -> Any:
    return value if list(have) == list(want) else value.reshape(tuple(want))


Reduce = Callable[[Any, Any, list[int], int], list[Any]]


def _max_sumexp(torch: Any, x: Any, dims: list[int], count: int) -> list[Any]:
    top = torch.amax(x, dims, keepdim=True)
    return [torch.amax(x, dims), torch.sum(torch.exp(x - top), dims)]


def _moments(torch: Any, x: Any, dims: list[int], count: int) -> list[Any]:
    variance, mean = torch.var_mean(x, dims, correction=0)
    return [mean, variance * count]


_ONE_AXIS = frozenset({"prod", "argmax", "argmin", "max_index", "min_index"})
_COMBINES: dict[str, Reduce] = {
    "sum": lambda torch, x, dims, count: [torch.sum(x, dims)],
    "max": lambda torch, x, dims, count: [torch.amax(x, dims)],
    "min": lambda torch, x, dims, count: [torch.amin(x, dims)],
    "prod": lambda torch, x, dims, count: [torch.prod(x, dims[0])],
    "any": lambda torch, x, dims, count: [torch.any(x, dims)],
    "all": lambda torch, x, dims, count: [torch.all(x, dims)],
    "argmax": lambda torch, x, dims, count: [torch.argmax(x, dims[0])],
    "argmin": lambda torch, x, dims, count: [torch.argmin(x, dims[0])],
    "max_index": lambda torch, x, dims, count: list(_pair(torch.max(x, dims[0]))),
    "min_index": lambda torch, x, dims, count: list(_pair(torch.min(x, dims[0]))),
    "max_sumexp": _max_sumexp,
    "moments": _moments,
}
"""Combine → its results in torch, over dimensions of an operand."""


def _pair(found: Any) -> tuple[Any, Any]:
    return found[0], found[1]
