"""Views: a logical shape over a stored tensor, with no data moved.

A view's dimensions are products of *atoms* (axes of its own); `coords` maps the atoms to the
coordinates of the stored tensor. Transposes, reshapes, slices, flips and expansions change the
view alone; each returns None where no view expresses the result (the builder then moves data).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import prod

from msgspec import Struct

from fuseledger.graph.axis import Axis, Index, mixed_radix

_fresh = count()


def fresh_axis(size: int) -> Axis:
    """An axis that no view or op uses yet."""
    return Axis(f"%{next(_fresh)}", size)


class View(Struct, frozen=True):
    """A logical tensor: what frontends pass around."""

    base: str
    dims: tuple[tuple[Axis, ...], ...]
    """Atoms of each logical dimension, outermost first; none for a dimension of size 1."""
    coords: tuple[Index, ...]
    """One per dimension of the stored tensor."""
    dtype: str

    @staticmethod
    def whole(base: str, shape: Sequence[int], dtype: str) -> View:
        """The view of a stored tensor as it is."""
        dims = tuple((fresh_axis(size),) if size != 1 else () for size in shape)
        coords = tuple(Index.of(dim[0].name) if dim else Index() for dim in dims)
        return View(base, dims, coords, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical sizes."""
        return tuple(prod(atom.size for atom in dim) for dim in self.dims)

    @property
    def elements(self) -> int:
        """Number of logical elements."""
        return prod(self.shape)

    def substitute(self, replacement: dict[str, Index]) -> tuple[Index, ...]:
        """The coordinates with atoms replaced."""
        return tuple(coord.substitute(replacement) for coord in self.coords)

    def transpose(self, order: Sequence[int]) -> View:
        """Dimensions in another order."""
        return View(self.base, tuple(self.dims[i] for i in order), self.coords, self.dtype)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """Dimensions merged and split, or None where no refinement of the atoms fits `shape`."""
        if self.elements == 0:
            return View(
                self.base,
                tuple((fresh_axis(size),) if size != 1 else () for size in shape),
                tuple(Index() for _ in self.coords),
                self.dtype,
            )
        pending = [atom for dim in reversed(self.dims) for atom in reversed(dim)]
        replacement: dict[str, Index] = {}
        dims: list[tuple[Axis, ...]] = []
        for size in shape:
            dim: list[Axis] = []
            left = size
            while left > 1:
                if not pending:
                    return None
                atom = pending.pop()
                if left % atom.size == 0:
                    left //= atom.size
                    dim.append(atom)
                elif atom.size % left == 0:
                    outer, inner = fresh_axis(left), fresh_axis(atom.size // left)
                    replacement[atom.name] = mixed_radix((outer, inner))
                    pending.append(inner)
                    dim.append(outer)
                    left = 1
                else:
                    return None
            dims.append(tuple(dim))
        coords = self.coords
        for name, index in replacement.items():  # a split atom may be split again
            coords = tuple(coord.substitute({name: index}) for coord in coords)
        return View(self.base, tuple(dims), coords, self.dtype)

    def expand(self, shape: Sequence[int]) -> View:
        """Dimensions of size 1 repeated; new leading dimensions added (NumPy's broadcast_to)."""
        padded: list[tuple[Axis, ...]] = [()] * (len(shape) - len(self.dims)) + list(self.dims)
        dims = tuple(
            (fresh_axis(size),) if not dim and size != 1 else dim
            for dim, size in zip(padded, shape, strict=True)
        )
        return View(self.base, dims, self.coords, self.dtype)

    def squeeze(self, dim: int) -> View:
        """Without a dimension of size 1."""
        return View(self.base, self.dims[:dim] + self.dims[dim + 1 :], self.coords, self.dtype)

    def unsqueeze(self, dim: int) -> View:
        """With a dimension of size 1 before dimension `dim`."""
        return View(self.base, (*self.dims[:dim], (), *self.dims[dim:]), self.coords, self.dtype)

    def slice(self, dim: int, start: int, length: int, step: int = 1) -> View | None:
        """`length` elements of a dimension from `start` by `step` (negative steps reverse)."""
        atoms = self.dims[dim]
        size = prod(atom.size for atom in atoms)
        if start == 0 and step == 1 and length == size:
            return self
        if length == 1:
            return self._fix(dim, start)
        merged = self.merged(dim)
        if merged is not None:
            atom, view = merged
            taken = fresh_axis(length)
            index = Index(((taken.name, step),), start)
            return view._replace(dim, (taken,), {atom.name: index})
        outer, *rest = atoms
        inner = prod(atom.size for atom in rest)
        if step != 1 or start % inner or length % inner:
            return None
        if length == inner:
            return self._replace(dim, tuple(rest), {outer.name: Index((), start // inner)})
        taken = fresh_axis(length // inner)
        index = Index(((taken.name, 1),), start // inner)
        return self._replace(dim, (taken, *rest), {outer.name: index})

    def flip(self, dim: int) -> View | None:
        """A dimension in reverse order."""
        size = self.shape[dim]
        return self.slice(dim, size - 1, size, -1) if size > 1 else self

    def merged(self, dim: int) -> tuple[Axis, View] | None:
        """The dimension as one atom, where its atoms appear only as their mixed-radix product."""
        atoms = self.dims[dim]
        if len(atoms) == 1:
            return atoms[0], self
        if not atoms:
            return None
        weights = dict(mixed_radix(atoms).terms)
        merged = fresh_axis(prod(atom.size for atom in atoms))
        coords: list[Index] = []
        for coord in self.coords:
            mine = {name: stride for name, stride in coord.terms if name in weights}
            if not mine:
                coords.append(coord)
                continue
            inner = mine.get(atoms[-1].name, 0)
            if mine != {name: inner * weight for name, weight in weights.items()}:
                return None
            others = tuple(term for term in coord.terms if term[0] not in weights)
            terms = (*others, (merged.name, inner))
            coords.append(Index(terms, coord.offset, coord.divisor, coord.lookup))
        dims = (*self.dims[:dim], (merged,), *self.dims[dim + 1 :])
        return merged, View(self.base, dims, tuple(coords), self.dtype)

    def _fix(self, dim: int, position: int) -> View:
        replacement: dict[str, Index] = {}
        for atom in reversed(self.dims[dim]):
            position, digit = divmod(position, atom.size)
            replacement[atom.name] = Index((), digit)
        return self._replace(dim, (), replacement)

    def _replace(self, dim: int, atoms: tuple[Axis, ...], replacement: dict[str, Index]) -> View:
        dims = (*self.dims[:dim], atoms, *self.dims[dim + 1 :])
        return View(self.base, dims, self.substitute(replacement), self.dtype)
