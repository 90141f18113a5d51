"""The line that says how far off the clock was where such graphs were measured."""

from __future__ import annotations

from typing import Any

import pytest
from sample_document import document

from fuseledger.report.error_words import error_words
from fuseledger.report.html import plan_html
from fuseledger.report.layout import Page
from fuseledger.report.markdown import plan_markdown
from fuseledger.report.summary import summarise
from fuseledger.report.text import plan_text

PLAN: dict[str, Any] = {
    "side": "plan", "graphs": 27, "within_half": 0.284, "within_most": 1.31, "shift": 1.02,
    "devices": ["b200", "h20"], "against": ["TorchInductor"],
}  # fmt: skip
EAGER: dict[str, Any] = {
    **PLAN, "side": "one kernel an op", "graphs": 1, "within_half": 0.1, "shift": 1.2,
    "devices": ["h100-sxm"],
}  # fmt: skip


def error(*bars: dict[str, Any]) -> dict[str, Any]:
    """The document's field."""
    return {"kind": "product", "dtype": "16-bit", "bars": list(bars)}


def test_a_plan_and_one_kernel_an_op_have_a_bar_each() -> None:
    """Shares below one are per cent, others factors; a lean of more than a tenth is told."""
    assert error_words(document(error=error(PLAN, EAGER))) == (
        "times measured in 16-bit: half within 28% of a plan's, nine in ten within 2.3× (27 product"
        " graphs); half within 10% of one kernel an op, nine in ten within 2.3× (1 product graph, "
        "longer as a rule); on b200, h100-sxm, h20"
    )


def test_a_device_that_was_not_measured_is_named() -> None:
    """The sample is for h100-sxm."""
    words = error_words(document(error=error(PLAN)))
    assert words is not None
    assert words.endswith("on b200, h20, not h100-sxm")


def test_that_nobody_measured_is_said() -> None:
    """No bar is no small error."""
    words = error_words(document(error=error()))
    assert words == (
        "no measured times of product graphs in 16-bit: how far off these are is not known"
    )


def test_declared_accounts_have_no_error_line() -> None:
    """Their times are the user's own."""
    assert error_words(document()) is None


def test_every_form_says_it() -> None:
    """Text, Markdown and HTML, from one sentence."""
    pytest.importorskip("jinja2")
    made = document(error=error(PLAN))
    summary = summarise(made)
    page = Page(width=100, colour=False)
    for form in (plan_text(summary, page), plan_markdown(summary), plan_html(made, summary)):
        assert "half within 28% of a plan" in " ".join(form.split())
