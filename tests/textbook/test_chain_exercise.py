"""The chain exercise: every printed figure, from the ordinary planner, ledger and clock."""

import pytest

from fuseledger.devices import load
from fuseledger.errors import InputError
from fuseledger.planner.compare import compare_cuts
from fuseledger.planner.plan import cut_groups, make_plan, plan_of_groups
from fuseledger.textbook.chain import Stage, chain_graph, chain_mlp_epilogue, chain_that_spills

DEVICE = load("textbook")
TABLE = {
    (1, 1, 1, 1): (335_552_512, 4, 128),
    (1, 3): (201_334_784, 2, 128),
    (2, 2): (201_334_784, 2, 136),
    (4,): (134_225_920, 1, 160),
}
"""Section 6 of the design: cut → bytes, launches, peak registers for 4096³."""


def _compare(stages, *cuts):
    graph = chain_graph(stages)
    return compare_cuts(
        [plan_of_groups(graph, DEVICE, cut_groups(graph, list(cut))) for cut in cuts]
    )


def _by_hand_us(stages, cut):
    """The exercise's formula, written out without the ledger."""
    total, start = 0.0, 0
    for length in cut:
        group = stages[start : start + length]
        elements = (stages[start - 1].out_elems if start else 0) + group[-1].out_elems
        elements += sum(stage.ext_elems for stage in group)
        memory = 2 * elements / 448e9 * (3 if sum(s.live_regs for s in group) > 255 else 1)
        total += max(memory, sum(s.flops for s in group) / 40e12) + 5e-6
        start += length
    return total * 1e6


def test_the_table_of_the_4096_cubed_chain():
    """Bytes, launches and peak registers of the four cuts are those that the exercise prints."""
    rows = _compare(chain_mlp_epilogue(4096, 4096, 4096), *TABLE).rows
    assert [(r.bytes, r.launches, r.peak_registers) for r in rows] == list(TABLE.values())


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (16, 4096, 4096)])
@pytest.mark.parametrize("cut", TABLE)
def test_times_follow_the_formula(size, cut):
    """The ledger's time is the exercise's formula evaluated by hand."""
    stages = chain_mlp_epilogue(*size)
    (row,) = _compare(stages, cut).rows
    assert row.time_us == pytest.approx(_by_hand_us(stages, cut), rel=1e-12)


def test_the_best_cut_of_the_large_chain():
    """Best for 4096³ is one kernel, about 3.45 ms."""
    best = make_plan(chain_graph(chain_mlp_epilogue(4096, 4096, 4096)), DEVICE)
    assert [len(kernel.ops) for kernel in best.plan.kernels] == [4]
    assert best.totals.time_us / 1000 == pytest.approx(3.45, abs=0.005)


def test_the_decode_chain_saves_mostly_launches():
    """16×4096×4096: 80.8 µs against 97.5 µs, and 15 µs of the difference are launches."""
    result = _compare(chain_mlp_epilogue(16, 4096, 4096), (1, 1, 1, 1), (4,))
    unfused, fused = result.rows
    assert f"{unfused.time_us:.1f} {fused.time_us:.1f}" == "97.5 80.8"
    (difference,) = result.differences
    assert difference.saved_by_account["launches"] == pytest.approx(15)
    assert difference.sentence.endswith(": launches 15.00 + traffic 1.76")
    assert sum(difference.saved_by_account.values()) == pytest.approx(difference.saved_us)
    assert result.best == "[4]"


def test_fusing_loses_where_registers_spill():
    """200 + 100 registers: 1.21 ms apart, 1.803 ms fused at 300 registers."""
    result = _compare(chain_that_spills(), (1, 1), (2,))
    apart, fused = result.rows
    assert f"{apart.time_us / 1000:.2f} {fused.time_us / 1000:.3f}" == "1.21 1.803"
    assert fused.peak_registers == 300
    assert result.best == "[1,1]"
    (difference,) = result.differences
    assert difference.saved_us < 0
    assert min(difference.saved_by_account, key=difference.saved_by_account.__getitem__) == "spills"


def test_equal_figures_are_explained():
    """[1,3] and [2,2] move the same bytes because each keeps one intermediate of 33.6 MB."""
    (note,) = _compare(chain_mlp_epilogue(4096, 4096, 4096), (1, 3), (2, 2), (4,)).notes
    assert "[1,3] and [2,2] move the same 201,334,784 bytes" in note
    assert "each writes and reads one intermediate, 33.6 MB (mm.out, bias.out)" in note
    assert note.endswith("they differ in peak registers (128, 136)")


def test_time_accounts_add_up():
    """The accounts of a row's time add up to the time."""
    for row in _compare(chain_mlp_epilogue(64, 512, 256), *TABLE).rows:
        assert sum(row.time_by_account.values()) == pytest.approx(row.time_us, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((0, 1, 0.0, 1), "out_elems"),
        ((1, -1, 0.0, 1), "ext_elems"),
        ((1, 1, float("nan"), 1), "flops"),
        ((1, 1, 0.0, -5), "live_regs"),
    ],
)
def test_a_stage_names_the_field_that_cannot_be(values, field):
    """A stage that writes nothing, or has a negative figure or a NaN, is refused by name."""
    with pytest.raises(InputError, match=f"stage s: {field}"):
        Stage("s", *values)


def test_a_chain_needs_distinct_stages():
    """An empty chain, or one with two stages of one name, is refused."""
    with pytest.raises(InputError, match="at least one stage"):
        chain_graph([])
    with pytest.raises(InputError, match="same name"):
        chain_graph([Stage("a", 1, 1, 0.0, 1)] * 2)
