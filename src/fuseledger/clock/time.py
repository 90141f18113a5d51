"""Time of one kernel, with the terms it is made of."""

from __future__ import annotations

from msgspec import Struct

GENERATED = "generated"


class Time(Struct, frozen=True):
    """Time of one kernel in µs, with the terms of the clock."""

    total_us: float
    launch_us: float
    terms: tuple[tuple[str, float], ...]
    """(dram | l2 | pipeline | matrix | lanes | special, µs); the greatest one counts."""
    latency_us: float
    spill_us: float
    combine_us: float = 0.0
    """Of a second kernel that folds partial results: its bytes."""
    layout_us: float = 0.0
    """Of passes that turn a convolution's row-major operands to channels last and back."""
    realised: str = GENERATED
    """How the kernel is realised at this time: `generated`, or the library call."""
    matrix_share: float = 1.0
    """Share of the pipe's dense peak that its product was priced at."""
    padding: float = 1.0
    """Matrix work of its products' tiles over that of the elements they hold."""

    @property
    def slowest(self) -> tuple[str, float]:
        """The term that counts."""
        return max(self.terms, key=lambda term: term[1])

    @property
    def bound(self) -> str:
        """What the kernel waits for."""
        name, slowest = self.slowest
        beside_us = self.launch_us + self.latency_us + self.combine_us
        return name if slowest > beside_us else "launch"
