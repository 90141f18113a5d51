"""Time of one kernel, with the terms it is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Time:
    """Time of one kernel in µs, with the terms of the clock."""

    total_us: float
    launch_us: float
    terms: tuple[tuple[str, float], ...]
    """(dram | l2 | matrix | lanes | special, µs); the greatest one counts."""
    latency_us: float
    spill_us: float
    combine_us: float = 0.0
    """What the kernel that combines partial results streams, after the one that makes them."""

    @property
    def bound(self) -> str:
        """What the kernel waits for."""
        name, slowest = max(self.terms, key=lambda term: term[1])
        return name if slowest > self.launch_us + self.latency_us else "launch"
