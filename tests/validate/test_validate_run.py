"""A validation from files to figures."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fuseledger.cli.main import run
from fuseledger.devices import load
from fuseledger.frontends.expression import parse
from fuseledger.planner.plan import make_plan
from fuseledger.validate.corpus import CorpusError, Measured
from fuseledger.validate.kernelbench import read_kernelbench
from fuseledger.validate.run import read_corpus, validate
from fuseledger.validate.score import pairs

ROW_KEYS = {
    "corpus", "device", "class", "mode", "n", "mdape", "p90ape", "spearman", "kendall",
    "ratio_abs_log_median", "choice_accuracy", "majority_accuracy", "naive_accuracy",
}  # fmt: skip


@pytest.fixture(scope="module")
def part(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the corpus's shape: the large sizes of levels 1 and 2, eager and compiled."""
    folder = tmp_path_factory.mktemp("kernelbench")
    source = corpus / "kernelbench"
    for level in ("level1", "level2"):
        shutil.copytree(source / "v0.1" / level, folder / "v0.1" / level)
    with (source / "times.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [
        row
        for row in rows
        if row["sizes"] == "v0.1" and row["level"] in "12"
        and row["mode"] in ("eager", "compile-default")
    ]  # fmt: skip
    kept.append({**kept[0], "gpu": "NVIDIA Unknown 9000"})
    kept.append({**kept[0], "problem_id": "98"})
    with (folder / "times.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(kept)
    return folder


@pytest.fixture(scope="module")
def report(part: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON of `fuseledger validate`."""
    out = tmp_path_factory.mktemp("out") / "report.json"
    assert run(["validate", str(part), "--format", "json", "-o", str(out)]) == 0
    return json.loads(out.read_text())


def _row(report: dict[str, Any], **wanted: str) -> dict[str, Any]:
    (row,) = [r for r in report["rows"] if all(r[k] == v for k, v in wanted.items())]
    return row


def test_the_json_follows_its_schema(report: dict[str, Any]) -> None:
    """Every row has the documented fields."""
    assert report["schema"] == "fuseledger/validate@1"
    assert all(row.keys() >= ROW_KEYS for row in report["rows"])


def test_large_eager_problems_are_within_their_target(report: dict[str, Any]) -> None:
    """Out of fold, half of levels 1 and 2 lie within 12 %, each H100, from 250 problems' times."""
    for device in ("h100-sxm", "h100-pcie"):
        corpus, mode = "kernelbench v0.1 L1+L2", "eager"
        row = _row(report, corpus=corpus, device=device, mode=mode, **{"class": "all"})
        assert row["n"] == 100
        assert row["mdape"] < 0.12


def test_convolution_problems_are_ranked(report: dict[str, Any]) -> None:
    """Rank correlation over the convolution problems of level 2 is at least 0.9."""
    for device in ("h100-sxm", "h100-pcie"):
        corpus, mode = "kernelbench v0.1 L2", "eager"
        row = _row(report, corpus=corpus, device=device, mode=mode, **{"class": "conv"})
        assert row["spearman"] >= 0.9


def test_what_cannot_be_priced_is_counted_and_named(report: dict[str, Any]) -> None:
    """A device outside the catalog and a problem without a graph are one row each."""
    skipped = {entry["reason"]: entry["n"] for entry in report["skipped"]}
    assert skipped["device NVIDIA Unknown 9000 is not in the catalog"] == 1
    assert skipped["no graph of v0.1 level 1 problem 98"] == 1


def test_the_ten_worst_come_with_their_accounts(report: dict[str, Any]) -> None:
    """Each names the kernels that its time was thought to be made of."""
    assert len(report["worst"]) == 10
    assert all(entry["accounts"] for entry in report["worst"])


def test_every_device_is_left_out_once(report: dict[str, Any]) -> None:
    """Both devices of the folder have a row from a fit on the other."""
    devices = {row["device"] for row in report["leave_one_device_out"]}
    assert devices == {"h100-sxm", "h100-pcie", "all"}


def test_repeated_runs_are_one_row(part: Path) -> None:
    """A problem has one row per host, software and mode."""
    rows = read_kernelbench(part).rows
    keys = [(r.run, r.setting.mode) for r in rows]
    assert len(keys) == len(set(keys))


def test_a_plain_csv_is_priced_by_the_plan(tmp_path: Path) -> None:
    """Each SOURCE is planned; a device that nobody knows is counted."""
    table = tmp_path / "mine.csv"
    table.write_text(
        "source,device,time_us,mode\n"
        '"relu(x[4096,4096])",h100-sxm,25,fused\n'
        '"relu(x[4096,4096])",nothing,25,fused\n'
    )
    result = validate(table)
    assert result.skipped == {"device nothing is not in the catalog": 1}
    assert [row.n for row in result.rows if row.class_ == "all" and row.device == "all"] == [1]


def test_a_plain_csv_shows_whether_the_error_bars_of_plans_hold(tmp_path: Path) -> None:
    """One time equals the prediction and lies within both bars; one is a hundred times longer."""
    lines: list[str] = []
    for rows, factor in ((4096, 1), (8192, 100)):
        source = f"relu(x[{rows},4096])"
        exact = make_plan(parse(source), load("h100-sxm")).totals.time_us
        lines.append(f'"{source}",h100-sxm,{factor * exact}')
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(["source,device,time_us", *lines, ""]))
    assert validate(table).calibration == [("all", 2, 0.5, 0.5), ("pointwise", 2, 0.5, 0.5)]


GAINS = """source,device,time_us,mode,dtype
"relu(relu(x[4096,4096]))",h100-sxm,30,fused,fp16
"relu(relu(x[4096,4096]))",h100-sxm,60,eager,fp16
"relu(relu(x[4096,4096]))",h100-sxm,60,fused,fp32
"relu(relu(x[4096,4096]))",h100-sxm,180,eager,fp32
"""


def gains(rows: Sequence[Measured]) -> list[float]:
    """Measured gains of all pairs, smallest first."""
    return sorted(rows[plain].time_us / rows[fused].time_us for fused, plain in pairs(rows).items())


def test_a_gain_of_a_csv_is_of_one_dtype(tmp_path: Path) -> None:
    """60 µs over 30 in fp16, 180 over 60 in fp32."""
    table = tmp_path / "mine.csv"
    table.write_text(GAINS)
    assert gains(read_corpus(table).rows) == pytest.approx([2.0, 3.0])


def test_a_gain_is_of_one_gpu(corpus: Path, tmp_path: Path) -> None:
    """A host that timed two GPUs has a gain of each: 4 over 2 ms, 9 over 3 ms."""
    graph = corpus / "kernelbench" / "v0.1" / "level1" / "019_ReLU.json"
    place = tmp_path / "v0.1" / "level1"
    place.mkdir(parents=True)
    shutil.copy(graph, place)
    lines = [
        f"v0.1,1,19,19_ReLU,{gpu},cloud,2.5.0,{mode},{mean_ms}"
        for gpu, times in (("NVIDIA L4", (4, 2)), ("NVIDIA L40S", (9, 3)))
        for mode, mean_ms in zip(("eager", "compile-default"), times, strict=True)
    ]
    head = "sizes,level,problem_id,name,gpu,host,torch,mode,mean_ms"
    (tmp_path / "times.csv").write_text("\n".join([head, *lines, ""]))
    rows = read_kernelbench(tmp_path).rows
    assert gains(rows) == pytest.approx([2.0, 3.0])


def test_repeated_times_of_a_csv_become_their_geometric_mean(tmp_path: Path) -> None:
    """20 and 45 µs of one source on one device are one row of 30 µs; a byte order mark is no part
    of a column's name."""
    table = tmp_path / "mine.csv"
    lines = [f'"relu(x[4096,4096])",h100-sxm,{time}\n' for time in (20, 45)]
    table.write_text("\ufeffsource,device,time_us\n" + "".join(lines), encoding="utf-8")
    (row,) = read_corpus(table).rows
    assert row.time_us == pytest.approx(30)


def test_a_csv_has_no_naive_roofline(tmp_path: Path) -> None:
    """What eager would launch is not known, and the clock's own figure is no roofline."""
    table = tmp_path / "mine.csv"
    table.write_text(GAINS)
    for row in validate(table).rows:
        assert (row.naive_mdape, row.naive_accuracy) == (None, None)
        assert (row.choice_accuracy is None) == (row.mode == "eager")


def test_a_folder_without_times_is_refused(tmp_path: Path) -> None:
    """It says what is missing."""
    with pytest.raises(CorpusError, match=r"holds neither times\.csv"):
        read_corpus(tmp_path)


def test_decisions_are_read_with_their_formulas(corpus: Path) -> None:
    """Two options a record; comparisons of implementations are left out and counted."""
    found = read_corpus(corpus / "decisions" / "dev.jsonl")
    assert len(found.rows) % 2 == 0
    assert found.skipped["compares two implementations, no fusion"] == 30


def test_bars_keep_what_they_promise(report: dict[str, Any]) -> None:
    """Of all times 80 % or more lie within the bar of nine in ten, taken from other folds."""
    (whole,) = [entry for entry in report["calibration"] if entry["class"] == "all"]
    assert 0.8 <= whole["within_90_bar"] <= 0.97


def test_plots_are_written_beside_the_report(tmp_path: Path) -> None:
    """An SVG of the times; without folds there is no calibration to show."""
    pytest.importorskip("matplotlib")
    table = tmp_path / "mine.csv"
    table.write_text('source,device,time_us\n"relu(x[4096,4096])",h100-sxm,25\n')
    out = str(tmp_path / "report.json")
    wanted = ["--format", "json", "-o", out, "--plots", str(tmp_path)]
    assert run(["validate", str(table), *wanted]) == 0
    assert "<svg" in (tmp_path / "times.svg").read_text()
    assert not (tmp_path / "calibration.svg").exists()
