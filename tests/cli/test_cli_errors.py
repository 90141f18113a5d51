from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fuseledger.cli import options
from fuseledger.cli.main import run

CHAIN = "gemm(64,64,64) + bias"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plan"], "SOURCE"),
        (["plan", CHAIN, "--nope"], "--nope"),
        (["plan", CHAIN, "--format", "pdf"], "pdf"),
        (["explain", CHAIN, "--kernel", "1", "--format", "html"], "html"),
        (["plan", CHAIN, "--device", "h1000"], "'h1000' (nearest: h200"),
        (["plan", CHAIN, "--device", "none.toml"], "none.toml: no such file"),
        (["plan", CHAIN, "--dtype", "fp12"], "fp12"),
        (["plan", CHAIN, "--dim", "n"], "'n': expected NAME=VALUE"),
        (["plan", CHAIN, "--dim", "n=0"], "'n=0'"),
        (["plan", CHAIN, "--dim", "n=1", "--dim", "n=2"], "n is given twice"),
        (["plan", CHAIN, "--cut", "1,x"], "'1,x'"),
        (["plan", CHAIN, "--cut", "1,2"], "cut 1,2"),
        (["plan", CHAIN, "--cuts", "1,1/1,1"], "'1,1' is given twice"),
        (["plan", "x[8,3,9,9] | conv2d(64, 7, stride=2)"], "stride is given twice in conv(x, w, "),
        (["plan", CHAIN, "--cut", "2", "--cuts", "1,1/2"], "--cut or --cuts"),
        (["plan", "sort(relu(x[8,8]))", "--cut", "2"], "can be no kernel"),
        (["plan", "gemm("], "expression"),
        (["plan", ""], "expression"),
        (["plan", "missing.onnx"], "missing.onnx: no such file"),
        (["plan", "missing.py:factory"], "missing.py: no such file"),
        (["plan", CHAIN, "-o", "no/such/folder/plan.json"], "no folder"),
        (["explain", CHAIN], "--kernel"),
        (["explain", CHAIN, "--kernel", "7"], "kernel 7: the plan of"),
        (["explain", CHAIN, "--kernel", "0"], "0"),
        (["devices", "show", "nope"], "'nope'"),
        (["nope"], "nope"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_on_stderr_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    """A wrong command or input is told in a line that names it; nothing reaches stdout."""
    assert run(args) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fuseledger: ")
    assert words in said.err
    assert "Traceback" not in said.err


def test_a_mistake_is_one_line_unless_it_shows_the_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only an expression's mistake takes more lines: the source, and a caret below the place."""
    run(["plan", CHAIN, "--device", "h1000"])
    assert len(capsys.readouterr().err.splitlines()) == 1
    run(["plan", "gemm(4,4,4) + gelux"])
    assert capsys.readouterr().err.splitlines()[-1].strip() == "^"


def _fail(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fuseledger.cli.plan.plan_source", fail)


def test_a_defect_of_ours_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception asks for a report, without a traceback, with exit code 1."""
    _fail(ValueError("what is this"), monkeypatch)
    assert run(["plan", CHAIN]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "please report it: ValueError: what is this" in said


def test_a_traceback_can_be_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSELEDGER_TRACEBACK=1 shows where it happened."""
    _fail(ValueError("what is this"), monkeypatch)
    monkeypatch.setenv("FUSELEDGER_TRACEBACK", "1")
    assert run(["plan", CHAIN]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the run as shells expect, without a traceback."""
    _fail(KeyboardInterrupt(), monkeypatch)
    assert run(["plan", CHAIN]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_missing_extra_exits_with_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without onnx an .onnx model names the installation that mends it."""
    monkeypatch.setattr("fuseledger.frontends.onnx_shipped.find_spec", lambda _: None)
    assert run(["plan", "onnx:resnet50"]) == 3
    assert 'pip install "fuseledger[onnx]"' in capsys.readouterr().err


def test_a_broken_pipe_is_silent() -> None:
    """A reader that goes away, such as `head`, is no error."""
    command = f'{sys.executable} -m fuseledger plan "{CHAIN}" --format json | head -c 1'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout == "{"
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_narrow_encoding_still_gets_a_report() -> None:
    """Where stdout has no µ the report is written with a replacement, not with an error."""
    done = subprocess.run(
        [sys.executable, "-m", "fuseledger", "plan", CHAIN],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kernel instead of" in done.stdout


def test_a_module_that_runs_is_announced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Loading a Python module runs it: stderr says so, unless told to be quiet."""
    module = tmp_path / "model.py"
    module.write_text("")
    note = f"fuseledger: running {module}:factory to build its module\n"
    run(["plan", f"{module}:factory"])
    assert capsys.readouterr().err.startswith(note)
    run(["plan", f"{module}:factory", "--quiet"])
    assert not capsys.readouterr().err.startswith(note)
    run(["plan", "missing.py:factory"])
    assert "running" not in capsys.readouterr().err
    assert "runs it" in " ".join(options.SOURCE_HELP.split())


def test_sigint_during_work_is_silent(tmp_path: Path) -> None:
    """A real interrupt of a real run leaves no traceback and exits with 130."""
    module = tmp_path / "slow.py"
    module.write_text("import time, sys\nprint('up', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "fuseledger", "plan", f"{module}:factory", "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a job of a shell's background starts with interrupts ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stderr is not None
    if process.stderr.readline() != "up\n":
        pytest.skip("modules are loaded with torch, which is not installed")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
