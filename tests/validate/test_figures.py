"""Figures of merit against hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest

from fuseledger.validate.figures import choices, kendall, spearman


def test_spearman_of_a_monotone_map_is_one() -> None:
    """Ranks do not see the scale."""
    x = np.array([1.0, 5.0, 2.0, 9.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert spearman(x, -x) == pytest.approx(-1.0)


def test_ties_share_their_mean_rank() -> None:
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5/√(4.5·5), by hand."""
    tied = spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert tied == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_kendall_counts_pairs() -> None:
    """One swapped pair of six: (5 - 1) / 6."""
    assert kendall(np.array([1, 2, 3, 4]), np.array([1, 2, 4, 3])) == pytest.approx(4 / 6)


def test_two_rows_have_no_rank_correlation() -> None:
    """None rather than a figure that says nothing."""
    assert spearman(np.array([1.0, 2.0]), np.array([2.0, 3.0])) is None


def test_gains_within_five_per_cent_are_ties() -> None:
    """1.04 and 0.96 are ties; 1.06 pays; 0.9 loses."""
    assert choices(np.array([1.04, 0.96, 1.06, 0.9])).tolist() == [0, 0, 1, -1]


def test_kendall_leaves_ties_out_of_its_scale() -> None:
    """τ-b: one pair is tied in the first, one in the second, and the other four agree: 4/√(5·5);
    where all are tied it says nothing."""
    first, second = np.array([1, 2, 2, 3]), np.array([1, 2, 3, 3])
    assert kendall(first, second) == pytest.approx(4 / 5)
    assert kendall(first, np.ones(4)) is None
