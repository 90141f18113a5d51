"""How far the schedule clock was off where graphs of a kind were measured.

`fits/plan_errors.json` holds it by kind of graph, dtype and side: plans against measured plans of a
compiler, one kernel an op against eager PyTorch. `benchmarks/plan_errors.py` makes the table. The
clock is fitted on none of these times but for the rates of convolutions, and each problem's are
from a fit without its fold, so every error is out of sample.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from fuseledger.clock.tables import FITS, read_table
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call

Side = Literal["plan", "one kernel an op"]
Kind = Literal[
    "convolution", "attention", "product", "barrier", "pooling", "scan", "reduction", "pointwise"
]  # fmt: skip

DTYPES = {
    "fp64": "fp64", "fp32": "fp32", "fp16": "16-bit", "bf16": "16-bit", "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}  # fmt: skip
"""dtype → the class of it that measurements are gathered by."""


class ErrorBar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """|log(measured / predicted)| over graphs of one kind, dtype and side."""

    kind: Kind
    dtype: str
    side: Side
    graphs: int
    """Graphs measured, each on one or more devices."""
    median: float
    p90: float
    shift: float
    """Median of log(measured / predicted): above 0 where it took longer than predicted."""
    devices: tuple[str, ...]
    against: tuple[str, ...]
    """Whose times they are."""


class ErrorBars(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table and where it comes from."""

    schema: str = "fuseledger/plan-errors@1"
    made_by: str
    rows: tuple[ErrorBar, ...]


@cache
def load_error_bars() -> ErrorBars:
    """The shipped table. Raises InputError naming the file where it cannot be read."""
    return read_table(FITS / "plan_errors.json", ErrorBars, "a table of errors")


def bars_of(graph: Graph) -> tuple[str, str, dict[Side, ErrorBar]] | None:
    """Kind and dtype of a graph, and the bars that were measured for such.

    None for a graph of declared accounts, whose times are not this clock's to get wrong.
    """
    if any(op.kind == "declared" for op in graph.ops):
        return None
    kind, dtype = kind_of(graph), dtype_of(graph)
    rows = [row for row in load_error_bars().rows if (row.kind, row.dtype) == (kind, dtype)]
    return kind, dtype, {row.side: row for row in sorted(rows, key=lambda row: row.side != "plan")}


def kind_of(graph: Graph) -> Kind:
    """What decides most of a graph's time.

    Where it multiplies, whichever of convolutions, attention and other products has most FLOPs;
    else the first of a barrier (an op of unknown kind), pooling (of windows that overlap), scan
    and reduction that it has.
    """
    found = [_kind(op) for op in graph.ops]
    attending = _attending(graph)
    work: dict[Kind, int] = {}
    for i, (op, kind) in enumerate(zip(graph.ops, found, strict=True)):
        if kind in ("convolution", "product"):
            kind = "attention" if i in attending else kind
            work[kind] = work.get(kind, 0) + op.flops
    if work:
        return max(work, key=lambda kind: work[kind])
    order: tuple[Kind, ...] = ("barrier", "pooling", "scan", "reduction")
    for kind in order:
        if kind in found:
            return kind
    return "pointwise"


def dtype_of(graph: Graph) -> str:
    """The class of dtype of the operands of its products, else of its largest tensor."""
    multiply = [op for op in graph.ops if op.is_contraction]
    if multiply:
        operands = [graph.tensors[read.tensor] for op in multiply for read in op.reads[:2]]
    else:
        operands = [graph.tensors[a.tensor] for op in graph.ops for a in (*op.reads, *op.writes)]
    if not operands:
        return "none"
    dtype = max(operands, key=lambda tensor: tensor.bytes).dtype
    return DTYPES.get(dtype, dtype)


def _kind(op: Op) -> Kind:
    if op.is_opaque:
        return "barrier"
    windowed = any(len(index.terms) > 1 for read in op.reads for index in read.index)
    multiplies = isinstance(op.body, Call) and op.body.function == "mul"
    if op.combine == "sum" and windowed and multiplies and len(op.reads) > 1:
        return "convolution"  # a depthwise one too, which is no contraction
    if op.is_contraction:
        return "product"
    if op.scans:
        return "scan"
    if op.combine is not None and windowed:
        return "pooling"
    return "reduction" if op.combine is not None else "pointwise"


def _attending(graph: Graph) -> set[int]:
    """Products on both sides of a softmax: positions of their ops."""
    before: list[set[int]] = []
    """Of each op, the products that it is computed from with none in between."""
    weights: list[set[int]] = []
    """Of each op, those behind whose softmax it stands, with no product in between."""
    found: set[int] = set()
    for i, op in enumerate(graph.ops):
        products = {p for j in graph.predecessors[i] for p in before[j]}
        scores = {p for j in graph.predecessors[i] for p in weights[j]}
        if op.is_contraction:
            found |= {i, *scores} if scores else set[int]()
            products, scores = {i}, set[int]()
        elif op.combine == "max_sumexp":
            scores = scores | products
        before.append(products)
        weights.append(scores)
    return found
