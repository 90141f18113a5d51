"""How far the schedule clock was off where graphs of a kind were measured.

`fits/plan_errors.json` holds it by kind of graph, dtype and side: plans against measured plans of a
compiler, one kernel an op against eager PyTorch. `benchmarks/plan_errors.py` makes the table. The
clock is fitted on none of these times, so every error is out of sample.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from fuseledger.clock.library import FITS
from fuseledger.errors import InputError
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call

Side = Literal["plan", "one kernel an op"]
Kind = Literal["convolution", "attention", "product", "pooling", "scan", "reduction", "pointwise"]

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
    path = FITS / "plan_errors.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ErrorBars)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: not a table of errors: {error}") from None


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
    """What decides most of a graph's time: the first of `Kind` that one of its ops is."""
    found = {_kind(op) for op in graph.ops}
    if "convolution" in found:
        return "convolution"
    if _attends(graph):
        return "attention"
    order: tuple[Kind, ...] = ("product", "pooling", "scan", "reduction")
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


def _attends(graph: Graph) -> bool:
    """Whether a softmax's statistic lies between two products."""
    after_product: set[int] = set()
    after_softmax: set[int] = set()
    for i, op in enumerate(graph.ops):
        before = graph.predecessors[i]
        if any(j in after_softmax for j in before):
            if op.is_contraction:
                return True
            after_softmax.add(i)
        if any(j in after_product for j in before):
            after_product.add(i)
            if op.combine == "max_sumexp":
                after_softmax.add(i)
        if op.is_contraction:
            after_product.add(i)
    return False
