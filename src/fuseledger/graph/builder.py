"""Building a graph: frontends call `GraphBuilder.loop` (or the shorthands over it) and `finish`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fuseledger.errors import ShapeError
from fuseledger.graph.axis import Axis, Index, common_refinement, mixed_radix
from fuseledger.graph.draft import DraftAccess, DraftOp, DraftTensor
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import COMBINES, Kind
from fuseledger.graph.scalar import Call, Const, Coord, Expr, Read, call, rename
from fuseledger.graph.tensor import Role
from fuseledger.graph.view import View, fresh_axis

Where = str | Index | None
"""How a dimension is addressed: by a letter of the loop nest, an index over letters, or not at
all (a dimension of size 1)."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A view read by a loop nest: one `Where` per logical dimension."""

    view: View
    where: tuple[Where, ...]
    fill: float | None = None
    """Value outside the view; None where the loops stay inside."""


@dataclass(slots=True)
class GraphBuilder:
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
        reads, body = _guarded(reads, body)
        operands = [self._aligned(function, operand, letters) for operand in reads]
        pieces = self._refine(function, operands, letters)
        accesses = [self._access(operand, pieces) for operand in operands]
        axes = [axis for letter in letters for axis in pieces[letter]]
        kept = {letter for letter in out if letter is not None}
        reduced = {axis.name for letter in letters if letter not in kept for axis in pieces[letter]}
        scanned = {axis.name for letter in scans for axis in pieces[letter]}
        results: list[View] = []
        writes: list[DraftAccess] = []
        shape = [letters[letter] if letter is not None else 1 for letter in out]
        stem = name or function
        for position, dtype in enumerate(dtypes):
            suffix = "" if position == 0 else f".{COMBINES[combine].results[position]}" if combine else f".{position}"
            base = self._unique(f"{stem}{suffix}")
            self.tensors[base] = DraftTensor(tuple(shape), dtype, "intermediate")
            coords = [mixed_radix(pieces[letter]) if letter is not None else Index() for letter in out]
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
                body=rename(body, slots=Read, axes=lambda letter: _coordinate(pieces[letter])),
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
        reads = [Operand(operand, _trailing(operand, out)) for operand in operands]
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
        reads = [Operand(operand, _trailing(operand, out)) for operand in operands]
        results = dtypes or [operands[0].dtype] * len(COMBINES[combine].results)
        views = self.loop(
            function, letters, reads, kept, body if body is not None else Read(0),
            dtypes=results, combine=combine, name=name,
        )  # fmt: skip
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
                    letters[letter] = max(size, letters.get(letter, 1))
        where: list[Operand] = []
        for word, operand in zip(words, operands, strict=True):
            shape = operand.shape
            where.append(Operand(operand, tuple(x if shape[i] != 1 else None for i, x in enumerate(word))))
        body: Expr = Read(0)
        for slot in range(1, len(operands)):
            body = call("mul", body, Read(slot))
        letters = {letter: size for letter, size in letters.items() if size != 1}
        out = [letter if letter in letters else None for letter in result]
        dtypes = [dtype or promote([operand.dtype for operand in operands])]
        return self.loop(function, letters, where, out, body, dtypes=dtypes, combine="sum", name=name)[0]

    def opaque(
        self,
        function: str,
        operands: Sequence[View],
        results: Sequence[tuple[Sequence[int], str]],
        *,
        name: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> list[View]:
        """A barrier: an op of which only its tensors are known. Views are materialised first."""
        reads = [
            DraftAccess(view.base, list(view.coords), None) for view in map(self.stored, operands)
        ]
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
                attributes=dict(attributes or {}),
            )
        )
        return views

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
        """A copy of the view into a tensor of its own, row-major."""
        letters: dict[str, int] = {}
        where: list[Where] = []
        for i, size in enumerate(view.shape):
            where.append(f"d{i}" if size != 1 else None)
            if size != 1:
                letters[f"d{i}"] = size
        out = [x if isinstance(x, str) else None for x in where]
        copy = self.loop(
            "move", letters, [Operand(view, tuple(where))], out, Read(0),
            dtypes=[view.dtype], kind="move",
        )[0]  # fmt: skip
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

    def _aligned(self, function: str, operand: Operand, letters: Mapping[str, int]) -> Operand:
        """The operand with each dimension expressible by its `Where`, copied where it is not."""
        view, where = operand.view, operand.where
        if len(where) != len(view.dims):
            raise ShapeError(f"{function}: {len(where)} indices for shape {list(view.shape)}")
        for dim, (size, place) in enumerate(zip(view.shape, where, strict=True)):
            if isinstance(place, str) and size not in (letters[place], 1):
                raise ShapeError(
                    f"{function}: dimension {dim} of {list(view.shape)} is {size}, "
                    f"where {letters[place]} is expected"
                )
            if not isinstance(place, Index) or size == 1 and operand.fill is None:
                continue
            merged = view.merged(dim) if view.dims[dim] else None
            if merged is not None:
                atom, view = merged
            if not self._addressable(view, dim, place, operand.fill):
                view = self.move(view)
        return Operand(view, where, operand.fill)

    def _addressable(self, view: View, dim: int, place: Index, fill: float | None) -> bool:
        """Whether an index may stand for the dimension in the stored tensor's coordinates."""
        if len(view.dims[dim]) != 1:
            return False
        (atom,) = view.dims[dim]
        homes = [i for i, c in enumerate(view.coords) if any(n == atom.name for n, _ in c.terms)]
        if place.is_affine and fill is None:
            return True
        whole = len(homes) == 1 and view.coords[homes[0]].axis == atom.name
        return whole and (
            fill is None or self.tensors[view.base].shape[homes[0]] == view.shape[dim]
        )

    def _refine(
        self, function: str, operands: list[Operand], letters: Mapping[str, int]
    ) -> dict[str, tuple[Axis, ...]]:
        """Op axes of each letter: the common refinement of the dimensions it addresses."""
        pieces: dict[str, tuple[Axis, ...]] = {}
        for letter, size in letters.items():
            factorings: list[tuple[int, ...]] = [(size,)]
            for position, operand in enumerate(operands):
                for dim, place in enumerate(operand.where):
                    atoms = operand.view.dims[dim]
                    if place != letter or not atoms:
                        continue
                    refined = common_refinement([*factorings, tuple(a.size for a in atoms)]) if size else (size,)
                    if refined is None:
                        moved = self.move(operand.view)
                        operands[position] = operand = Operand(moved, operand.where, operand.fill)
                        continue
                    factorings = [refined]
            pieces[letter] = tuple(fresh_axis(piece) for piece in factorings[0])
        return pieces

    def _access(self, operand: Operand, pieces: Mapping[str, tuple[Axis, ...]]) -> DraftAccess:
        replacement: dict[str, Index] = {}
        for atoms, place in zip(operand.view.dims, operand.where, strict=True):
            if isinstance(place, Index):
                inner = {letter: mixed_radix(axes) for letter, axes in pieces.items()}
                index = Index(place.terms, place.offset)  # divisor and lookup sit outside
                index = index.substitute(inner)
                for atom in atoms:
                    replacement[atom.name] = Index(
                        index.terms, index.offset, place.divisor, place.lookup
                    )
            elif isinstance(place, str) and atoms:
                replacement.update(_grouped(atoms, pieces[place]))
        coords = list(operand.view.substitute(replacement))
        return DraftAccess(operand.view.base, coords, operand.fill)


@dataclass(slots=True)
class _Label:
    builder: GraphBuilder
    label: str
    outer: str = ""

    def __enter__(self) -> None:
        self.outer = self.builder.scope
        self.builder.scope = self.outer or self.label

    def __exit__(self, *_: object) -> None:
        self.builder.scope = self.outer


def _guarded(reads: Sequence[Operand], body: Expr) -> tuple[list[Operand], Expr]:
    """Windows over dimensions of size 1: the stored tensor has no axis there to leave, so the body
    asks whether the coordinate is 0."""
    guarded: list[Operand] = []
    values: list[Expr] = []
    for slot, operand in enumerate(reads):
        where = list(operand.where)
        value: Expr = Read(slot)
        for dim, (size, place) in enumerate(zip(operand.view.shape, where, strict=False)):
            if size == 1 and isinstance(place, Index) and place.lookup is None:
                where[dim] = None
                if operand.fill is not None and (place.terms or place.offset):
                    total: Expr = Const(place.offset)
                    for letter, stride in place.terms:
                        total = call("add", total, call("mul", Coord(letter), float(stride)))
                    value = call("where", call("eq", total, 0.0), value, operand.fill)
        guarded.append(Operand(operand.view, tuple(where), operand.fill))
        values.append(value)
    return guarded, rename(body, slots=values.__getitem__, axes=Coord)


def _coordinate(pieces: tuple[Axis, ...]) -> Expr:
    """The value of a letter from the op axes that it was refined into."""
    total: Expr | None = None
    for name, stride in mixed_radix(pieces).terms:
        part: Expr = Coord(name) if stride == 1 else Call("mul", (Coord(name), Const(stride)))
        total = part if total is None else Call("add", (total, part))
    return total if total is not None else Const(0)


def _grouped(atoms: tuple[Axis, ...], pieces: tuple[Axis, ...]) -> dict[str, Index]:
    """Each atom as the mixed-radix product of the pieces it was refined into."""
    replacement: dict[str, Index] = {}
    rest = list(pieces)
    for atom in atoms:
        mine: list[Axis] = []
        while prod(axis.size for axis in mine) < atom.size:
            mine.append(rest.pop(0))
        replacement[atom.name] = mixed_radix(mine)
    return replacement


def _result_view(base: str, dims: Sequence[tuple[Axis, ...]], dtype: str) -> View:
    fresh = [tuple(fresh_axis(axis.size) for axis in dim) for dim in dims]
    return View(base, tuple(fresh), tuple(mixed_radix(dim) for dim in fresh), dtype)


def _drop_dims(view: View, kept: Sequence[int]) -> View:
    return View(view.base, tuple(view.dims[i] for i in kept), view.coords, view.dtype)


def dim_letters(shape: Sequence[int]) -> tuple[dict[str, int], list[str | None]]:
    """A letter for each dimension of size other than 1, and the dimensions' list of letters."""
    out = [f"d{i}" if size != 1 else None for i, size in enumerate(shape)]
    return {x: size for x, size in zip(out, shape, strict=True) if x is not None}, out


def _trailing(view: View, out: Sequence[str | None]) -> tuple[Where, ...]:
    """Letters of the trailing dimensions that the view has; none where it is of size 1."""
    tail = out[len(out) - len(view.dims) :]
    return tuple(x if view.shape[i] != 1 else None for i, x in enumerate(tail))


def broadcast_shapes(function: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """NumPy's broadcast of the shapes; raises ShapeError naming the op and the shapes."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for i in range(rank):
        sizes = {shape[i - rank + len(shape)] for shape in shapes if i - rank + len(shape) >= 0}
        sizes.discard(1)
        if len(sizes) > 1:
            listed = " and ".join(str(list(shape)) for shape in shapes)
            raise ShapeError(f"{function}: shapes {listed} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


_RANK = (
    "bool", "uint4", "int4", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "fp4", "fp8_e4m3", "fp8_e5m2", "fp16", "bf16", "fp32", "fp64", "complex64", "complex128",
)  # fmt: skip


def promote(dtypes: Sequence[str]) -> str:
    """The dtype of a pointwise result: the widest kind; fp16 with bf16 gives fp32."""
    if {"fp16", "bf16"} <= set(dtypes):
        dtypes = [*dtypes, "fp32"]
    return max(dtypes, key=_RANK.index)


def unary(function: str) -> Callable[[GraphBuilder, View], View]:
    """The pointwise op of one scalar function of one argument."""
    return lambda builder, view: builder.map(function, [view])
