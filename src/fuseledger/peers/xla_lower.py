"""Our own graph as a JAX function, each op as the calls that a JAX user would have written.

A sum of products is a `dot_general`, one with a window a `conv_general_dilated`, any other
reduction through a window a `reduce_window`; what is left is its body over broadcast operands, and
its reduction. Which of these an op is follows from its axes. Every op is traced under a scope of
its name, so that XLA's instructions say which op they came from. Only the worker and tests import
this.
"""

# JAX is untyped here:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from fuseledger.errors import SourceError
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Const, Coord, Expr, Read
from fuseledger.graph.tensor import DTYPE_BITS, is_float
from fuseledger.peers.jax_scalars import scalar
from fuseledger.peers.xla_read import coordinate, permuted, read
from fuseledger.peers.xla_reduce import combined, scanned
from fuseledger.peers.xla_window import convolution, is_product, product, window_reduction

Array = Any
SCOPE = "fuseledger."
"""Named scope of op number i: `fuseledger.i`."""
JAX_DTYPES = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "fp4": "float4_e2m1fn",
}  # fmt: skip
"""Our dtype → JAX's name, where they differ."""


def inputs(graph: Graph) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and JAX dtype of each tensor that exists before the graph runs and is read."""
    return {
        tensor.name: (tensor.shape, jax_dtype(tensor.dtype))
        for tensor in graph.tensors.values()
        if tensor.is_external and tensor.name in graph.consumers
    }


def jax_dtype(dtype: str) -> str:
    """JAX's name of a dtype."""
    return JAX_DTYPES.get(dtype, dtype)


def jax_function(graph: Graph) -> Callable[[Mapping[str, Array]], list[Array]]:
    """The graph as a function from its inputs by name to its outputs, in their sources' shapes.

    Tracing it raises SourceError naming an op that has no JAX form.
    """

    def run(given: Mapping[str, Array]) -> list[Array]:
        jax: Any = importlib.import_module("jax")
        values = {
            name: value.reshape([axis.size for axis in graph.tensors[name].axes])
            for name, value in given.items()
        }
        with jax.disable_jit():  # calls inside JAX's own functions keep our scope
            for number, op in enumerate(graph.ops):
                with jax.named_scope(f"{SCOPE}{number}"):
                    _run(graph, op, values)
        made = [name for name in graph.outputs if name in graph.producer]
        return [values[name].reshape(graph.tensors[name].shape) for name in made]

    return run


def _run(graph: Graph, op: Op, values: dict[str, Array]) -> None:
    if op.is_opaque or op.body is None:
        raise SourceError(f"{graph.name}: op {op.name} ({op.function}) has no JAX form")
    wide = jax_dtype(_widest(graph, op))
    results = _results(graph, op, op.body, values, wide)
    kept = list(op.kept)
    for access, (axes, value) in zip(op.writes, results, strict=False):
        whole = permuted(value, axes, kept)
        dtype = jax_dtype(graph.tensors[access.tensor].dtype)
        values[access.tensor] = _stored(graph, op, access, whole.astype(dtype), kept)


def _results(
    graph: Graph, op: Op, body: Expr, values: dict[str, Array], wide: str
) -> list[tuple[list[str], Array]]:
    """Each result, and the axes of its dimensions."""
    if op.combine == "sum" and op.reduces and not op.scans and is_product(body):
        stored = [values[access.tensor] for access in op.reads]
        found = convolution(op, stored, wide) or product(op, body, stored, wide)
        if found is not None:
            return [found]
    if len(op.reads) == 1 and op.reduces and not op.scans:
        name = op.reads[0].tensor
        found = window_reduction(
            op, body, graph.tensors[name], values[name], lambda e, reads: _value(op, e, reads)
        )
        if found is not None:
            return [found]
    reads: list[Array] = []
    for access in op.reads:
        reads.append(read(access, op, values[access.tensor], reads))
    floating = [_widened(value, wide) for value in reads]
    value = _value(op, body, floating)
    names = list(op.sizes)
    if op.scans:
        return [(names, scanned(op, _spread(op, value)))]
    if not op.reduces:
        return [(names, _spread(op, value))]
    return [(list(op.kept), result) for result in combined(op, _spread(op, value))]


def _widest(graph: Graph, op: Op) -> str:
    """The widest real dtype among what the op reads and writes: statistics of half are fp32."""
    dtypes = [graph.tensors[access.tensor].dtype for access in (*op.reads, *op.writes)]
    real = [dtype for dtype in dtypes if is_float(dtype)]
    return max(real, key=lambda dtype: DTYPE_BITS[dtype]) if real else "fp32"


def _widened(value: Array, dtype: str) -> Array:
    jnp: Any = importlib.import_module("jax.numpy")
    return value.astype(dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value


def _value(op: Op, expr: Expr, reads: list[Array]) -> Array:
    jnp: Any = importlib.import_module("jax.numpy")
    if isinstance(expr, Read):
        return reads[expr.slot]
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Coord):
        return coordinate(op, expr.axis)
    args = [_value(op, arg, reads) for arg in expr.args]
    arrays = [arg for arg in args if hasattr(arg, "dtype")]
    if not arrays:
        args[0] = jnp.asarray(args[0])
    elif all(jnp.issubdtype(arg.dtype, jnp.integer) for arg in arrays):
        args = [int(a) if isinstance(a, float) and a.is_integer() else a for a in args]
    return scalar(expr.function, args)


def _spread(op: Op, value: Array) -> Array:
    """The value at every point of the op's loops."""
    jnp: Any = importlib.import_module("jax.numpy")
    return jnp.broadcast_to(value, tuple(op.sizes.values()))


def _stored(graph: Graph, op: Op, access: Access, result: Array, kept: list[str]) -> Array:
    """The result, whose axes are `kept`, in the stored order of the tensor's axes."""
    order: list[str] = []
    for index, axis in zip(access.index, graph.tensors[access.tensor].axes, strict=True):
        inner = sorted(index.terms, key=lambda term: -term[1])
        stride = axis.size
        for name, step in inner:
            stride //= op.sizes[name]
            if step != stride:
                raise SourceError(f"{op.name}: writes {access.tensor} at {index}: no JAX form")
        if index.offset or not index.is_affine or stride != 1:
            raise SourceError(f"{op.name}: writes {access.tensor} at {index}: no JAX form")
        order += [name for name, _ in inner]
    missing = [name for name in kept if name not in order]
    if any(op.sizes[name] != 1 for name in missing) or len(set(order)) != len(order):
        raise SourceError(f"{op.name}: writes {access.tensor} twice at one place: no JAX form")
    value = permuted(result, kept, order + missing)
    return value.reshape([axis.size for axis in graph.tensors[access.tensor].axes])
