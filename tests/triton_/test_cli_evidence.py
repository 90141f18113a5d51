from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fuseledger.cli.check_numerics import command as check_numerics
from fuseledger.cli.compile import command as compile_
from fuseledger.cli.emit import command as emit
from fuseledger.cli.plan import command as plan
from fuseledger.errors import OutputError

pytestmark = pytest.mark.torch

SOURCE = "gemm(64,48,40) + bias + gelu + residual"


def test_emitted_package_passes_its_own_test(tmp_path: Path) -> None:
    """The test that emit writes beside the kernels passes in the interpreter."""
    folder = tmp_path / "package"
    done = CliRunner().invoke(emit, [SOURCE, "-o", str(folder)], catch_exceptions=False)
    assert done.output.strip() == f"{folder}: 1 of 1 kernels"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 passed" in run.stdout, run.stdout


def test_emit_does_not_touch_a_foreign_folder(tmp_path: Path) -> None:
    """A folder with files of somebody else's is refused, unchanged."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        CliRunner().invoke(emit, [SOURCE, "-o", str(tmp_path)], catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_compile_reports_modelled_and_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JSON has both figures of every kernel, and accounts with compiled provenance."""
    monkeypatch.setenv("FUSELEDGER_CACHE", str(tmp_path))
    arguments = ["softmax(x[512,512])", "--format", "json"]
    done = CliRunner().invoke(compile_, arguments, catch_exceptions=False)
    document = json.loads(done.stdout)
    assert document["target"] == "sm_90"
    (kernel,) = document["kernels"]
    assert kernel["compiled"]["registers"] > 0
    assert kernel["registers_modelled"] > 0
    assert kernel["accounts"]["registers"]["provenance"] == "compiled"


def test_a_plan_with_evidence_counts_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JSON of a compiled softmax has its SASS: loads and special functions, no tensor cores."""
    monkeypatch.setenv("FUSELEDGER_CACHE", str(tmp_path))
    arguments = ["softmax(x[512,512])", "--evidence", "compiled", "--format", "json"]
    done = CliRunner().invoke(plan, arguments, catch_exceptions=False)
    (mix,) = json.loads(done.stdout)["evidence"]["instructions"].values()
    assert mix["load"] > 0 < mix["special"]
    assert mix["tensor"] == 0


def test_what_cannot_be_emitted_is_a_missing_figure() -> None:
    """A barrier has no row of figures but a reason, and fails nothing."""
    done = CliRunner().invoke(
        check_numerics, ["sort(x[64,128])", "--format", "json"], standalone_mode=False
    )
    assert done.return_value == 0
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["outcome"] == "cannot emit"
    assert "barrier" in kernel["reason"]
