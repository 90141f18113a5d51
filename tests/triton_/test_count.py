"""How emitted code is divided into walks, and what Philox draws."""

from __future__ import annotations

import pytest

from fuseledger.triton.check_random import uniform
from fuseledger.triton.count import walks_of
from fuseledger.triton.pretty import lines_of

TWO_WALKS = """
def kernel(x_ptr, y_ptr):
    a = tl.load(x_ptr)
    for i in range(3):
        a += tl.load(x_ptr + i)
    for i in range(3):
        tl.store(y_ptr + i, a + tl.load(x_ptr + i))
"""


def test_each_outermost_loop_is_a_walk() -> None:
    """The first loop is a walk of its own; the second, around every store, is the grid's."""
    walks = walks_of(TWO_WALKS)
    assert walks.get(3, 0) == 0
    assert walks[5] != 0
    assert walks.get(7, 0) == 0


def test_a_loop_inside_the_grids_own_is_a_walk() -> None:
    """Under a loop around all stores, the loops inside are told apart."""
    lines = TWO_WALKS.splitlines()
    nested = [*lines[:2], "    for b in range(2):", *[f"    {line}" for line in lines[2:]]]
    walks = walks_of("\n".join(nested))
    assert walks.get(4, 0) == 0
    assert walks[6] != 0
    assert walks.get(8, 0) == 0


def test_loops_side_by_side_in_a_loop_are_walks() -> None:
    """A statistic and its reader inside one loop walk their tensor twice."""
    lines = [
        "def kernel(x_ptr, y_ptr):",
        "    for o in range(2):",
        "        for i in range(3):",
        "            a += tl.load(x_ptr + i)",
        "        for i in range(3):",
        "            b += a * tl.load(x_ptr + i)",
        "    tl.store(y_ptr, b)",
    ]
    walks = walks_of("\n".join(lines))
    assert len({walks[2], walks[4], walks[6]}) == 3


def test_philox_is_that_of_its_authors() -> None:
    """Known answer of Philox 4x32-10 for key 0 and counter 0: 0x6627e8d5 first."""
    pytest.importorskip("numpy")
    assert uniform(0, 1)[0] == pytest.approx(0x6627E8D5 * 4.6566127342e-10, rel=1e-6)


def test_long_lines_are_broken_where_a_formatter_would() -> None:
    """A long load has an argument a line, and its mask a condition after the other."""
    condition = " & ".join(f"(row_{i}[:, None] < LIMIT_{i})" for i in range(6))
    lines = list(lines_of(f"x = tl.load(ptr + (m * M + n), mask={condition}, other=0.0)", 1))
    assert lines[0] == "    x = tl.load("
    assert lines[-1] == "    )"
    assert max(map(len, lines)) <= 100
    joined = "".join(line.strip() for line in lines).replace(" ", "")
    assert condition.replace(" ", "") in joined
