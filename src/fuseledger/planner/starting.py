"""Candidates by their lowest op, each as a mask that starts there: equal windows share theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from msgspec import Struct


class Starting(Struct, frozen=True):
    """Usable candidates and their costs."""

    sets: list[dict[int, float]]
    """For each op: masks of the candidates whose lowest op it is, that op as bit 0, and costs.
    Ops where equal windows start have one and the same dictionary."""

    @staticmethod
    def of(ops: int, cost: Mapping[int, float]) -> Starting:
        """Candidates given as masks of the whole graph's ops."""
        sets: list[dict[int, float]] = [{} for _ in range(ops)]
        for mask, price in cost.items():
            low = lowest(mask)
            sets[low][mask >> low] = price
        return Starting(sets)

    def __len__(self) -> int:
        return sum(map(len, self.sets))

    def price(self, mask: int) -> float:
        """Cost of a candidate, given as a mask of the graph's ops."""
        low = lowest(mask)
        return self.sets[low][mask >> low]

    def items(self) -> Iterator[tuple[int, float]]:
        """(mask of the graph's ops, cost) of every candidate."""
        for low, each in zip(count(), self.sets):
            for mask, price in each.items():
                yield mask << low, price


def lowest(mask: int) -> int:
    """Position of the lowest op of a mask."""
    return (mask & -mask).bit_length() - 1
