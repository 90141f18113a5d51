"""Parts of split results for the check: random ones, and what they add up to."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fuseledger.triton.partials import Partial, split_tile

PART_POINTS = 13
"""Points of a split axis in one small part."""
PARTS = 3
REST = 7


def small_partial(partial: Partial) -> Partial:
    """The same parts with few points; one that was short still is."""
    axes: list[tuple[str, int, int]] = []
    for name, size, tile in partial.axes:
        parts = min(PARTS, -(-size // tile))
        points = parts * PART_POINTS - (2 if size % tile else 0)
        axes.append((name, points, split_tile(points, parts)))
    return replace(partial, axes=tuple(axes), rest=min(partial.rest, REST))


def random_parts(partial: Partial, shape: tuple[int, ...], rng: Any) -> list[Any]:
    """Random states `[parts, *shape]` of every result, as fp32 holds them."""
    import numpy as np

    states: list[Any] = [rng.standard_normal((partial.parts, *shape)) for _ in partial.results]
    if partial.combine in ("moments", "max_sumexp"):
        states[1] = np.abs(states[1]) + 0.5
    elif partial.combine in ("any", "all"):
        states = [(state > 0) * 1.0 for state in states]
    else:
        states = [np.abs(state) + 0.5 for state in states]
    return [state.astype(np.float32).astype(np.float64) for state in states]


def merge(partial: Partial, states: list[Any]) -> list[Any]:
    """All parts together, in float64."""
    import numpy as np

    combine = partial.combine
    if combine == "moments":
        means, m2 = states
        counts = np.asarray(_counts(partial)).reshape(-1, *[1] * (means.ndim - 1))
        mean = (counts * means).sum(0) / counts.sum()
        return [mean, (m2 + counts * (means - mean) ** 2).sum(0)]
    if combine == "max_sumexp":
        tops, totals = states
        top = tops.max(0)
        return [top, (totals * np.exp(tops - top)).sum(0)]
    simple: dict[str, Any] = {
        "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.max, "all": np.min,
    }  # fmt: skip
    return [simple[combine](states[0], axis=0)]


def _counts(partial: Partial) -> list[float]:
    """Points of each part, the last axis innermost."""
    counts = [float(partial.rest)]
    for _, size, tile in partial.axes:
        lengths = [min(tile, size - start) for start in range(0, size, tile)]
        counts = [count * length for count in counts for length in lengths]
    return counts
