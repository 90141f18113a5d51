from __future__ import annotations

import re

from sample_document import document
from syrupy.assertion import SnapshotAssertion

from fuseledger.report.document import KernelDocument, kernel_document
from fuseledger.report.markdown import explain_markdown, plan_markdown
from fuseledger.report.summary import summarise


def test_plan_in_markdown_reads_as_agreed(snapshot: SnapshotAssertion) -> None:
    """The Markdown report of a plan is the one that was agreed upon."""
    assert plan_markdown(summarise(document())) == snapshot


def test_every_row_of_a_table_has_as_many_cells_as_its_title() -> None:
    """A bar in a name is escaped, so that no row gains a cell."""
    for text in (plan_markdown(summarise(document())), explain_markdown(_explained())):
        for block in text.split("\n\n"):
            rows = [line for line in block.splitlines() if line.startswith("|")]
            counts = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
            assert len(counts) <= 1


def test_text_and_markdown_say_the_same_of_an_edge() -> None:
    """An explanation names each edge, its account and the price of the other choice."""
    text = explain_markdown(_explained())
    assert "capacity: together: C needs" in text
    assert "fused: −67.1 MB, +12.5 µs" in text


def _explained() -> KernelDocument:
    return kernel_document(document(), 1)
