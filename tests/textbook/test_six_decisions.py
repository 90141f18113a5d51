"""The ledger of six decisions: every cell of the exercise's table."""

import pytest

from fuseledger.devices import load
from fuseledger.report.decision import decide_document
from fuseledger.report.textbook import decision_rows, ledger_document
from fuseledger.textbook.ledger import EXERCISES, ledger_device, six_decisions
from fuseledger.verdict.options import plan_option

TABLE = """
134.2   67.1   32768  16384 2.0 / 2.0     228 1 fused: saves 67.1 MB = 14.91 µs
151.7   67.8   163840 20480 16.0 / 104.0  192 1 fused: saves 83.9 MB = 18.63 µs
100.7   33.6   1024   1024  64.0 / 64.2   228 fused epilogue: saves 67.1 MB = 14.91 µs
4.2     71.3   64     512   64.0 / 64.0   228 split-K=8: parallelism, pays +67.1 MB
2147.5  2149.6 32     2048  128.0 / 128.0 228 split-KV=64: parallelism, pays +2.1 MB
67.1    0.0    16384  1024  16.0 / 96.0   228 GEMM epilogue: saves 67.1 MB = 14.91 µs
"""
"""Section 6 of the design: A and B MB, grids, on chip KB, budget KB, winner and account."""


def test_every_cell_of_the_table():
    """Bytes, grids, on-chip KB, budgets, winners and deciding accounts are the exercise's."""
    document = ledger_document([decide_document(decision) for decision in six_decisions()])
    rows = [" ".join(row[1:]).split() for row in decision_rows(document)]
    assert rows == [line.split() for line in TABLE.strip().splitlines()]


def test_choices_and_accounts():
    """Four are fused for traffic, two are split for parallelism."""
    verdicts = [decision.verdict for decision in six_decisions()]
    assert [v.choice for v in verdicts] == ["fuse", "fuse", "fuse", "split", "split", "fuse"]
    assert [v.account for v in verdicts] == ["traffic"] * 3 + ["parallelism"] * 2 + ["traffic"]


def test_the_clock_agrees_with_all_six():
    """The clock, which also counts FLOPs, launches and idle SMs, prefers the same options."""
    for decision in six_decisions():
        assert decision.verdict.clock_choice == decision.verdict.winner


def test_bandwidth_moves_times_and_no_verdict():
    """At half the bandwidth the saved time doubles, and each winner stays."""
    for full, half in zip(six_decisions(), six_decisions(ledger_device(2251.2)), strict=True):
        assert half.verdict.winner == full.verdict.winner
        assert half.verdict.saved_us == pytest.approx(2 * full.verdict.saved_us)


def test_a_machine_of_64_sms_needs_no_split_of_the_skinny_gemm():
    """64 tiles cover 64 SMs: the veto is gone and fewer bytes win."""
    verdict = six_decisions(ledger_device(sm_count=64))[3].verdict
    assert (verdict.winner, verdict.account) == ("no split", "traffic")


def test_an_option_is_a_one_kernel_plan_with_declared_accounts():
    """Each option's figures come from the ordinary ledger of a plan of one kernel."""
    device = ledger_device()
    for exercise in EXERCISES:
        for option in exercise.options():
            (kernel,) = plan_option(option, device).kernels
            provenances = {
                kernel.accounts[name].provenance
                for name in ("traffic", "launches", "capacity", "parallelism")
            }
            assert provenances == {"declared"}


def test_bytes_of_the_quantised_rows_by_hand():
    """4096·40 rows of 128: fp16 in, fp8 and a scale out; unfused they go round."""
    rows = 4096 * 40
    fused = rows * 128 * 2 + 2 * 4096 * 128 * 4 + 2 * 128 * 2 + rows * 128 + rows * 4
    a, b = six_decisions()[1].options
    assert b.bytes == fused
    assert a.bytes == fused + 2 * rows * 128 * 2


def test_the_exercise_needs_no_change_of_the_catalog():
    """Its machine is the catalog's H100 with two figures set."""
    device, catalog = ledger_device(), load("h100-sxm")
    assert (device.stream_gbs, device.sm_count) == (4502.4, 132)
    assert device.l2_bytes == catalog.l2_bytes
