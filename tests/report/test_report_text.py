from __future__ import annotations

import re

import msgspec
import pytest
import sample_document
from sample_document import document, repeated, sample
from syrupy.assertion import SnapshotAssertion

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.planner.plan import make_plan
from fuseledger.report.build import plan_document as built
from fuseledger.report.document import KernelPart, PlanDocument, kernel_document
from fuseledger.report.explain import clock_title, explain_text
from fuseledger.report.layout import Page
from fuseledger.report.markdown import plan_markdown
from fuseledger.report.summary import ROWS_MAX, summarise
from fuseledger.report.text import plan_text
from fuseledger.verdict.edges import edge_verdicts


def _text(made: PlanDocument, *, width: int = 100, everything: bool = False) -> str:
    page = Page(width=width, colour=False)
    return plan_text(summarise(made, everything=everything), page)


def planned(source: str) -> PlanDocument:
    """The document of an expression's plan."""
    plan = make_plan(load(source), load_device("h100-sxm"))
    return built(plan, source=source, load_seconds=0.0, verdicts=edge_verdicts(plan))


def test_plan_report_reads_as_agreed(snapshot: SnapshotAssertion) -> None:
    """The text report of a plan is the one that was agreed upon."""
    assert _text(document()) == snapshot


def test_explanation_reads_as_agreed(snapshot: SnapshotAssertion) -> None:
    """The explanation of a kernel is the one that was agreed upon."""
    page = Page(width=100, colour=False)
    assert explain_text(kernel_document(document(), 2), page) == snapshot


def test_first_line_is_the_verdict_with_one_unit_a_pair() -> None:
    """3.23 GB against 0.302 GB and a floor of 0.101 GB: the unit of the largest serves all."""
    assert _text(document()).splitlines()[0] == (
        "3 kernels instead of 4: 0.302 GB instead of 3.23 (floor 0.101), "
        "0.157 ms instead of 2.00 on h100-sxm"
    )


def test_a_plan_that_fuses_nothing_is_compared_with_nothing() -> None:
    """Where the plan is one kernel an op, the first line says so instead of repeating itself."""
    totals = {"kernels": 4, "bytes": 3_230_000_000, "launches": 4, "time_us": 2000.0}
    plan = {**sample()["plan"], "totals": totals}
    assert _text(document(plan=plan, baseline=totals)).splitlines()[0] == (
        "4 kernels, one an op: 3.23 GB (floor 0.101), 2.00 ms on h100-sxm"
    )


@pytest.mark.parametrize("width", [80, 100, 137])
def test_no_line_is_wider_than_the_page(width: int) -> None:
    """Long labels and reasons are wrapped, not left to the terminal."""
    assert max(map(len, _text(document(), width=width).splitlines())) <= width


def test_without_colour_no_escape_code_is_written() -> None:
    """A name that holds an escape code cannot colour or clear the reader's terminal."""
    assert "\x1b" in sample()["graph"]["notes"][1]
    assert "\x1b" not in _text(document())


def test_colour_adds_escape_codes_and_nothing_else() -> None:
    """Stripped of its colours the coloured report is the plain one."""
    coloured = plan_text(summarise(document()), Page(width=100, colour=True))
    assert "\x1b[1m" in coloured
    stripped = re.sub(r"\x1b\[\d*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == _text(document()).splitlines()


def test_equal_kernels_of_a_large_plan_share_a_row() -> None:
    """Forty equal layers are one row with the first one's number, and one row of cuts."""
    lines = _text(repeated(40)).splitlines()
    assert [line for line in lines if "×40" in line and "gemm" in line]
    assert [line for line in lines if line.startswith("1 → 2") and "×39" in line]
    assert len(lines) < 30


def test_kernels_whose_rows_would_read_the_same_share_one() -> None:
    """Of forty kernels the lengths of loops differ, which no row shows."""
    made = msgspec.to_builtins(repeated(40))
    for i, kernel in enumerate(made["plan"]["kernels"]):
        loop = {"name": "z", "size": 100 + i, "treatment": "loop", "tile": 64}
        kernel["schedule"]["axes"] = [*kernel["schedule"]["axes"], loop]
    (row,) = summarise(msgspec.convert(made, PlanDocument)).kernels
    assert row.count == 40


def test_all_shows_every_kernel() -> None:
    """`everything` gives each kernel and each cut a row of its own."""
    summary = summarise(repeated(400), everything=True)
    assert len(summary.kernels) == 400
    assert len(summary.cuts) == 399


def test_a_large_plan_of_different_kernels_is_cut_short_and_says_so() -> None:
    """What is left out is counted, with its share of the time: 368 of 400 equal times are 92%."""
    made = msgspec.to_builtins(repeated(400))
    for i, kernel in enumerate(made["plan"]["kernels"]):
        kernel["label"] = f"gemm{i}"
    made["plan"]["totals"]["time_us"] = 400 * 52.44
    summary = summarise(msgspec.convert(made, PlanDocument))
    assert len(summary.kernels) == ROWS_MAX
    assert summary.kernels_hidden == "368 quicker kernels, 92.0% of the time: --all"


def test_a_kernel_that_does_not_fit_is_named_under_the_verdict() -> None:
    """A plan with a capacity veto says at once that it is not usable."""
    second = _text(document()).splitlines()[1]
    assert second == "not usable as it stands: kernel 2 cannot hold on chip what must be held"


def test_a_plan_without_cuts_says_why_its_ops_are_fused() -> None:
    """Where nothing was cut, the report gives the reasons for the fusions instead."""
    made = document(verdicts=[sample()["verdicts"][1]])
    summary = summarise(made)
    assert not summary.cuts
    assert summary.fused[0].between == "layer [1] → sort"


def test_what_one_op_hands_to_another_is_one_row() -> None:
    """A softmax's two statistics, 16.4 kB each, are kept on chip together, and what that saves is
    said once."""
    made = planned("softmax(x[4096,4096])")
    (row,) = summarise(made).fused
    assert row.tensors == ("softmax.statistic", "softmax.statistic.sumexp")
    assert row.reason.startswith(
        "softmax.statistic, softmax.statistic.sumexp (32.8 kB) stay on chip: saves 33.6 MB"
    )


def test_an_op_of_unknown_kind_shows_no_schedule() -> None:
    """Its grid, registers and axes are not known: neither report makes any up."""
    made = planned("topk(x[4096,4096], 5)")
    (row,) = summarise(made).kernels
    assert (row.grid, row.registers, row.on_chip) == ("–", "–", "–")
    page = Page(width=100, colour=False)
    words = explain_text(kernel_document(made, 1), page)
    assert "schedule:" not in words
    assert "priced as one pass over their tensors" in _text(made)
    assert made.plan.kernels[0].schedule.axes == []
    assert made.plan.kernels[0].schedule.blocks == 0


def test_a_barrier_whose_work_is_known_says_so() -> None:
    """Of a grouped product the work is counted beside its pass over the tensors."""
    b = GraphBuilder("experts")
    x, w = b.input("x", (64, 32), "bf16"), b.weight("w", (4, 32, 64), "bf16")
    (y,) = b.opaque("product", [x, w], [((64, 64), "bf16")], attributes={"flops": 2 * 64 * 64 * 32})
    b.output(y, "y")
    plan = make_plan(b.finish(), load_device("h100-sxm"))
    made = built(plan, source="experts", load_seconds=0.0, verdicts=edge_verdicts(plan))
    words = summarise(made).barriers
    assert words is not None
    assert words.endswith("how they run is not known; the work of product is counted")


def test_the_clocks_title_names_what_is_added() -> None:
    """Parts that are merged are in the sum, and so in its title."""
    made = sample_document.kernel(1, ["gemm"], "gemm")
    made["time"]["combine_us"] = 1.5
    part = msgspec.convert(made, KernelPart)
    assert clock_title(part.time) == "clock: launch + the slowest resource + latency + combine"


def test_padded_tiles_are_named() -> None:
    """128·160 of generated code are multiplied as 128·256, which is 60 % more."""
    made = planned("gemm(4096,160,4096) | silu")
    kernel = made.plan.kernels[0]
    realisation = msgspec.structs.replace(kernel.realisation, padding=256 / 160)
    plan = msgspec.structs.replace(
        made.plan, kernels=[msgspec.structs.replace(kernel, realisation=realisation)]
    )
    page = Page(width=100, colour=False)
    text = explain_text(kernel_document(msgspec.structs.replace(made, plan=plan), 1), page)
    assert "its tiles padded by 60%, at " in text
    assert "padded" not in explain_text(kernel_document(made, 1), Page(width=100, colour=False))


def test_compared_cuts_come_before_the_ledger() -> None:
    """`--cuts` shows bytes in full, what each cut saves by account, and what several share."""
    totals = {"kernels": 2, "bytes": 201_334_784, "launches": 2, "time_us": 209.3}
    cut = {"cut": [1, 3], "totals": totals, "registers": 128, "vetoes": []}
    made = document(
        cuts=[cut], differences=[{**sample()["saved"], "sentence": "[4] saves 3.00 µs"}],
        shared=["[1,3] and [2,2] move the same bytes"],
    )  # fmt: skip
    lines = _text(made).splitlines()
    row = next(line for line in lines if line.startswith("[1,3]"))
    assert row.split() == ["[1,3]", "201,334,784", "2", "209", "µs", "128"]
    at = lines.index(row)
    assert lines[at + 1 : at + 3] == ["[4] saves 3.00 µs", "[1,3] and [2,2] move the same bytes"]
    assert at < next(i for i, line in enumerate(lines) if line.startswith("#"))


def test_a_plan_without_kernels_says_so_instead_of_empty_tables() -> None:
    """Where every result is a view of an input there is no ledger to show."""
    nothing = {"kernels": 0, "bytes": 0, "launches": 0, "time_us": 0.0}
    saved = {**sample()["saved"], "saved_us": 0.0, "saved_by_account": {}}
    plan = {**sample()["plan"], "kernels": [], "totals": nothing}
    made = document(plan=plan, baseline=nothing, saved=saved, verdicts=[])
    lines = _text(made).splitlines()
    assert lines[0].startswith("no kernel: nothing is computed")
    assert not [line for line in lines if line.startswith(("#", "plan ", "floor"))]
    assert "| kernel |" not in plan_markdown(summarise(made))


def test_loads_without_a_price_are_named() -> None:
    """Of 400 MB that a kernel loads through L2, 299 MB are more than the 101 MB it moves: three
    such kernels load 898 MB that a device without an L2 bandwidth has no price for."""
    device = {**sample_document.DEVICE, "unstated": ["l2_bandwidth_gbs"]}
    made = document(device=device)
    words = "h100-sxm states no l2_bandwidth_gbs: the 898 MB that tiles load again through L2"
    assert [note for note in summarise(made).notes if note.startswith(words)]
    assert words in " ".join(plan_text(summarise(made), Page(width=80, colour=False)).split())
    explained = explain_text(kernel_document(made, 1), Page(width=120, colour=False))
    assert "not priced, 299 MB loaded again: no l2_bandwidth_gbs" in explained
    assert "l2_bandwidth_gbs" not in plan_text(summarise(document()), Page(width=80, colour=False))


def test_a_device_file_without_an_l2_bandwidth_says_so() -> None:
    """A product on a device without the figure has the note; ops that load all once have none."""
    bare = load_device("textbook")
    notes = {
        source: summarise(
            built(make_plan(load(source), bare), source=source, load_seconds=0.0)
        ).notes
        for source in ("gemm(4096,4096,4096)", "x[4096,4096] | relu")
    }
    assert "textbook states no l2_bandwidth_gbs" in " ".join(notes["gemm(4096,4096,4096)"])
    assert notes["x[4096,4096] | relu"] == ()
