from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuseledger.cli.main import run
from fuseledger.report.document import KernelDocument, PlanDocument

CHAIN = "gemm(4096,4096,4096) + bias + gelu + residual"


def _out(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(list(args)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def _json(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    return json.loads(_out(capsys, *args, "--format", "json"))


def test_the_first_line_is_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """The chain becomes one kernel: 4 matrices and a bias (134 MB) instead of 10 and one (336)."""
    first = _out(capsys, "plan", CHAIN).splitlines()[0]
    assert first.startswith("1 kernel instead of 4: 134 MB instead of 336 (floor 134), ")
    assert first.endswith(" on h100-sxm")


def test_json_on_stdout_is_the_document_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """stdout holds one JSON object of the documented form."""
    out = _out(capsys, "plan", CHAIN, "--format", "json")
    assert msgspec.json.decode(out, type=PlanDocument).graph.floor_bytes == 134_225_920


def test_reports_do_not_change_from_run_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs differ in the seconds they took and in nothing else."""
    first, second = (_json(capsys, "plan", CHAIN) for _ in range(2))
    del first["seconds"], second["seconds"]
    assert first == second


@pytest.mark.parametrize(
    ("cut", "moved"),
    [("1,1,1,1", 335_552_512), ("1,3", 201_334_784), ("2,2", 201_334_784), ("4", 134_225_920)],
)
def test_a_given_cut_is_priced(capsys: pytest.CaptureFixture[str], cut: str, moved: int) -> None:
    """The four cuts of the textbook chain move the textbook's bytes."""
    document = _json(capsys, "plan", CHAIN, "--cut", cut)
    assert document["plan"]["totals"]["bytes"] == moved
    assert [len(kernel["ops"]) for kernel in document["plan"]["kernels"]] == [
        int(length) for length in cut.split(",")
    ]


def test_several_cuts_are_compared_and_the_best_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--cuts` lists every cut in the order given; the plan is the one of least time."""
    document = _json(capsys, "plan", CHAIN, "--cuts", "1,1,1,1/1,3/4")
    assert [each["cut"] for each in document["cuts"]] == [[1, 1, 1, 1], [1, 3], [4]]
    assert document["plan"]["totals"] == min(
        (each["totals"] for each in document["cuts"]), key=lambda totals: totals["time_us"]
    )


def test_options_reach_the_planner(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option that prices a plan is recorded in it and changes a figure."""
    plain = _json(capsys, "plan", CHAIN)
    for changed in (["--device", "a100-sxm-80"], ["--launch", "eager"], ["--dtype", "fp32"]):
        other = _json(capsys, "plan", CHAIN, *changed)
        assert other["plan"]["totals"]["time_us"] > plain["plan"]["totals"]["time_us"]
    exact = _json(capsys, "plan", CHAIN, "--dtype", "fp32")
    tf32 = _json(capsys, "plan", CHAIN, "--dtype", "fp32", "--tf32")
    assert tf32["plan"]["totals"]["time_us"] < exact["plan"]["totals"]["time_us"]
    assert tf32["options"] == {"optimise": "time", "launch": "queued", "tf32": True}


def test_a_plan_for_bytes_moves_no_more_than_a_plan_for_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--optimise bytes` and `--optimise time` each win by their own measure."""
    source = "x[8192,4096] | rms_norm | linear(12288) | swiglu | quantise(fp8)"
    time, moved = (_json(capsys, "plan", source, "--optimise", what) for what in ("time", "bytes"))
    assert time["plan"]["totals"]["time_us"] <= moved["plan"]["totals"]["time_us"]


def test_sizes_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """`--dim` sets a symbolic size before the text does."""
    document = _json(capsys, "plan", "n = 8; x[n,64] | relu", "--dim", "n=32")
    assert document["graph"]["tensors"][0]["shape"] == [32, 64]


def test_barriers_are_counted_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """An op of unknown kind is named in the report, and the plan goes on."""
    assert "barriers  1 sort" in _out(capsys, "plan", "sort(relu(x[64,64]))").replace("aten.", "")


def test_piped_text_has_no_colour_and_fits_100_columns(tmp_path: Path) -> None:
    """Text that goes to a pipe or a file is plain and at most 100 columns wide."""
    path = tmp_path / "plan.txt"
    source = "x[8192,4096] | rms_norm | linear(12288) | swiglu | quantise(fp8)"
    assert run(["plan", source, "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_file_gets_the_report_instead_of_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`-o` writes what stdout would have shown, and stdout stays empty."""
    path = tmp_path / "plan.md"
    assert _out(capsys, "plan", CHAIN, "--format", "md", "-o", str(path)) == ""
    assert path.read_text(encoding="utf-8").startswith("**1 kernel instead of 4")


def test_a_kernel_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """`explain` shows the six accounts, each axis, the clock's terms and each edge."""
    out = _out(capsys, "explain", CHAIN, "--kernel", "1")
    for word in ("traffic", "launches", "registers", "capacity", "parallelism", "epilogue"):
        assert f"  {word}" in out
    for words in ("read A 33.6 MB + B 33.6 MB", "⌈4096/", "latency", "gemm → bias", "modelled"):
        assert words in out


def test_an_explanation_has_a_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    """`explain --format json` writes the documented form of one kernel."""
    out = _out(capsys, "explain", CHAIN, "--kernel", "2", "--cut", "1,3", "--format", "json")
    document = msgspec.json.decode(out, type=KernelDocument)
    assert document.number == 2
    assert document.kernel.ops == ["bias", "gelu", "residual"]


def test_an_explanation_is_of_the_plan_that_plan_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The kernel that `explain` shows is the one that `plan` lists under that number."""
    source = "x[8192,4096] | rms_norm | linear(12288) | swiglu | quantise(fp8)"
    planned = _json(capsys, "plan", source)["plan"]["kernels"]
    explained = _json(capsys, "explain", source, "--kernel", str(len(planned)))
    assert explained["kernel"] == planned[-1]


def test_the_package_runs_as_a_module() -> None:
    """`python -m fuseledger` is the command."""
    done = subprocess.run(
        [sys.executable, "-m", "fuseledger", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("fuseledger, version ")
