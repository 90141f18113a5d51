"""Reductions and scans of the IR over JAX arrays. Only the worker and tests import this."""

# JAX is untyped here:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from math import prod
from typing import Any

from fuseledger.errors import SourceError
from fuseledger.graph.op import Op

Array = Any


def combined(op: Op, dense: Array) -> list[Array]:
    """Results of the op's combine over the axes it reduces, in the order of its kept axes."""
    names = list(op.sizes)
    dims = tuple(i for i, name in enumerate(names) if name in op.reduces)
    combine = op.combine or "sum"
    if combine in _FLAT and len(dims) > 1:
        jnp: Any = importlib.import_module("jax.numpy")
        moved = jnp.moveaxis(dense, dims, range(-len(dims), 0))
        dense = moved.reshape([*(op.sizes[name] for name in op.kept), -1])
        dims = (dense.ndim - 1,)
    return _COMBINE[combine](importlib.import_module("jax.numpy"), dense, dims)


def scanned(op: Op, dense: Array) -> Array:
    """The running combine along the axes that the op scans, outermost first."""
    lax: Any = importlib.import_module("jax.lax")
    jnp: Any = importlib.import_module("jax.numpy")
    scans = {"sum": lax.cumsum, "prod": lax.cumprod, "max": lax.cummax, "min": lax.cummin}
    if op.combine not in scans:
        raise SourceError(f"{op.name}: a running {op.combine} has no JAX form")
    dims = tuple(i for i, name in enumerate(op.sizes) if name in op.scans)
    moved = jnp.moveaxis(dense, dims, range(-len(dims), 0))
    flat = moved.reshape([*moved.shape[: moved.ndim - len(dims)], prod(moved.shape[-len(dims) :])])
    running = scans[op.combine](flat, axis=flat.ndim - 1).reshape(moved.shape)
    return jnp.moveaxis(running, range(-len(dims), 0), dims)


def _max_sumexp(jnp: Any, x: Array, dims: tuple[int, ...]) -> list[Array]:
    top = jnp.max(x, dims, keepdims=True)
    return [jnp.max(x, dims), jnp.sum(jnp.exp(x - top), dims)]


def _moments(jnp: Any, x: Array, dims: tuple[int, ...]) -> list[Array]:
    """Mean and Σ(x−mean)² in one pass, as Flax's norms take them (`use_fast_variance`)."""
    mean, mean_of_squares = jnp.mean(x, dims), jnp.mean(jnp.square(x), dims)
    count = prod(x.shape[dim] for dim in dims)
    return [mean, count * jnp.maximum(0.0, mean_of_squares - jnp.square(mean))]


_FLAT = frozenset({"argmax", "argmin", "max_index", "min_index"})
"""Combines whose result says where: along one axis at a time in JAX."""

_COMBINE: dict[str, Callable[[Any, Array, tuple[int, ...]], list[Array]]] = {
    "sum": lambda jnp, x, dims: [jnp.sum(x, dims)],
    "prod": lambda jnp, x, dims: [jnp.prod(x, dims)],
    "max": lambda jnp, x, dims: [jnp.max(x, dims)],
    "min": lambda jnp, x, dims: [jnp.min(x, dims)],
    "any": lambda jnp, x, dims: [jnp.any(x, dims)],
    "all": lambda jnp, x, dims: [jnp.all(x, dims)],
    "argmax": lambda jnp, x, dims: [jnp.argmax(x, dims[0])],
    "argmin": lambda jnp, x, dims: [jnp.argmin(x, dims[0])],
    "max_index": lambda jnp, x, dims: [jnp.max(x, dims), jnp.argmax(x, dims[0])],
    "min_index": lambda jnp, x, dims: [jnp.min(x, dims), jnp.argmin(x, dims[0])],
    "max_sumexp": _max_sumexp,
    "moments": _moments,
}
