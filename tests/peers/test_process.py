"""A peer's process: what becomes of one that ends, or is ended, in the middle of its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseledger.peers.process import Worker

CUT_SHORT = """
import sys
sys.stdin.readline()
sys.stdout.write('{"kernels": [')
sys.stdout.flush()
sys.stderr.write("out of memory\\n")
"""


@pytest.mark.parametrize(
    ("then", "limit_s", "status", "reason"),
    [
        ("sys.exit(3)", 60.0, "failed", "the worker ended with 3: out of memory"),
        ("import time; time.sleep(60)", 1.0, "timeout", "no plan within 1 s"),
    ],
)
def test_half_an_answer_is_none(
    tmp_path: Path, then: str, limit_s: float, status: str, reason: str
) -> None:
    """The answer says why there is no plan, whether the worker died or was late."""
    (tmp_path / "half_worker.py").write_text(CUT_SHORT + then)
    with Worker("half_worker", {"PYTHONPATH": str(tmp_path)}) as worker:
        answer = worker.ask({}, limit_s)
    assert (answer.status, answer.reason, answer.said) == (status, reason, {})
