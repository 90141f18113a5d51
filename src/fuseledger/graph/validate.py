"""The rules of the IR, checked after every frontend and pass under test."""

from __future__ import annotations

from fuseledger.errors import InvalidGraph
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import COMBINES, Access, Op
from fuseledger.graph.scalar import FUNCTIONS, Call, Coord, Read, walk


def validate(graph: Graph) -> Graph:
    """The graph itself; raises InvalidGraph naming the first op or tensor that breaks a rule.

    1. Every tensor is external or written once, before it is read; outputs exist.
    2. One size per axis name across the graph.
    3. An access has one index per axis of its tensor, over axes of its op; a read that can leave
       its tensor has a fill; a write stays inside and covers its tensor once.
    4. Reduced and scanned axes are the op's own; a reduced axis is in no write; what is neither
       reduced nor scanned is in every write. Results match the combine.
    5. The body names known functions, existing reads and own axes.
    6. An opaque or declared op has no body; every other has one.
    """
    sizes: dict[str, int] = {}
    for tensor in graph.tensors.values():
        _one_size(sizes, tensor.name, [(a.name, a.size) for a in tensor.axes])
    written: set[str] = set()
    names: set[str] = set()
    for op in graph.ops:
        _expect(op.name not in names, f"{op.name}: two ops have this name")
        names.add(op.name)
        _one_size(sizes, op.name, list(op.sizes.items()))
        _expect(len(op.sizes) == len(op.axes), f"{op.name}: an axis twice")
        for access in op.reads:
            known = access.tensor in written or (
                access.tensor in graph.tensors and graph.tensors[access.tensor].is_external
            )
            _expect(known, f"{op.name} reads {access.tensor} before it is written")
            _access(graph, op, access, is_write=False)
        for access in op.writes:
            _expect(access.tensor in graph.tensors, f"{op.name} writes unknown {access.tensor}")
            _expect(access.tensor not in written, f"{access.tensor} is written twice")
            _expect(not graph.tensors[access.tensor].is_external, f"{access.tensor} is external")
            written.add(access.tensor)
            _access(graph, op, access, is_write=True)
        _reduction(op)
        _body(op)
    for name in graph.outputs:
        _expect(name in graph.tensors, f"output {name} does not exist")
        _expect(name in written or graph.tensors[name].is_external, f"output {name} is not made")
    return graph


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidGraph(message)


def _one_size(sizes: dict[str, int], owner: str, axes: list[tuple[str, int]]) -> None:
    for name, size in axes:
        _expect(sizes.setdefault(name, size) == size, f"{owner}: axis {name} has two sizes")


def _access(graph: Graph, op: Op, access: Access, *, is_write: bool) -> None:
    tensor = graph.tensors[access.tensor]
    where = f"{op.name}: {access.tensor}"
    _expect(len(access.index) == len(tensor.axes), f"{where}: one index per axis is needed")
    points = 1
    for index, axis in zip(access.index, tensor.axes, strict=True):
        _expect(all(name in op.sizes for name, _ in index.terms), f"{where}: foreign axis")
        if index.lookup is not None:
            _expect(not is_write and index.lookup < len(op.reads), f"{where}: bad lookup")
            continue
        low, high = index.bounds(op.sizes.__getitem__)
        inside = low >= 0 and high < axis.size and index.divisor == 1
        empty = 0 in op.sizes.values() or axis.size == 0
        _expect(
            inside or empty or (access.fill is not None and not is_write),
            f"{where}: {index} leaves it",
        )
        for name, _ in index.terms:
            points *= op.sizes[name]
    if is_write:
        _expect(points == tensor.elements, f"{where}: the write does not cover it once")


def _reduction(op: Op) -> None:
    own = set(op.sizes)
    _expect(op.reduces <= own and op.scans <= own, f"{op.name}: reduces a foreign axis")
    if op.is_opaque or op.kind == "declared":
        return
    _expect(bool(op.reduces or op.scans) == (op.combine is not None), f"{op.name}: combine")
    if op.combine is not None:
        _expect(op.combine in COMBINES, f"{op.name}: unknown combine {op.combine}")
        _expect(len(op.writes) <= len(COMBINES[op.combine].results), f"{op.name}: results")
    kept = {name for name in own - op.reduces if op.sizes[name] != 1}
    for access in op.writes:
        found = set(access.axes)
        _expect(not found & op.reduces, f"{op.name}: writes along a reduced axis")
        _expect(kept <= found, f"{op.name}: a result lacks an axis that is not reduced")


def _body(op: Op) -> None:
    has_none = op.is_opaque or op.kind == "declared"
    _expect((op.body is None) == has_none, f"{op.name}: body")
    if op.body is None:
        return
    for expr in walk(op.body):
        if isinstance(expr, Call):
            _expect(expr.function in FUNCTIONS, f"{op.name}: unknown function {expr.function}")
        elif isinstance(expr, Read):
            _expect(expr.slot < len(op.reads), f"{op.name}: no read {expr.slot}")
        elif isinstance(expr, Coord):
            _expect(expr.axis in op.sizes, f"{op.name}: foreign axis {expr.axis}")
