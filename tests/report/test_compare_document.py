from __future__ import annotations

import msgspec
import pytest

from fuseledger.devices import load
from fuseledger.peers.eager_peer import eager_peer
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.priced import PricedPlan, price
from fuseledger.peers.program import read_program
from fuseledger.planner.plan import cut_groups, make_plan, plan_of_groups
from fuseledger.report.compare import CompareDocument, compare_document, headline, to_json
from fuseledger.report.compare_text import compare_markdown, compare_text
from fuseledger.report.layout import Page
from fuseledger.verdict.edges import edge_verdicts

CHAIN = "gemm(4096,4096,4096) + bias + gelu + residual"
REFUSED = PeerPlan(name="inductor", version="2.13.0", status="failed", reason="no such operator")


@pytest.fixture(scope="module")
def document() -> CompareDocument:
    """Our plan of the chain beside eager PyTorch's and a peer that gave none."""
    program = read_program(CHAIN)
    ours = make_plan(program.graph, load("h100-sxm"))
    peers = [price(program, eager_peer(program), ours), PricedPlan(plan=REFUSED, kernels=())]
    return compare_document(ours, peers, edge_verdicts(ours), source=CHAIN)


def test_the_document_survives_its_own_schema(document: CompareDocument) -> None:
    """What is written is read back equal, under `fuseledger/compare@1`."""
    text = to_json(document)
    assert msgspec.json.decode(text, type=CompareDocument) == document
    assert msgspec.json.decode(text)["schema"] == "fuseledger/compare@1"


def test_we_stand_first_and_a_failure_has_its_reason(document: CompareDocument) -> None:
    """fuseledger is one of the peers; one without a plan has no totals and says why."""
    ours, eager, refused = document.peers
    assert (ours.name, ours.launches, ours.bytes) == ("fuseledger", 1, document.floor_bytes)
    assert (eager.launches, eager.bytes) == (4, 335_552_512)
    assert (refused.bytes, refused.reason) == (None, "no such operator")


def test_every_tensor_that_only_we_keep_is_a_difference(document: CompareDocument) -> None:
    """The chain's three intermediate tensors are fused by us and cut by eager PyTorch."""
    assert [(d.producer, d.fused_by, d.cut_by) for d in document.differences] == [
        (producer, ["fuseledger"], ["eager"]) for producer in ("gemm", "bias", "gelu")
    ]


def test_a_better_peer_is_said_first() -> None:
    """A plan of ours that moves more bytes than a peer's is the first thing that is said."""
    program = read_program(CHAIN)
    graph, device = program.graph, load("h100-sxm")
    cut = plan_of_groups(graph, device, cut_groups(graph, [1, 1, 1, 1]))
    better = make_plan(graph, device)
    mine = compare_document(cut, [], [], source=CHAIN).peers[0]
    other = compare_document(better, [], [], source=CHAIN).peers[0]
    renamed = msgspec.structs.replace(other, name="inductor")
    said = headline([mine, renamed])
    assert said.startswith("TorchInductor's plan moves fewer bytes: 134 MB against our 336 MB")
    assert headline([renamed, mine]).startswith("Our plan moves fewer bytes")


def test_reports_open_with_the_verdict(document: CompareDocument) -> None:
    """The first words of text and Markdown are who moves fewer bytes."""
    words = "Our plan moves fewer bytes: 134 MB against 336 MB of eager PyTorch"
    assert compare_text(document, Page(width=100, colour=False)).startswith(words)
    assert compare_markdown(document).startswith(f"**{words}")
