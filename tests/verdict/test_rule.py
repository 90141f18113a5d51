"""The rule's outcomes, each on figures derived in the test."""

import pytest

from fuseledger.errors import DecisionError
from fuseledger.verdict.rule import Option, decide

SMS, BANDWIDTH = 132, 4502.4
ROOM = 228 * 1024


def option(name, mb=1.0, grid=1000, kb=64, **more):
    """An option in round figures; it fits and fills unless told otherwise."""
    figures = {"bytes": int(mb * 1e6), "grid": grid, "on_chip_bytes": kb * 1024}
    return Option(name=name, **{**figures, "capacity_limit_bytes": ROOM, **more})


def verdict(*options, **more):
    """The rule on an H100-like machine."""
    return decide(options, sm_count=SMS, bandwidth_gbs=BANDWIDTH, **more)


def test_both_usable_fewer_bytes_win():
    """Step 5: 90.048 MB less at 4,502.4 GB/s are 20 µs."""
    found = verdict(option("fused", 10, choice="fuse"), option("apart", 100.048, choice="split"))
    assert (found.choice, found.winner, found.account) == ("fuse", "fused", "traffic")
    assert found.saved_bytes == 90_048_000
    assert found.saved_us == pytest.approx(20)
    assert "saves 90.0 MB = 20.00 µs" in found.reason


@pytest.mark.parametrize("first", [0, 1])
def test_capacity_veto_either_way(first):
    """Step 2: the one option that fits wins, whatever it pays."""
    options = [option("big", 10, kb=229), option("small", 30)]
    found = verdict(*(options if first == 0 else options[::-1]))
    assert (found.winner, found.account, found.paid_bytes) == ("small", "capacity", 20_000_000)
    assert "big holds 229 KB, 228 KB are there" in found.reason


def test_a_capacity_veto_may_also_save_bytes():
    """The other way: the option that fits moves less, and nothing is paid."""
    found = verdict(option("small", 10), option("big", 30, kb=300))
    assert (found.account, found.paid_bytes, found.saved_bytes) == ("capacity", 0, 20_000_000)


@pytest.mark.parametrize("grid", [131, 1])
def test_parallelism_veto_names_the_bytes_paid(grid):
    """Step 3: the one option that fills 132 SMs wins, and pays 22.512 MB = 5 µs."""
    found = verdict(option("short", 10, grid=grid), option("split", 32.512, choice="split"))
    assert (found.choice, found.account) == ("split", "parallelism")
    assert found.paid_bytes == 22_512_000
    assert found.paid_us == pytest.approx(5)
    assert f"short has a grid of {grid} on 132 SMs" in found.reason
    assert "pays 22.5 MB (5.00 µs)" in found.reason


def test_parallelism_veto_the_other_way():
    """A fused option that fills wins over a split one that does not."""
    found = verdict(option("fused", 10, choice="fuse"), option("split", 5, grid=100))
    assert (found.choice, found.account, found.paid_bytes) == ("fuse", "parallelism", 5_000_000)


def test_a_grid_of_exactly_the_sms_covers_them():
    """132 blocks cover 132 SMs; 131 do not."""
    assert verdict(option("a", 1, grid=132), option("b", 2)).account == "traffic"


def test_bytes_on_chip_of_exactly_the_room_fit():
    """228 KB fit 228 KB."""
    assert verdict(option("a", 1, kb=228), option("b", 2)).account == "traffic"


def test_neither_fits():
    """Step 2: no option fits: neither, re-tile, and the proposal is asked for."""
    found = verdict(option("a", kb=300), option("b", kb=400), propose=lambda: "tiles of 32 rows")
    assert (found.choice, found.winner, found.account) == ("neither", None, "capacity")
    assert "re-tile" in found.reason
    assert found.proposal == "tiles of 32 rows"


def test_neither_fills():
    """Step 4: both fit and both leave SMs idle: neither."""
    found = verdict(option("a", grid=10), option("b", grid=20), propose=lambda: None)
    assert (found.choice, found.account, found.proposal) == ("neither", "parallelism", None)


def test_no_proposal_is_asked_for_where_an_option_wins():
    """The search behind a proposal costs time and is not run for a verdict that has a winner."""

    def never():
        raise AssertionError("asked")

    assert verdict(option("a", 1), option("b", 2), propose=never).proposal is None


def test_capacity_comes_before_parallelism():
    """Of one option that fits and does not fill and one that fills and does not fit, the first
    wins by step 2, with a warning of the idle SMs."""
    found = verdict(option("fits", grid=100), option("fills", kb=300))
    assert (found.winner, found.account) == ("fits", "capacity")
    assert found.warnings == ("fits: its grid of 100 leaves 32 SMs idle",)


def test_equal_bytes_prefer_fewer_launches_then_less_on_chip():
    """A tie is said to be one, and broken by launches, then by bytes on chip."""
    by_launches = verdict(option("two", 5, launches=2), option("one", 5, kb=100))
    assert (by_launches.winner, by_launches.account) == ("one", "launches")
    assert "move the same 5.0 MB" in by_launches.reason
    by_room = verdict(option("wide", 5, kb=100), option("slim", 5, kb=50))
    assert (by_room.winner, by_room.account) == ("slim", "capacity")
    alike = verdict(option("x", 5), option("y", 5))
    assert (alike.winner, alike.saved_bytes) == ("x", 0)


def test_of_three_options_the_vetoed_cheapest_is_named():
    """Two splits are usable, the smaller wins, and what it pays against no split is named."""
    found = verdict(option("no split", 4, grid=64), option("split 4", 38), option("split 8", 71))
    assert (found.winner, found.account) == ("split 4", "traffic")
    assert (found.saved_bytes, found.paid_bytes) == (33_000_000, 34_000_000)
    assert "no split would move 34.0 MB less but is vetoed" in found.reason


def test_a_kernel_too_small_for_any_machine_is_warned_about():
    """R6: a short grid of a few MB vetoes nothing."""
    found = verdict(option("small", 1, grid=8, is_small=True), option("split", 2))
    assert (found.winner, found.account) == ("small", "traffic")
    warning = "small has a grid of 8 on 132 SMs, and is too small to fill any machine"
    assert found.warnings == (warning,)


def test_unknown_sms_veto_nothing():
    """On a device whose SMs are unknown every grid covers it."""
    found = decide(
        [option("a", 1, grid=1), option("b", 2, grid=1)], sm_count=None, bandwidth_gbs=None
    )
    assert (found.winner, found.saved_us) == ("a", 0.0)


def test_the_clock_may_disagree_and_says_why():
    """Fewer bytes lose to a faster option: rule and clock differ, and the verdict says so."""
    found = verdict(option("lean", 1, time_us=30.0), option("quick", 2, time_us=20.0))
    assert (found.winner, found.clock_choice) == ("lean", "quick")
    assert found.disagreement is not None
    assert "20.0 µs against 30.0 µs" in found.disagreement
    vetoed = verdict(option("short", 1, grid=9, time_us=1.0), option("split", 2, time_us=2.0))
    assert vetoed.disagreement is not None
    assert "the rule vetoes it (short has a grid of 9 on 132 SMs)" in vetoed.disagreement


def test_no_times_no_clock():
    """Without a time of every option the clock has no opinion."""
    found = verdict(option("a", 1, time_us=1.0), option("b", 2))
    assert (found.clock_choice, found.disagreement) == (None, None)


def test_one_option_or_one_name_decides_nothing():
    """Fewer than two options, or a name used twice, are refused."""
    with pytest.raises(DecisionError, match="two options or more, not 1"):
        verdict(option("a"))
    with pytest.raises(DecisionError, match="two options are named 'a'"):
        verdict(option("a"), option("a"))
