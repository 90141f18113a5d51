"""Building a graph: frontends call `GraphBuilder.loop` (or the shorthands over it) and `finish`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from msgspec import Struct, field

from fuseledger.errors import ShapeError
from fuseledger.graph.axis import Axis, Index, mixed_radix
from fuseledger.graph.broadcast import broadcast_shapes, dim_letters, promote
from fuseledger.graph.draft import DraftAccess, DraftOp, DraftTensor
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import COMBINES, Kind
from fuseledger.graph.operand import Operand, access_of, aligned, coordinate, guarded, refine
from fuseledger.graph.scalar import Expr, Read, call, rename
from fuseledger.graph.tensor import Role
from fuseledger.graph.view import View, fresh_axis


class GraphBuilder(Struct):
    """Collects tensors and ops; `finish` names the axes across the graph and validates it."""

    name: str
    tensors: dict[str, DraftTensor] = field(default_factory=dict[str, DraftTensor])
    ops: list[DraftOp] = field(default_factory=list[DraftOp])
    results: list[tuple[str, View]] = field(default_factory=list[tuple[str, View]])
    """Outputs by the source's name, as views of stored tensors."""
    notes: list[str] = field(default_factory=list[str])
    final_names: dict[str, str] = field(default_factory=dict[str, str])
    """Tensor → the name that the source gives it as an output."""
    scope: str = ""
    """Label given to the ops made while it is set: see `labelled`."""
    _op_names: dict[str, int] = field(default_factory=dict[str, int])
    _tensor_names: dict[str, int] = field(default_factory=dict[str, int])

    def tensor(self, name: str, shape: Sequence[int], dtype: str, role: Role) -> View:
        """A new tensor that exists before the graph runs; the name is made unique."""
        unique = self._unique(name)
        self.tensors[unique] = DraftTensor(tuple(shape), dtype, role)
        return View.whole(unique, shape, dtype)

    def input(self, name: str, shape: Sequence[int], dtype: str) -> View:
        """An activation that the caller passes."""
        return self.tensor(name, shape, dtype, "input")

    def weight(self, name: str, shape: Sequence[int], dtype: str) -> View:
        """A parameter or buffer, or whatever depends on no input."""
        return self.tensor(name, shape, dtype, "weight")

    def output(self, view: View, name: str | None = None) -> None:
        """Declare that a view leaves the graph. A view that reorders its tensor is no copy."""
        label = name or view.base
        self.results.append((label, view))
        if label not in self.tensors and self.tensors[view.base].role == "intermediate":
            self.final_names.setdefault(view.base, label)

    def labelled(self, label: str) -> _Label:
        """Context in which every new op carries the composite's name."""
        return _Label(self, label)

    # -- the one way to make an op ---------------------------------------------------------

    def loop(
        self,
        function: str,
        letters: Mapping[str, int],
        reads: Sequence[Operand],
        out: Sequence[str | None],
        body: Expr,
        *,
        dtypes: Sequence[str],
        combine: str | None = None,
        scans: Sequence[str] = (),
        kind: Kind = "loop",
        name: str | None = None,
    ) -> list[View]:
        """One loop nest over `letters`; letters that are not in `out` are reduced by `combine`.

        `out` names the dimensions of every result (None: size 1). Returns one view per dtype.
        Raises ShapeError where a dimension does not have its letter's size.
        """
        if combine is not None and not scans and set(letters) <= set(out):
            several = len(COMBINES[combine].results) > 1
            letters = {**letters, "one": 1} if several else letters  # (max, Σexp) of one element
        reads, body = guarded(reads, body)
        operands = [aligned(self, function, operand, letters) for operand in reads]
        pieces = refine(self, operands, letters)
        accesses = [access_of(operand, pieces) for operand in operands]
        axes = [axis for letter in letters for axis in pieces[letter]]
        kept = {letter for letter in out if letter is not None}
        reduced = {axis.name for letter in letters if letter not in kept for axis in pieces[letter]}
        scanned = {axis.name for letter in scans for axis in pieces[letter]}
        results: list[View] = []
        writes: list[DraftAccess] = []
        shape = [letters[letter] if letter is not None else 1 for letter in out]
        stem = name or function
        for position, dtype in enumerate(dtypes):
            suffix = (
                ""
                if position == 0
                else f".{COMBINES[combine].results[position]}"
                if combine
                else f".{position}"
            )
            base = self._unique(f"{stem}{suffix}")
            self.tensors[base] = DraftTensor(tuple(shape), dtype, "intermediate")
            coords = [
                mixed_radix(pieces[letter]) if letter is not None else Index() for letter in out
            ]
            writes.append(DraftAccess(base, coords, None))
            results.append(_result_view(base, [pieces[x] if x else () for x in out], dtype))
        self.ops.append(
            DraftOp(
                name=self._op_name(stem),
                function=function,
                kind=kind,
                label=self.scope or None,
                axes=axes,
                hints={axis.name: letter for letter in letters for axis in pieces[letter]},
                reduces=reduced,
                scans=scanned,
                reads=accesses,
                writes=writes,
                body=rename(body, slots=Read, axes=lambda letter: coordinate(pieces[letter])),
                combine=combine if reduced or scanned else None,
            )
        )
        return results

    # -- shorthands ------------------------------------------------------------------------

    def map(
        self,
        function: str,
        operands: Sequence[View],
        *,
        body: Expr | None = None,
        dtype: str | None = None,
        name: str | None = None,
    ) -> View:
        """Pointwise op with NumPy broadcasting. `body` defaults to `function(operand 0, …)`."""
        shape = broadcast_shapes(function, [operand.shape for operand in operands])
        letters, out = dim_letters(shape)
        reads = [Operand.trailing(operand, out) for operand in operands]
        expr = body if body is not None else call(function, *map(Read, range(len(operands))))
        dtypes = [dtype or promote([operand.dtype for operand in operands])]
        return self.loop(function, letters, reads, out, expr, dtypes=dtypes, name=name)[0]

    def reduce(
        self,
        function: str,
        operands: Sequence[View],
        dims: Sequence[int],
        combine: str,
        *,
        body: Expr | None = None,
        keepdim: bool = False,
        dtypes: Sequence[str] | None = None,
        name: str | None = None,
    ) -> list[View]:
        """A statistic over `dims` of operands that broadcast together, in one pass."""
        shape = broadcast_shapes(function, [operand.shape for operand in operands])
        letters, out = dim_letters(shape)
        gone = {dim % len(shape) for dim in dims} if shape else set[int]()
        kept = [None if i in gone else letter for i, letter in enumerate(out)]
        reads = [Operand.trailing(operand, out) for operand in operands]
        results = dtypes or [operands[0].dtype] * len(COMBINES[combine].results)
        views = self.loop(
            function,
            letters,
            reads,
            kept,
            body if body is not None else Read(0),
            dtypes=results,
            combine=combine,
            name=name,
        )
        if keepdim:
            return views
        kept_dims = [i for i in range(len(shape)) if i not in gone]
        return [_drop_dims(view, kept_dims) for view in views]

    def contract(
        self,
        function: str,
        spec: str,
        operands: Sequence[View],
        *,
        dtype: str | None = None,
        name: str | None = None,
    ) -> View:
        """Σ over the letters that `spec` (`"mk,kn->mn"`) drops, of the product of the operands."""
        inputs, result = spec.replace(" ", "").split("->")
        words = inputs.split(",")
        letters: dict[str, int] = {}
        for letter in dict.fromkeys(result + "".join(words)):
            for word, operand in zip(words, operands, strict=True):
                if len(word) != len(operand.shape):
                    raise ShapeError(f"{function}: {spec!r} does not fit shape {operand.shape}")
                if letter in word:
                    size = operand.shape[word.index(letter)]
                    letters[letter] = size if size != 1 else letters.get(letter, 1)
        where = [Operand.trailing(x, list(word)) for word, x in zip(words, operands, strict=True)]
        body: Expr = Read(0)
        for slot in range(1, len(operands)):
            body = call("mul", body, Read(slot))
        letters = {letter: size for letter, size in letters.items() if size != 1}
        out = [letter if letter in letters else None for letter in result]
        dtypes = [dtype or promote([operand.dtype for operand in operands])]
        return self.loop(
            function, letters, where, out, body, dtypes=dtypes, combine="sum", name=name
        )[0]

    def opaque(
        self,
        function: str,
        operands: Sequence[View],
        results: Sequence[tuple[Sequence[int], str]],
        *,
        name: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> list[View]:
        """A barrier: an op of which only its tensors are known. Views are materialised first, but
        for permutations of a tensor's dimensions: an operator reads those by their strides."""
        reads: list[DraftAccess] = []
        orders: dict[int, tuple[int, ...]] = {}
        for slot, view in enumerate(operands):
            order = self._order(view)
            if order is not None:
                orders[slot] = order
                view = View.whole(view.base, self.tensors[view.base].shape, view.dtype)
            view = self.stored(view)
            reads.append(DraftAccess(view.base, list(view.coords), None))
        attributes = {**(attributes or {}), **({"orders": orders} if orders else {})}
        writes: list[DraftAccess] = []
        views: list[View] = []
        stem = name or function
        for shape, dtype in results:
            base = self._unique(stem)
            self.tensors[base] = DraftTensor(tuple(shape), dtype, "intermediate")
            views.append(View.whole(base, shape, dtype))
            writes.append(DraftAccess(base, list(views[-1].coords), None))
        axes = {
            name: Axis(name, self.tensors[access.tensor].shape[dim])
            for access in (*reads, *writes)
            for dim, coord in enumerate(access.coords)
            for name, _ in coord.terms
        }
        self.ops.append(
            DraftOp(
                name=self._op_name(stem),
                function=function,
                kind="opaque",
                label=self.scope or None,
                axes=list(axes.values()),
                hints={},
                reduces=set(),
                scans=set(),
                reads=reads,
                writes=writes,
                body=None,
                combine=None,
                attributes=attributes,
            )
        )
        return views

    def _order(self, view: View) -> tuple[int, ...] | None:
        """The stored dimension of each of the view's, where it permutes those of its tensor."""
        shape = self.tensors[view.base].shape
        if len(view.shape) != len(shape) or any(len(dim) != 1 for dim in view.dims):
            return None
        places = {coord.axis: k for k, coord in enumerate(view.coords) if coord.axis is not None}
        order = tuple(places.get(dim[0].name, -1) for dim in view.dims)
        if sorted(order) != list(range(len(shape))) or order == tuple(range(len(shape))):
            return None
        return order if all(shape[k] == n for k, n in zip(order, view.shape, strict=True)) else None

    def stored(self, view: View) -> View:
        """The view itself where it is its whole tensor in order, else a copy (`move`)."""
        draft = self.tensors[view.base]
        plain = View.whole(view.base, draft.shape, view.dtype)
        if draft.shape == view.shape and all(
            coord == mixed_radix(dim) for coord, dim in zip(view.coords, view.dims, strict=True)
        ):
            return plain
        return self.move(view)

    def move(self, view: View) -> View:
        """A copy of the view into a tensor of its own, row-major; a `fill` where it repeats a
        number."""
        letters, out = dim_letters(view.shape)
        reads = [Operand(view, tuple(out))]
        name = "move" if self.tensors[view.base].shape else "fill"
        copy = self.loop(name, letters, reads, out, Read(0), dtypes=[view.dtype], kind="move")[0]
        return View.whole(copy.base, view.shape, view.dtype)

    def reshape(self, view: View, shape: Sequence[int]) -> View:
        """The view in another shape (one size may be -1); moves data only where it must."""
        sizes = list(shape)
        if -1 in sizes:
            known = prod(size for size in sizes if size != -1)
            sizes[sizes.index(-1)] = view.elements // known if known else 0
        if prod(sizes) != view.elements:
            raise ShapeError(f"reshape: {list(view.shape)} does not hold {list(shape)}")
        reshaped = view.reshape(sizes)
        if reshaped is None:
            moved = self.move(view)
            flat = self._flattened(moved)
            reshaped = flat.reshape(sizes)
            assert reshaped is not None  # a single atom splits into anything
        return reshaped

    def slice(self, view: View, dim: int, start: int, length: int, step: int = 1) -> View:
        """Part of a dimension; moves data only where the view cannot express it."""
        sliced = view.slice(dim, start, length, step)
        if sliced is None:
            sliced = self.move(view).slice(dim, start, length, step)
            assert sliced is not None
        return sliced

    def finish(self) -> Graph:
        """The graph, with dead ops dropped, reshapes refined and axes named across it."""
        from fuseledger.graph.canonical import canonical_graph

        return canonical_graph(self)

    # -- parts of `loop` -------------------------------------------------------------------

    def _op_name(self, stem: str) -> str:
        """A name that no op has yet."""
        taken = self._op_names
        number = taken.get(stem, 0)
        taken[stem] = number + 1
        return stem if number == 0 else f"{stem}_{number}"

    def _unique(self, name: str) -> str:
        candidate = name
        while candidate in self.tensors:
            self._tensor_names[name] = self._tensor_names.get(name, 0) + 1
            candidate = f"{name}_{self._tensor_names[name]}"
        return candidate

    def _flattened(self, view: View) -> View:
        """The same stored tensor, declared with one dimension."""
        draft = self.tensors[view.base]
        op = self.ops[-1]
        (write,) = op.writes
        flat = Index()
        for size, coord in zip(draft.shape, write.coords, strict=True):
            scaled = Index(tuple((n, s * size) for n, s in flat.terms))
            flat = Index(scaled.terms + coord.terms)
        write.coords = [flat]
        draft.shape = (prod(draft.shape),)
        return View.whole(view.base, draft.shape, view.dtype)


class _Label(Struct):
    builder: GraphBuilder
    label: str
    outer: str = ""

    def __enter__(self) -> None:
        self.outer = self.builder.scope
        self.builder.scope = self.outer or self.label

    def __exit__(self, *_: object) -> None:
        self.builder.scope = self.outer


def _result_view(base: str, dims: Sequence[tuple[Axis, ...]], dtype: str) -> View:
    fresh = [tuple(fresh_axis(axis.size) for axis in dim) for dim in dims]
    return View(base, tuple(fresh), tuple(mixed_radix(dim) for dim in fresh), dtype)


def _drop_dims(view: View, kept: Sequence[int]) -> View:
    return View(view.base, tuple(view.dims[i] for i in kept), view.coords, view.dtype)
