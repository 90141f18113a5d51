"""The least tiles: a matrix unit's fragment, and a DRAM sector along the contiguous axis."""

from __future__ import annotations

from math import prod

from fuseledger.ledger.matrix_units import MATRIX_TILE
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.price import sector_of
from fuseledger.ledger.pricer import Pricer

SECTOR_SHARE = 0.01
"""Tensors below this share of the kernel's traffic may waste sectors: it does not show."""


Side = tuple[str, ...]
"""Axes of one side of a contraction."""


class TileLimits:
    """The least tiles of a nest's open axes, and whether given tiles respect them."""

    def __init__(self, pricer: Pricer) -> None:
        self.nest = pricer.nest
        self.sides = [(rows, columns) for _, rows, columns in pricer.contractions]
        self.contiguous = _contiguous(pricer)
        self._least_tiles: list[tuple[Side, Side, list[tuple[int, int]]]] = []
        for rows, columns in self.sides:
            m, n = (prod(self.nest.sizes[name] for name in side) for side in (rows, columns))
            goals = [(min(a, m), min(b, n)) for a, b in (MATRIX_TILE, MATRIX_TILE[::-1])]
            self._least_tiles.append((rows, columns, goals))

    def least(self) -> dict[str, int]:
        """The smallest tiles allowed; reduced axes start whole, off the grid."""
        nest = self.nest
        tiles = {name: self.contiguous.get(name, 1) for name in nest.open_axes}
        tiles.update((name, nest.sizes[name]) for name in nest.split_axes)
        for sides in self.sides:
            extents = [prod(nest.sizes[name] for name in side) for side in sides]
            goals = MATRIX_TILE if extents[0] >= extents[1] else MATRIX_TILE[::-1]
            for side, goal in zip(sides, goals, strict=True):
                _grow(nest, side, goal, tiles)
        return tiles

    def allows(self, tiles: dict[str, int]) -> bool:
        """Whether every contraction's tile and every contiguous tile is large enough."""
        sizes = self.nest.sizes
        for name, least in self.contiguous.items():
            if tiles.get(name, least) < least:
                return False
        for rows, columns, goals in self._least_tiles:
            m = prod([tiles.get(name, sizes[name]) for name in rows])
            n = prod([tiles.get(name, sizes[name]) for name in columns])
            if not any(m >= least_m and n >= least_n for least_m, least_n in goals):
                return False
        return True


def _contiguous(pricer: Pricer) -> dict[str, int]:
    """Open axis → least tile that fills a sector of every tensor it is contiguous in."""
    nest = pricer.nest
    sector = sector_of(pricer.device)
    reads = [access for accesses in nest.external.values() for _, access in accesses]
    writes = [w for op in nest.ops.values() for w in op.writes if w.tensor in nest.outputs]
    matters = SECTOR_SHARE * (pricer.read_bytes + pricer.write_bytes)
    least: dict[str, int] = {}
    for access in (*reads, *writes):
        axis = access.index[-1].axis if access.index else None
        if axis is not None and axis in nest.open_axes:
            tensor = pricer.tensors[access.tensor]
            if tensor.bytes < matters:
                continue
            elements = max(1, sector * tensor.elements // max(1, tensor.bytes))
            least[axis] = max(least.get(axis, 1), min(elements, nest.sizes[axis]))
    return least


def _grow(nest: Nest, side: tuple[str, ...], goal: int, tiles: dict[str, int]) -> None:
    """Grow the tiles of one side's axes, innermost first, until their product reaches the goal."""
    total = prod(tiles.get(name, nest.sizes[name]) for name in side)
    for name in reversed(side):
        while total < goal and name in tiles and tiles[name] < nest.sizes[name]:
            before = tiles[name]
            tiles[name] = min(nest.sizes[name], before * 2)
            total = total // before * tiles[name]
