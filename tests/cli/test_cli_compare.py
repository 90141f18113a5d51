from __future__ import annotations

import json

import pytest

from fuseledger.cli.main import run

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
    assert "'nvfuser': one or more of eager, inductor, xla" in capsys.readouterr().err
