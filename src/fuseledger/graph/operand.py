"""Operands: how a loop nest over letters addresses the dimensions of a view.

`GraphBuilder.loop` guards windows over dimensions of size 1, aligns views that an index cannot
address, refines each letter into the axes that its dimensions share, and writes the access.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from msgspec import Struct

from fuseledger.errors import ShapeError
from fuseledger.graph.axis import Axis, Index, common_refinement, mixed_radix
from fuseledger.graph.draft import DraftAccess
from fuseledger.graph.scalar import Call, Const, Coord, Expr, Read, call, rename
from fuseledger.graph.view import View, fresh_axis

if TYPE_CHECKING:
    from fuseledger.graph.builder import GraphBuilder

Where = str | Index | None
"""How a dimension is addressed: by a letter of the loop nest, an index over letters, or not at
all (a dimension of size 1)."""


class Operand(Struct, frozen=True):
    """A view read by a loop nest: one `Where` per logical dimension."""

    view: View
    where: tuple[Where, ...]
    fill: float | None = None
    """Value outside the view; None where the loops stay inside."""

    @staticmethod
    def trailing(view: View, out: Sequence[str | None]) -> Operand:
        """The view under the last letters of `out`, repeated where its dimension is of size 1."""
        tail = out[len(out) - len(view.dims) :]
        return Operand(view, tuple(x if view.shape[i] != 1 else None for i, x in enumerate(tail)))


def guarded(reads: Sequence[Operand], body: Expr) -> tuple[list[Operand], Expr]:
    """Windows over dimensions of size 1: the stored tensor has no axis there to leave, so the body
    asks whether the coordinate is 0."""
    found: list[Operand] = []
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
        found.append(Operand(operand.view, tuple(where), operand.fill))
        values.append(value)
    return found, rename(body, slots=values.__getitem__, axes=Coord)


def aligned(
    b: GraphBuilder, function: str, operand: Operand, letters: Mapping[str, int]
) -> Operand:
    """The operand with each dimension expressible by its `Where`, copied where it is not.

    Raises ShapeError where a dimension has neither its letter's size nor size 1.
    """
    view, where = operand.view, operand.where
    if len(where) != len(view.dims):
        raise ShapeError(f"{function}: {len(where)} indices for shape {list(view.shape)}")
    for dim, (size, place) in enumerate(zip(view.shape, where, strict=True)):
        if isinstance(place, str) and size not in (letters[place], 1):
            raise ShapeError(
                f"{function}: dimension {dim} of {list(view.shape)} is {size}, "
                f"where {letters[place]} is expected"
            )
        if not isinstance(place, Index) or (size == 1 and operand.fill is None):
            continue
        merged = view.merged(dim) if view.dims[dim] else None
        if merged is not None:
            view = merged[1]
        if not _addressable(b, view, dim, place, operand.fill):
            view = b.move(view)
    return Operand(view, where, operand.fill)


def _addressable(b: GraphBuilder, view: View, dim: int, place: Index, fill: float | None) -> bool:
    """Whether an index may stand for the dimension in the stored tensor's coordinates."""
    if len(view.dims[dim]) != 1:
        return False
    (atom,) = view.dims[dim]
    homes = [i for i, c in enumerate(view.coords) if any(n == atom.name for n, _ in c.terms)]
    if place.is_affine and fill is None:
        return True
    whole = len(homes) == 1 and view.coords[homes[0]].axis == atom.name
    return whole and (fill is None or b.tensors[view.base].shape[homes[0]] == view.shape[dim])


def refine(
    b: GraphBuilder, operands: list[Operand], letters: Mapping[str, int]
) -> dict[str, tuple[Axis, ...]]:
    """Op axes of each letter: the common refinement of the dimensions it addresses.

    An operand with no common refinement is replaced in `operands` by a copy.
    """
    pieces: dict[str, tuple[Axis, ...]] = {}
    for letter, size in letters.items():
        factorings: list[tuple[int, ...]] = [(size,)]
        for position, operand in enumerate(operands):
            for dim, place in enumerate(operand.where):
                atoms = operand.view.dims[dim]
                if place != letter or not atoms:
                    continue
                sizes = tuple(atom.size for atom in atoms)
                refined = common_refinement([*factorings, sizes]) if size else (size,)
                if refined is None:
                    operand = Operand(b.move(operand.view), operand.where, operand.fill)
                    operands[position] = operand
                    continue
                factorings = [refined]
        pieces[letter] = tuple(fresh_axis(piece) for piece in factorings[0])
    return pieces


def access_of(operand: Operand, pieces: Mapping[str, tuple[Axis, ...]]) -> DraftAccess:
    """The operand's read, in coordinates of its stored tensor over the op's axes."""
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


def coordinate(pieces: tuple[Axis, ...]) -> Expr:
    """The value of a letter from the op axes that it was refined into."""
    total: Expr | None = None
    for name, stride in mixed_radix(pieces).terms:
        part: Expr = Coord(name) if stride == 1 else Call("mul", (Coord(name), Const(stride)))
        total = part if total is None else Call("add", (total, part))
    return total if total is not None else Const(0)
