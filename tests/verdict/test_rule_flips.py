"""Flip points: found without listing, and checked here by listing."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fuseledger.verdict.flip_points import flips_of_size
from fuseledger.verdict.rule import Option, apply_rule, decide

SMALL = st.integers(1, 40)
OPTION = st.builds(
    lambda mb, grid, held: Option(
        name="?", bytes=mb, grid=grid, on_chip_bytes=held, capacity_limit_bytes=20
    ),
    SMALL, SMALL, SMALL,
)  # fmt: skip


@given(st.lists(OPTION, min_size=2, max_size=4), SMALL)
def test_flips_along_sms_are_the_nearest_ones(options, sms):
    """Trying every number of SMs finds the same nearest flips as the breakpoints."""
    options = [replace(option, name=f"o{i}") for i, option in enumerate(options)]
    verdict = decide(options, sm_count=sms, bandwidth_gbs=1.0)
    found = {f.value for f in verdict.flips if f.figure == "SMs"}
    other = [n for n in range(1, 60) if apply_rule(options, n, 1.0).winner != verdict.winner]
    nearest = {
        max((n for n in other if n < sms), default=None),
        min((n for n in other if n > sms), default=None),
    }
    assert found == nearest - {None}


@given(st.lists(OPTION, min_size=2, max_size=4), SMALL)
def test_flips_along_room_are_the_nearest_ones(options, sms):
    """Trying every room on chip finds the same nearest flips as the breakpoints."""
    options = [replace(option, name=f"o{i}") for i, option in enumerate(options)]
    verdict = decide(options, sm_count=sms, bandwidth_gbs=1.0)
    found = {f.value for f in verdict.flips if f.figure == "room on chip"}

    def winner(room):
        changed = [replace(option, capacity_limit_bytes=room) for option in options]
        return apply_rule(changed, sms, 1.0).winner

    other = [n for n in range(1, 60) if winner(n) != verdict.winner]
    nearest = {
        max((n for n in other if n < 20), default=None),
        min((n for n in other if n > 20), default=None),
    }
    assert found == nearest - {None}


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500))
def test_bisection_finds_the_first_change_on_each_side(now, low, high):
    """A verdict that holds within an interval flips right outside of it."""
    low, high = min(now, low), max(now, high)
    flips = flips_of_size("m", now, 1, 1000, "in", lambda m: "in" if low <= m <= high else "out")
    expected = ([low - 1] if low > 1 else []) + [high + 1]
    assert [flip.value for flip in flips] == expected


def test_a_flip_is_a_sentence_with_its_figure():
    """128 tiles of M and eight of N: the split wins up to the last M with fewer than 132 blocks."""
    (flip,) = flips_of_size(
        "M",
        1024,
        1024,
        1 << 20,
        "split",
        lambda m: "split" if -(-m // 128) * 8 < 132 else "no split",
    )
    assert flip.value == 2049
    assert flip.sentence == "split wins up to M = 2,048; at M = 2,049: no split"
