"""Masks by position, and what of an attention they leave."""

from __future__ import annotations

import pytest

from fuseledger.frontends.source import load
from fuseledger.graph.scalar import Coord, call
from fuseledger.ledger.masks import compared, unmasked_share
from fuseledger.ledger.nest import analyse


def share(queries: int, keys: int, *, causal: bool, tile: int = 128) -> float:
    """The share of an attention's tiles that are computed."""
    flag = ", causal=true" if causal else ""
    shapes = (f"q[1,2,{queries},64]", f"k[1,2,{keys},64]", f"v[1,2,{keys},64]")
    graph = load(f"attention({', '.join(shapes)}{flag})", dtype="fp16", dims={})
    return unmasked_share(analyse(graph, tuple(range(len(graph.ops)))), tile)


def test_without_a_mask_all_is_computed() -> None:
    """Every query sees every key."""
    assert share(512, 512, causal=False) == 1.0


@pytest.mark.parametrize(("size", "tile"), [(512, 128), (500, 128), (512, 1), (100, 128)])
def test_a_causal_mask_leaves_the_tiles_on_and_below_the_diagonal(size: int, tile: int) -> None:
    """Counted tile by tile: one is computed where its first key is no later than its last query."""
    kept = sum(
        (min(size, m + tile) - m) * (min(size, n + tile) - n)
        for m in range(0, size, tile)
        for n in range(0, size, tile)
        if n <= min(size, m + tile) - 1
    )
    assert share(size, size, causal=True, tile=tile) == pytest.approx(kept / size**2)


def test_one_query_sees_every_key() -> None:
    """A rectangle's causal mask ends at the last key: nothing is hidden in decoding."""
    assert share(1, 4096, causal=True) == 1.0


def test_a_window_beside_the_causal_mask_hides_no_less() -> None:
    """Of `n > m − 4` and `n ≤ m`, in whichever order, one says where the keys end: n ≤ m + 0."""
    row, column = Coord("m"), Coord("n")
    window = call("gt", column, call("sub", row, 4))
    causal = call("le", column, row)
    for order in ((window, causal), (causal, window)):
        assert set(compared(call("and", *order))) == {("n", "m", 0), ("m", "n", 3)}
