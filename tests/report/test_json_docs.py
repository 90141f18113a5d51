from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from schema_rows import rows

from fuseledger.report.document import (
    AccountPart,
    KernelDocument,
    KernelPart,
    PlanDocument,
    TotalsPart,
    VerdictPart,
)
from fuseledger.report.validation import ValidationDocument

DOCS = Path(__file__).resolve().parents[2] / "docs" / "json.md"

SECTIONS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "## `fuseledger/plan@1`": (
        PlanDocument,
        ("plan.kernels[]", "plan.totals", "baseline", "cuts[].totals", "verdicts[]"),
    ),
    "### Kernel": (KernelPart, ("accounts",)),
    "### Account": (AccountPart, ()),
    "### Totals": (TotalsPart, ()),
    "### Verdict": (VerdictPart, ()),
    "## `fuseledger/kernel@1`": (KernelDocument, ("device", "options", "kernel", "verdicts[]")),
    "## `fuseledger/validate@1`": (ValidationDocument, ("leave_one_device_out[]",)),
}
"""Heading → the struct that its first table documents, and the parts that other tables do."""


def _documented(heading: str) -> list[tuple[str, str]]:
    lines = iter(DOCS.read_text(encoding="utf-8").splitlines())
    assert any(line.startswith(heading) for line in lines), heading
    found: list[tuple[str, str]] = []
    for line in lines:
        row = re.fullmatch(r"\| `([^`]+)` \| (.+?) \|(.*)\|(.*)\|", line)
        if row:
            assert row[4].strip(), f"{row[1]} has no meaning"
            found.append((row[1], row[2]))
        elif found:
            break
    return found


@pytest.mark.parametrize("heading", SECTIONS)
def test_documentation_names_every_field_with_its_type(heading: str) -> None:
    """A table of docs/json.md has exactly the fields of its struct, in order, with their types."""
    struct, elsewhere = SECTIONS[heading]
    expected = [
        row for row in rows(struct) if not any(row[0].startswith(f"{e}.") for e in elsewhere)
    ]
    assert _documented(heading) == expected
