"""Random numbers in the check: the reference draws what `tl.rand` draws, from Philox in NumPy."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fuseledger.graph.axis import Index
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Call, Expr, Read, walk
from fuseledger.graph.tensor import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEYS = (0x9E3779B9, 0xBB67AE85)
SCALE = 4.6566127342e-10
"""Philox 4x32 and its scale to [0, 1), as in Salmon et al. (2011) and `triton.language.random`."""


def uniform(seed: int, count: int) -> Any:
    """The first numbers that `tl.rand(seed, point)` draws, in float64."""
    import numpy as np

    wide, low = np.uint64, np.uint64(0xFFFFFFFF)
    points = np.arange(count, dtype=wide)
    c0, c1 = points & low, points >> wide(32)
    c2 = c3 = np.zeros(count, dtype=wide)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(ROUNDS):
        first, second = wide(MULTIPLIERS[0]) * c0, wide(MULTIPLIERS[1]) * c2
        c0, c1 = (second >> wide(32)) ^ c1 ^ wide(key0), second & low
        c2, c3 = (first >> wide(32)) ^ c3 ^ wide(key1), first & low
        key0, key1 = (key0 + KEYS[0]) & 0xFFFFFFFF, (key1 + KEYS[1]) & 0xFFFFFFFF
    drawn = c0.astype(np.uint32).view(np.int32)
    found = np.where(drawn < 0, ~drawn, drawn).astype(np.float32) * np.float32(SCALE)
    return found.astype(np.float64)


def drawn(graph: Graph, seed: int) -> tuple[Graph, dict[str, Any]]:
    """The graph with what its random functions draw as inputs, and these inputs.

    Normal numbers are left as they are: their reference has no fixed meaning.
    """
    ops: list[Op] = []
    tensors = dict(graph.tensors)
    inputs: dict[str, Any] = {}
    for op in graph.ops:
        calls = [e.function for e in walk(op.body) if isinstance(e, Call)] if op.body else []
        if op.body is None or not {"uniform", "bernoulli"} & set(calls):
            ops.append(op)
            continue
        name = f"{op.name}.uniform"
        dims = tuple((axis,) for axis in op.axes)
        tensors[name] = Tensor(name=name, dims=dims, dtype="fp32", role="input")
        shape = [axis.size for axis in op.axes]
        count = 1
        for size in shape:
            count *= size
        inputs[name] = uniform(seed, count).reshape(shape)
        read = Access(tensor=name, index=tuple(Index.of(axis.name) for axis in op.axes))
        body = _with(op.body, Read(len(op.reads)))
        ops.append(replace(op, reads=(*op.reads, read), body=body))
    return replace(graph, ops=tuple(ops), tensors=tensors), inputs


def is_normal(graph: Graph) -> bool:
    """Whether the graph draws normal numbers."""
    bodies = [op.body for op in graph.ops if op.body is not None]
    return any(isinstance(e, Call) and e.function == "normal" for b in bodies for e in walk(b))


def _with(expr: Expr, number: Expr) -> Expr:
    if not isinstance(expr, Call):
        return expr
    if expr.function == "uniform":
        return number
    arguments = tuple(_with(each, number) for each in expr.args)
    if expr.function == "bernoulli":
        return Call("lt", (number, arguments[0]))
    return Call(expr.function, arguments)
