"""Index maps and factorings, by hand and by property."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseledger.graph.axis import Axis, Index, common_refinement, mixed_radix

FACTORS = st.lists(st.integers(2, 6), min_size=1, max_size=4).map(tuple)


def cuts(factors: tuple[int, ...]) -> set[int]:
    """Products of the innermost 0, 1, … factors: where a dimension is cut."""
    return {1, *accumulate(reversed(factors), lambda x, y: x * y)}


def test_only_the_axis_itself_is_plain():
    """A coordinate equals an axis only with stride 1, no offset, no divisor and no lookup."""
    assert Index.of("x").axis == "x"
    for other in (
        Index((("x", 2),)),
        Index((("x", 1),), 1),
        Index((("x", 1),), 0, 2),
        Index((("x", 1),), lookup=0),
        Index((("x", 1), ("r", 1))),
        Index(),
    ):
        assert other.axis is None


def test_bounds_of_a_window():
    """x·2 + r − 1 over x in 0…9 and r in 0…2 runs from −1 to 19."""
    window = Index((("x", 2), ("r", 1)), -1)
    assert window.bounds({"x": 10, "r": 3}.__getitem__) == (-1, 19)


def test_bounds_of_a_reversed_axis():
    """9 − x over x in 0…9 runs from 0 to 9."""
    assert Index((("x", -1),), 9).bounds({"x": 10}.__getitem__) == (0, 9)


def test_substitution_is_composition():
    """x·2 + r + 1 with x = 4·h + e + 3 is 8·h + 2·e + r + 7."""
    inner = Index((("h", 4), ("e", 1)), 3)
    found = Index((("x", 2), ("r", 1)), 1).substitute({"x": inner})
    assert found == Index((("h", 8), ("e", 2), ("r", 1)), 7)


def test_terms_of_one_axis_add_up():
    """x + y with y = 2·x is 3·x, and with y = −x it is the constant 0."""
    both = Index((("x", 1), ("y", 1)))
    assert both.substitute({"y": Index((("x", 2),))}) == Index((("x", 3),))
    assert both.substitute({"y": Index((("x", -1),))}) == Index()


def test_a_lookup_replaces_a_bare_axis_only():
    """A looked-up coordinate cannot stand inside an affine index."""
    lookup = Index(lookup=0)
    assert Index.of("x").substitute({"x": lookup}) == lookup
    with pytest.raises(ValueError, match="axis x has no affine replacement"):
        Index((("x", 2),)).substitute({"x": lookup})


def test_words():
    """An index reads as it would be written by hand."""
    assert str(Index((("x", 2), ("r", 1)), -1)) == "2·x+r-1"
    assert str(Index((("x", 1),), 1, 2)) == "(x+1)/2"
    assert str(Index(lookup=1)) == "@1"
    assert str(Axis("m", 64)) == "m:64"


def test_mixed_radix_strides():
    """Axes of sizes 4, 3, 2 have strides 6, 2, 1."""
    axes = [Axis("a", 4), Axis("b", 3), Axis("c", 2)]
    assert mixed_radix(axes) == Index((("a", 6), ("b", 2), ("c", 1)))
    assert mixed_radix([]) == Index()


@pytest.mark.parametrize(
    ("factorings", "expected"),
    [
        ([(6,), (2, 3)], (2, 3)),
        ([(2, 6), (6, 2)], (2, 3, 2)),
        ([(8, 3), (2, 12)], (2, 4, 3)),
        ([(4, 6), (6, 4)], None),
        ([(2, 3), (3, 2)], None),
        ([(7,)], (7,)),
    ],
)
def test_refinement_by_hand(factorings: list[tuple[int, ...]], expected: tuple[int, ...] | None):
    """Cuts of all factorings together must divide each other; 4·6 and 6·4 cut at 6 and 4."""
    assert common_refinement(factorings) == expected


def test_refinement_of_different_sizes_is_refused():
    """Factorings of different sizes are no factorings of one dimension."""
    with pytest.raises(ValueError, match="different sizes"):
        common_refinement([(6,), (8,)])


@given(FACTORS, st.data())
def test_refinement_splits_and_is_coarsest(factors: tuple[int, ...], data: st.DataObject):
    """Merging neighbours of one factoring refines back to it: its cuts are exactly the union."""
    groups: list[tuple[int, ...]] = []
    for _ in range(2):
        merged: list[int] = []
        for factor in factors:
            if merged and data.draw(st.booleans()):
                merged[-1] *= factor
            else:
                merged.append(factor)
        groups.append(tuple(merged))
    found = common_refinement(groups)
    assert found is not None
    assert cuts(found) == cuts(groups[0]) | cuts(groups[1])
    assert prod(found) == prod(factors)
    assert common_refinement(reversed(groups)) == found
    assert common_refinement([found, *groups]) == found


@given(st.permutations([2, 2, 3, 4]), st.permutations([2, 2, 3, 4]))
def test_refinement_exists_when_cuts_form_a_chain(one: list[int], two: list[int]):
    """There is a refinement exactly where every cut divides the next larger one."""
    union = sorted(cuts(tuple(one)) | cuts(tuple(two)))
    chain = all(high % low == 0 for low, high in pairwise(union))
    assert (common_refinement([tuple(one), tuple(two)]) is not None) == chain
