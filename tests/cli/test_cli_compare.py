from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError

import pytest

from fuseledger.cli.main import run
from fuseledger.peers import process

CHAIN = "gemm(4096,4096,4096) + bias + gelu + residual"


def test_compare_writes_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON on stdout holds the floor, both systems and what they disagree on."""
    assert run(["compare", CHAIN, "--peers", "eager", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "fuseledger/compare@1"
    assert document["floor_bytes"] == 134_225_920
    assert [peer["name"] for peer in document["peers"]] == ["fuseledger", "eager"]
    assert len(document["differences"]) == 3


def test_an_unknown_peer_is_named_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong name is one line on stderr and exit code 2."""
    assert run(["compare", CHAIN, "--peers", "eager,nvfuser"]) == 2
    assert (
        "'nvfuser': one or more of eager, inductor, inductor-templates, xla"
        in capsys.readouterr().err
    )


@pytest.mark.torch
def test_compiled_evidence_is_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Registers of the kernel that TorchInductor generates come from Triton's own compiler."""
    command = ["compare", "x[4096,8192] | softmax", "--peers", "inductor"]
    assert run([*command, "--evidence", "compiled", "--format", "json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["peers"][1]["kernels"]
    assert 16 <= kernel["compiled"]["registers"] <= 255
    assert kernel["compiled"]["spilled_bytes"] == 0


def test_a_missing_peer_is_a_row_unless_it_was_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without JAX and torch eager still answers; asking for XLA by name ends with exit code 3."""

    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(process, "version", absent)
    assert run(["compare", CHAIN, "--format", "json"]) == 0
    _, eager, inductor, xla = json.loads(capsys.readouterr().out)["peers"]
    assert [peer["status"] for peer in (eager, inductor, xla)] == [
        "planned", "unavailable", "unavailable",
    ]  # fmt: skip
    assert 'pip install "fuseledger[xla]"' in xla["reason"]
    assert run(["compare", CHAIN, "--peers", "xla"]) == 3
