"""From a draft to a graph: drop dead ops, refine reshaped dimensions, name axes across the graph.

1. *Refine.* A stored dimension that one op writes as `d` and another reads as `h·64 + e` is split
   into the common refinement of all its factorings, and so is every op axis that spans several
   pieces, until nothing changes.
2. *Unify.* Op axes that meet in a coordinate of a tensor are one axis. A union that would make two
   axes of one op the same is refused (self-attention reads one sequence twice, a square linear
   layer's output meets its own input at the residual), so near edges, the likeliest to be fused,
   go before far ones, and external tensors last.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from fuseledger.graph.axis import Axis, Index, common_refinement, mixed_radix
from fuseledger.graph.draft import DraftAccess, DraftOp
from fuseledger.graph.graph import Graph, Result
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Call, Const, Coord, Expr, Read, rename
from fuseledger.graph.tensor import Tensor
from fuseledger.graph.view import View, fresh_axis

if TYPE_CHECKING:
    from fuseledger.graph.builder import GraphBuilder

Place = tuple[str, int]
"""A logical dimension of a stored tensor."""


def canonical_graph(builder: GraphBuilder) -> Graph:
    """The validated graph of a builder's ops; see the module for the two steps."""
    ops = _live(builder)
    pieces = _Refinement(builder, ops).run()
    names = _unify(builder, ops, pieces)
    return _freeze(builder, ops, pieces, names)


def _live(builder: GraphBuilder) -> list[DraftOp]:
    """Ops that an output depends on, with results that nobody reads removed."""
    needed = {view.base for _, view in builder.results}
    kept: list[DraftOp] = []
    for op in reversed(builder.ops):
        if not any(write.tensor in needed for write in op.writes):
            continue
        kept.append(op)
        needed.update(read.tensor for read in op.reads)
    kept.reverse()
    return kept


def _accesses(ops: list[DraftOp]) -> Iterator[tuple[DraftOp, DraftAccess]]:
    for op in ops:
        for access in (*op.reads, *op.writes):
            yield op, access


def _factoring(coord: Index, op: DraftOp, size: int) -> tuple[Axis, ...] | None:
    """The axes whose mixed-radix product the coordinate is, outermost first, or None."""
    if not coord.is_affine or coord.offset:
        return None
    sizes = {axis.name: axis.size for axis in op.axes}
    ordered = sorted(coord.terms, key=lambda term: -term[1])
    axes = tuple(Axis(name, sizes[name]) for name, _ in ordered)
    if prod(axis.size for axis in axes) != size or mixed_radix(axes).terms != tuple(ordered):
        return None
    return axes


class _Refinement:
    """Splits dimensions and op axes until every plain access agrees with its tensor."""

    def __init__(self, builder: GraphBuilder, ops: list[DraftOp]) -> None:
        self.builder = builder
        self.ops = ops
        self.users: dict[str, list[tuple[DraftOp, DraftAccess]]] = {}
        for op, access in _accesses(ops):
            self.users.setdefault(access.tensor, []).append((op, access))

    def run(self) -> dict[Place, tuple[int, ...]]:
        """Sizes of the pieces of each dimension, outermost first."""
        pieces: dict[Place, tuple[int, ...]] = {}
        pending = dict.fromkeys(self.users)
        while pending:
            tensor = next(iter(pending))
            del pending[tensor]
            for dim, size in enumerate(self.builder.tensors[tensor].shape):
                pieces[tensor, dim] = self._pieces(tensor, dim, size)
                if len(pieces[tensor, dim]) > 1:
                    for touched in self._split_axes(tensor, dim, pieces[tensor, dim]):
                        pending[touched] = None
        return pieces

    def _pieces(self, tensor: str, dim: int, size: int) -> tuple[int, ...]:
        if size == 1:
            return ()
        plain: list[tuple[int, ...]] = [(size,)]
        other: list[tuple[DraftOp, Index]] = []
        for op, access in self.users[tensor]:
            axes = _factoring(access.coords[dim], op, size)
            if axes is None or op.kind == "opaque":
                other.append((op, access.coords[dim]))
            else:
                plain.append(tuple(axis.size for axis in axes))
        found = common_refinement(plain) if size else None
        if found is None:
            return (size,)
        if any(op.kind != "opaque" and _digits(coord, found, op) is None for op, coord in other):
            return (size,)
        return found

    def _split_axes(self, tensor: str, dim: int, pieces: tuple[int, ...]) -> Iterator[str]:
        """Split op axes that span several pieces; yields the tensors whose accesses changed."""
        for op, access in self.users[tensor]:
            axes = _factoring(access.coords[dim], op, prod(pieces))
            if axes is None:
                continue
            rest = list(pieces)
            for axis in axes:
                mine: list[int] = []
                while prod(mine) < axis.size:
                    mine.append(rest.pop(0))
                if len(mine) > 1:
                    _split_axis(op, axis, mine)
                    yield from (a.tensor for a in (*op.reads, *op.writes))


def _split_axis(op: DraftOp, axis: Axis, sizes: list[int]) -> None:
    parts = [fresh_axis(size) for size in sizes]
    index = mixed_radix(parts)
    position = [a.name for a in op.axes].index(axis.name)
    op.axes[position : position + 1] = parts
    hint = op.hints.get(axis.name)
    for part in parts:
        if hint is not None:
            op.hints[part.name] = hint
    for group in (op.reduces, op.scans):
        if axis.name in group:
            group.remove(axis.name)
            group.update(part.name for part in parts)
    for access in (*op.reads, *op.writes):
        access.coords = [coord.substitute({axis.name: index}) for coord in access.coords]
    if op.body is not None:
        op.body = rename(
            op.body,
            slots=Read,
            axes=lambda name: _as_expr(index) if name == axis.name else Coord(name),
        )


def _as_expr(index: Index) -> Expr:
    total: Expr = Const(index.offset)
    for name, stride in index.terms:
        total = Call("add", (total, Call("mul", (Coord(name), Const(stride)))))
    return total


def _digits(coord: Index, pieces: tuple[int, ...], op: DraftOp) -> list[Index] | None:
    """The coordinate as one index per piece (no carries between them), or None."""
    if len(pieces) == 1:
        return [coord]
    if not coord.is_affine:
        return None
    sizes = {axis.name: axis.size for axis in op.axes}
    digits: list[Index] = []
    rest: list[tuple[str, int]] = list(coord.terms)
    offset = coord.offset
    inner = prod(pieces)
    for size in pieces:
        inner //= size
        mine = [(name, stride) for name, stride in rest if stride % inner == 0]
        rest = [term for term in rest if term not in mine]
        digit_offset, offset = divmod(offset, inner)
        digit = Index(tuple((name, stride // inner) for name, stride in mine), digit_offset)
        low, high = digit.bounds(sizes.__getitem__)
        if low < 0 or high >= size:
            return None
        digits.append(digit)
    return digits if not rest and not offset else None


# -- axes across the graph ---------------------------------------------------------------------


class _Classes:
    """Union-find over op axes and tensor coordinates; no class holds two axes of one op."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}
        self.members: dict[str, dict[str, str]] = {}
        self.hint: dict[str, str] = {}

    def add(self, node: str, op: str | None, hint: str | None) -> None:
        self.parent[node] = node
        self.members[node] = {op: node} if op is not None else {}
        if hint is not None:
            self.hint[node] = hint

    def find(self, node: str) -> str:
        root = node
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[node] != root:
            self.parent[node], node = root, self.parent[node]
        return root

    def union(self, one: str, two: str) -> None:
        a, b = self.find(one), self.find(two)
        if a == b:
            return
        if len(self.members[a]) < len(self.members[b]):
            a, b = b, a
        if any(op in self.members[a] for op in self.members[b]):
            return
        self.parent[b] = a
        self.members[a].update(self.members.pop(b))
        better = min((self.hint.get(a), self.hint.get(b)), key=_hint_rank)
        if better is not None:
            self.hint[a] = better


def _hint_rank(hint: str | None) -> int:
    """Names that mean something come before positional ones, and those before none."""
    if hint is None:
        return 2
    return 1 if hint[0] == "d" and hint[1:].isdigit() else 0


def _coordinates(
    access: DraftAccess, op: DraftOp, pieces: dict[Place, tuple[int, ...]]
) -> list[Index]:
    """One index per axis of the stored tensor."""
    found: list[Index] = []
    for dim, coord in enumerate(access.coords):
        sizes = pieces[access.tensor, dim]
        if not sizes:
            continue
        digits = _digits(coord, sizes, op)
        assert digits is not None, (op.name, access.tensor, dim)
        found.extend(digits)
    return found


def _unify(
    builder: GraphBuilder, ops: list[DraftOp], pieces: dict[Place, tuple[int, ...]]
) -> dict[str, str]:
    """Op axis or tensor coordinate (`tensor#k`) → name of its axis in the graph."""
    classes = _Classes()
    sizes: dict[str, int] = {}
    for op in ops:
        for axis in op.axes:
            classes.add(axis.name, op.name, op.hints.get(axis.name))
            sizes[axis.name] = axis.size
    position = {op.name: i for i, op in enumerate(ops)}
    writer = {write.tensor: position[op.name] for op in ops for write in op.writes}
    edges: list[tuple[int, str, str]] = []
    for op, access in _accesses(ops):
        coords = _coordinates(access, op, pieces)
        maker = writer.get(access.tensor)
        distance = position[op.name] - maker if maker is not None else len(ops)
        tensor_sizes = [
            size
            for dim in range(len(builder.tensors[access.tensor].shape))
            for size in pieces[access.tensor, dim]
        ]
        for k, (coord, size) in enumerate(zip(coords, tensor_sizes, strict=True)):
            node = f"{access.tensor}#{k}"
            if node not in classes.parent:
                classes.add(node, None, None)
                sizes[node] = size
            if coord.axis is not None and sizes[coord.axis] == size:
                edges.append((distance, coord.axis, node))
    for _, axis_name, node in sorted(edges, key=lambda edge: edge[0]):
        classes.union(axis_name, node)
    return _names(classes, ops, sizes)


def _names(classes: _Classes, ops: list[DraftOp], sizes: dict[str, int]) -> dict[str, str]:
    """Readable unique names for the classes, in the order in which ops use them."""
    chosen: dict[str, str] = {}
    taken: dict[str, int] = {}
    nodes = [axis.name for op in ops for axis in op.axes]
    for node in (*nodes, *(node for node in classes.parent if "#" in node)):
        root = classes.find(node)
        if root in chosen:
            continue
        hint = classes.hint.get(root, "x")
        stem = hint if _hint_rank(hint) == 0 else "d"
        name, number = stem, taken.get(stem, 0)
        while number and (name := f"{stem}{number}") in taken:  # a letter may end in a digit
            number += 1
        taken[stem] = number + 1
        taken.setdefault(name, 1)
        chosen[root] = name
    return {node: chosen[classes.find(node)] for node in classes.parent}


def _freeze(
    builder: GraphBuilder,
    ops: list[DraftOp],
    pieces: dict[Place, tuple[int, ...]],
    names: dict[str, str],
) -> Graph:
    final = builder.final_names
    leaving = {view.base for _, view in builder.results}
    results = tuple(
        Result(label, View(final.get(view.base, view.base), view.dims, view.coords, view.dtype))
        for label, view in builder.results
    )
    used = {access.tensor for _, access in _accesses(ops)} | leaving
    tensors: dict[str, Tensor] = {}
    for name, draft in builder.tensors.items():
        if name not in used:
            continue
        dims: list[tuple[Axis, ...]] = []
        k = 0
        for dim, size in enumerate(draft.shape):
            sizes = pieces.get((name, dim), (size,) if size != 1 else ())
            axes: list[Axis] = []
            for piece in sizes:
                axes.append(Axis(names.get(f"{name}#{k}", f"{name}.{k}"), piece))
                k += 1
            dims.append(tuple(axes))
        role = draft.role
        if role == "intermediate" and name in leaving:
            role = "output"
        label = final.get(name, name)
        tensors[label] = Tensor(name=label, dims=tuple(dims), dtype=draft.dtype, role=role)
    frozen = tuple(_freeze_op(op, pieces, names, final) for op in ops)
    return Graph(
        name=builder.name, ops=frozen, tensors=tensors, results=results, notes=tuple(builder.notes)
    )


def _freeze_op(
    op: DraftOp,
    pieces: dict[Place, tuple[int, ...]],
    names: dict[str, str],
    final: dict[str, str],
) -> Op:
    def access(draft: DraftAccess) -> Access:
        index = tuple(
            Index(
                tuple((names[name], stride) for name, stride in coord.terms),
                coord.offset,
                coord.divisor,
                coord.lookup,
            )
            for coord in _coordinates(draft, op, pieces)
        )
        return Access(tensor=final.get(draft.tensor, draft.tensor), index=index, fill=draft.fill)

    body = op.body
    if body is not None:
        body = rename(body, slots=Read, axes=lambda name: Coord(names[name]))
    return Op(
        name=op.name,
        function=op.function,
        kind=op.kind,
        label=op.label,
        axes=tuple(Axis(names[axis.name], axis.size) for axis in op.axes),
        reduces=frozenset(names[name] for name in op.reduces),
        scans=frozenset(names[name] for name in op.scans),
        reads=tuple(access(read) for read in op.reads),
        writes=tuple(access(write) for write in op.writes),
        body=body,
        combine=op.combine,
        attributes=op.attributes,
    )
