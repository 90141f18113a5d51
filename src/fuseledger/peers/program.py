"""A source as peers read it: its ATen nodes where it has some, and which of our ops each became."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from fuseledger.frontends.aten import Lowering
from fuseledger.frontends.aten_graph import AtenGraph, AtenNode
from fuseledger.frontends.source import load, runs_python
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph


class Program(Struct, frozen=True, kw_only=True):
    """One source in both forms."""

    source: str
    graph: Graph
    aten: AtenGraph | None
    """None where the source is an expression or an ONNX file: peers then run our own ops."""
    made_by: Mapping[str, str]
    """Our op → the source's node that it was lowered from, or itself where there is none."""


def read_program(
    source: str, *, dtype: str = "fp16", dims: Mapping[str, int] | None = None
) -> Program:
    """The program of a SOURCE; `dtype` and `dims` as in `frontends.source.load`."""
    aten = read_aten(source)
    if aten is None:
        graph = load(source, dtype=dtype, dims=dims)
        made_by = {op.name: op.name for op in graph.ops}
        return Program(source=source, graph=graph, aten=None, made_by=made_by)
    lowering = _Traced(GraphBuilder(aten.name), aten.source)
    graph = lowering.run(aten)
    return Program(source=source, graph=graph, aten=aten, made_by=lowering.made_by)


def read_aten(source: str) -> AtenGraph | None:
    """The source's ATen nodes as it spells them; None where it has none."""
    if runs_python(source):
        from fuseledger.frontends.torch import read_factory

        return read_factory(source.strip())
    suffix = Path(source).suffix.lower()
    if suffix == ".json":
        from fuseledger.frontends.aten_json import read

        return read(source)
    if suffix == ".pt2":
        from fuseledger.frontends.aten_pt2 import read as read_archive

        return read_archive(source)
    return None


class _Traced(Lowering):
    """A lowering that remembers which node each op came from."""

    made_by: dict[str, str] = field(default_factory=dict[str, str])

    def _call(self, node: AtenNode) -> None:
        before = len(self.builder.ops)
        Lowering._call(self, node)
        for op in self.builder.ops[before:]:
            self.made_by[op.name] = node.name
