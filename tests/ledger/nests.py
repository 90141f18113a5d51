"""Nests of small graphs, each priced as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuseledger.devices import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.validate import validate
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.pricer import Pricer

DEVICE = load("h100-sxm")


def nest_of(
    build: Callable[..., Any],
    *shapes: tuple[int, ...],
    dtype: str = "fp16",
    ops: tuple[int, ...] | None = None,
) -> Nest:
    """The nest of `ops` (all of them by default) of `build(builder, *inputs)`."""
    b = GraphBuilder("test")
    b.output(build(b, *(b.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))), "out")
    graph = validate(b.finish())
    return analyse(graph, ops if ops is not None else tuple(range(len(graph.ops))))


def pricer_of(build: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> Pricer:
    """The pricer of that nest on an H100."""
    return Pricer(nest_of(build, *shapes, **options), DEVICE)
