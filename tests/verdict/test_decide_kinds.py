"""Decisions on a GEMM and on decode attention, with the figures of the real planner."""

import pytest

from fuseledger.devices import load, replace_figures
from fuseledger.errors import DecisionError
from fuseledger.verdict.attention import Attention, decide_attention
from fuseledger.verdict.gemm import Gemm, decide_gemm
from fuseledger.verdict.split import Pricing

H100 = load("h100-sxm")
TILE = (128, 128)
SKINNY = Gemm(M=1024, N=1024, K=16384, tile=TILE)


def test_a_skinny_gemm_is_split():
    """64 tiles leave 68 of 132 SMs idle; eight parts of fp32 partials go out and come back."""
    decision = decide_gemm(SKINNY, H100, splits=(8,))
    whole, split = decision.options
    operands = 2 * (1024 * 16384 * 2) + 1024 * 1024 * 2
    assert (whole.bytes, whole.grid) == (operands, 64)
    assert (split.bytes, split.grid) == (operands + 2 * 8 * 1024 * 1024 * 4, 512)
    assert (decision.verdict.choice, decision.verdict.account) == ("split", "parallelism")
    assert decision.verdict.paid_bytes == 2 * 8 * 1024 * 1024 * 4


def test_the_best_factor_is_the_fastest_of_all():
    """No factor that covers the machine is faster than the one found."""
    best = Pricing(SKINNY.split(), H100).best()
    factors = [split for split in range(2, 65) if 64 * split >= 132]
    options = decide_gemm(SKINNY, H100, splits=factors).options[1:]
    times = {option.name: option.time_us for option in options}
    assert times[f"split-K={best}"] == min(times.values())


def test_sizes_at_which_the_split_stops_paying():
    """128×128 tiles: 8 tiles of N, so M = 2,048 has 128 blocks < 132 and M = 2,049 has 136."""
    flips = decide_gemm(SKINNY, H100, splits=(8,)).verdict.flips
    sentences = [flip.sentence for flip in flips if flip.figure == "M"]
    assert "split wins up to M = 2,048; at M = 2,049: no split" in sentences
    (least,) = [flip for flip in flips if flip.figure == "split"]
    assert (least.value, least.becomes) == (2, "neither")


def test_a_large_gemm_needs_no_split():
    """1,024 tiles cover the machine: partials only add bytes."""
    verdict = decide_gemm(Gemm(M=4096, N=4096, K=4096, tile=TILE), H100).verdict
    assert (verdict.winner, verdict.account) == ("no split", "traffic")


def test_neither_comes_with_a_usable_schedule():
    """One 128×128 tile in eight parts leaves 124 SMs idle: the search finds better."""
    verdict = decide_gemm(Gemm(M=128, N=128, K=65536, tile=TILE), H100, splits=(8,)).verdict
    assert (verdict.choice, verdict.account) == ("neither", "parallelism")
    assert verdict.proposal is not None
    assert "k=split(" in verdict.proposal


def test_a_tile_too_large_for_the_machine_is_vetoed_by_capacity():
    """512×512 accumulators are 1 MB, and 192 KB of registers are there."""
    decision = decide_gemm(Gemm(M=4096, N=4096, K=4096, tile=(512, 512)), H100, splits=(2,))
    assert decision.verdict.choice == "neither"
    assert decision.verdict.account == "capacity"
    assert decision.verdict.proposal is not None


@pytest.mark.parametrize("size", [(1, 4096, 4096), (4096, 1, 4096), (1, 1, 4096), (7, 5, 3)])
def test_degenerate_gemms_are_decided(size):
    """A vector, a dot product, a GEMM smaller than a tile: each has a verdict."""
    m, n, k = size
    assert decide_gemm(Gemm(M=m, N=n, K=k), H100).verdict.choice in ("split", "no split", "neither")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gemm(M=0, N=1, K=1), "gemm: M is 0"),
        (lambda: Gemm(M=1, N=1, K=1, dtype="int8"), "'int8' is no floating-point dtype"),
        (lambda: Gemm(M=1, N=1, K=1, tile=(0, 1)), "a tile of 0x1 holds nothing"),
        (lambda: decide_gemm(Gemm(M=8, N=8, K=1), H100), "K = 1 leaves nothing to split"),
        (lambda: decide_gemm(SKINNY, H100, splits=(1,)), "a split of 1 must be from 2"),
        (lambda: decide_gemm(SKINNY, H100, splits=(1 << 20,)), "a split of 1048576 must be"),
        (lambda: decide_attention(0, 8, 8, H100), "attention: heads is 0"),
        (lambda: decide_attention(8, 1, 8, H100), "kv = 1 leaves nothing to split"),
        (lambda: decide_attention(8, 8, 8, H100, splits=(9,)), "a split of 9 must be"),
        (lambda: decide_attention(8, 8, 8, H100, dtype="cake"), "'cake' is no floating-point"),
    ],
)
def test_what_cannot_be_decided_is_named(make, message):
    """A size, dtype, tile or factor that cannot be is refused by name."""
    with pytest.raises(DecisionError, match=message):
        make()


def test_decode_attention_is_split():
    """32 blocks leave 100 SMs idle; a split of 64 pays its partials and statistics in fp32."""
    verdict = decide_attention(32, 1 << 17, 128, H100, splits=(64,)).verdict
    assert (verdict.choice, verdict.account) == ("split", "parallelism")
    assert verdict.paid_bytes == 2 * 32 * 64 * (128 + 2) * 4
    assert "split wins up to heads = 131; at heads = 132: one block a head" in [
        flip.sentence for flip in verdict.flips
    ]


def test_many_heads_need_no_split():
    """256 heads cover 132 SMs, and a split only adds bytes."""
    assert decide_attention(256, 8192, 128, H100).verdict.winner == "one block a head"


def test_heads_too_wide_do_not_fit():
    """One head of d = 65,536 keeps 256 KB of fp32 sums: 192 KB of registers are there."""
    verdict = decide_attention(32, 4096, 65536, H100).verdict
    assert (verdict.choice, verdict.account) == ("neither", "capacity")
    assert "256 KB" in verdict.reason


def test_attention_of_many_queries_is_no_decoding():
    """One query a head is a step of decoding; a prompt has many."""
    assert Attention(heads=8, kv=64, d=64).title.startswith("decode attention, 8 heads")
    assert Attention(heads=8, kv=64, d=64, queries=64).title.startswith("attention, 8 heads, 64")


def test_the_best_kv_split_covers_the_machine():
    """The factor covers whatever SMs there are."""
    question = Attention(heads=8, kv=8192, d=128)
    for sms in (16, 132, 500):
        device = replace_figures(H100, sm_count=sms)
        assert 8 * Pricing(question.split(), device).best() >= sms


def test_a_gemm_too_small_for_any_machine_is_left_whole():
    """11 kB are less than the machine moves during a launch: no veto, a warning (R6)."""
    verdict = decide_gemm(Gemm(M=17, N=33, K=100), H100).verdict
    assert (verdict.winner, verdict.account) == ("no split", "traffic")
    assert any("too small to fill any machine" in warning for warning in verdict.warnings)
