"""Whose plan the compiled modes are priced on."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fuseledger.peers import inductor
from fuseledger.peers.peer import PeerKernel, PeerPlan
from fuseledger.validate.kernelbench import read_kernelbench

pytestmark = pytest.mark.torch

FUSED = PeerKernel(
    name="triton_poi_fused_relu_0", kind="triton", reads={"arg0_1": 4_000}, writes={"buf0": 4_000},
    source="\n    xnumel = 1000\n",
)  # fmt: skip


@pytest.fixture
def folder(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One graph of the corpus with an eager and a compiled time on two devices."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = corpus / "kernelbench"
    place = tmp_path / "corpus" / "v0.1" / "level1"
    place.mkdir(parents=True)
    graph = source / "v0.1" / "level1" / "019_ReLU.json"
    (place / graph.name).write_bytes(graph.read_bytes())
    with (source / "times.csv").open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["sizes"], row["level"], row["problem_id"]) == ("v0.1", "1", "19")
            and row["mode"] in ("eager", "compile-default")
        ]
    with (tmp_path / "corpus" / "times.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "corpus"


def answer(monkeypatch: pytest.MonkeyPatch, plan: PeerPlan) -> list[str]:
    """Let TorchInductor give this plan; the devices that it is asked for, in order."""
    asked: list[str] = []

    def inductor_plan(source: str, device: object, **given: object) -> PeerPlan:
        asked.append(getattr(device, "name", ""))
        return plan

    monkeypatch.setattr(inductor, "inductor_plan", inductor_plan)
    return asked


def test_inductor_is_asked_once_a_device_and_eager_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled rows run the plan's kernels; a second reading asks nobody."""
    plan = PeerPlan(name="inductor", version="2.13", status="planned", kernels=(FUSED,))
    asked = answer(monkeypatch, plan)
    found = read_kernelbench(folder, "inductor")
    assert sorted(asked) == ["h100-pcie", "h100-sxm"]
    names = {(row.setting.mode, row.kernels[0].name) for row in found.rows}
    assert ("compile-default", FUSED.name) in names
    assert ("eager", FUSED.name) not in names
    assert found.notes == ["compiled modes are priced on TorchInductor's own plan"]
    read_kernelbench(folder, "inductor")
    assert len(asked) == 2


def test_without_a_plan_the_stand_in_is_priced_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note says how many and why; the kernels are those of the default."""
    answer(
        monkeypatch,
        PeerPlan(name="inductor", version="2.13", status="failed", reason="no such operator"),
    )
    found = read_kernelbench(folder, "inductor")
    assert "2 of them on the stand-in" in found.notes[0]
    assert "failed, no such operator" in found.notes[0]
    default = read_kernelbench(folder)
    assert [row.kernels for row in found.rows] == [row.kernels for row in default.rows]
