"""The reports of a validation, of a corpus of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuseledger.cli.main import run

ROWS = """source,device,time_us
"gemm(4096,4096,4096)",h100-sxm,250
"x[4096,4096] | softmax",h100-sxm,30
"""


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Two expressions and their times."""
    path = tmp_path / "times.csv"
    path.write_text(ROWS)
    return str(path)


def test_the_text_has_no_empty_columns_and_no_empty_endings(
    corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two times are too few to rank, and none of them has a partner to choose from; a CSV has no
    naive roofline, and its clock tells no parts."""
    assert run(["validate", corpus, "--all", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    titles = next(line for line in lines if line.startswith("corpus")).split()
    assert titles == ["corpus", "device", "class", "mode", "n", "MdAPE", "P90"]
    worst = [line for line in lines if ": measured" in line]
    assert len(worst) == 2
    assert all(re.search(r"predicted \d+$", line) for line in worst)


def test_an_expression_stays_in_its_cell(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The `|` of an expression ends no cell of a Markdown table."""
    assert run(["validate", corpus, "--format", "md", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert r"| x\[4096,4096\] \| softmax | h100-sxm | fused | 30 | " in out
