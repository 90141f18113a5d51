"""`fuseledger decide` and `fuseledger textbook`: formats, widths and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/decisions"
SKINNY = str(EXAMPLES / "skinny-gemm.toml")


def run(*args):
    """The command in a process of its own, its output piped."""
    code = "import sys; from fuseledger.cli.main import main; main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, encoding="utf-8", check=False
    )


@pytest.mark.parametrize(
    "args",
    [
        ("textbook",),
        ("textbook", "chain", "--size", "16x64x64", "--cuts", "1,3/4"),
        ("textbook", "ledger", "--sm-count", "64", "--bandwidth-gbs", "1000"),
        ("decide", SKINNY),
        ("decide", "gemm", "1024x1024x16384", "--split", "4,8"),
        ("decide", "attention", "--heads", "8", "--kv", "4096", "--d", "128"),
    ],
)
def test_text_is_readable_at_100_columns_and_plain(args):
    """Piped text has at most 100 columns and no escape codes."""
    done = run(*args)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_json_carries_its_schema():
    """Each command's JSON says its schema; the verdict and every account are in it."""
    found = json.loads(run("decide", "gemm", "1024x1024x16384", "--format", "json").stdout)
    assert found["schema"] == "fuseledger/decide@1"
    assert found["verdict"]["choice"] == "split"
    assert {"traffic", "capacity", "parallelism"} <= set(found["options"][0]["accounts"])
    for exercise in ("chain", "ledger"):
        text = run("textbook", exercise, "--format", "json").stdout
        assert json.loads(text)["schema"] == f"fuseledger/textbook-{exercise}@1"


def test_markdown_has_tables():
    """Markdown carries a table of the options."""
    assert "| option | bytes |" in run("decide", SKINNY, "--format", "md").stdout
    assert "| cut | bytes |" in run("textbook", "chain", "--format", "md").stdout


def test_options_may_precede_the_file():
    """Options before FILE.toml are options of the decision."""
    done = run("decide", "--sm-count", "64", SKINNY)
    assert "no split, by traffic" in done.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("decide", "none.toml"), "none.toml: cannot be read: No such file"),
        (("decide", "gemm", "12x13"), "expected MxNxK in whole numbers"),
        (("decide", "gemm", "0x1x1"), "expected MxNxK in whole numbers"),
        (("decide", "gemm", "8x8x8", "--split", "x"), "expected whole numbers from 1 up"),
        (("decide", "gemm", "8x8x8", "--bandwidth-gbs", "nan"), "expected a number above 0"),
        (("decide", "attention", "--heads", "8"), "Missing option '--kv'"),
        (("decide", SKINNY, "--device", "none"), "unknown device 'none'"),
        (("textbook", "chain", "--cuts", "1,2"), "cut 1,2: lengths must be"),
        (("textbook", "chain", "--cuts", "1,,2"), "expected lengths of consecutive ops"),
        (("textbook", "ledger", "--sm-count", "0"), "--sm-count"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(args, message):
    """Bad input: one line on stderr, nothing on stdout, exit code 2."""
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
