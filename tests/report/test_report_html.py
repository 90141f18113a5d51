"""The HTML report: one file that loads nothing and says what the text says."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from sample_document import document, repeated, sample

from fuseledger.errors import MissingExtra
from fuseledger.report import html
from fuseledger.report.document import PlanDocument
from fuseledger.report.summary import summarise

pytest.importorskip("jinja2")

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Checks that every element is closed in order, and collects text and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "onclick")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """An element ends: it must be the last that began."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        self.words.append(data)


def _read(made: PlanDocument) -> tuple[Reader, str]:
    text = html.plan_html(made, summarise(made))
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader, " ".join(" ".join(reader.words).split())


def test_the_page_stands_alone() -> None:
    """No script, no address, no import: it can be mailed and opened anywhere."""
    reader, _ = _read(document())
    assert reader.loads == []
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    text = html.plan_html(document(), summarise(document()))
    assert not re.search(r"https?://|@import|url\(", text)


def test_the_page_says_what_the_text_says() -> None:
    """Headline, kernels, derivations, totals, reasons with their flips, notes and status."""
    made = document()
    summary = summarise(made)
    _, words = _read(made)
    said = [summary.headline, summary.saved, summary.status, *summary.notes[:1]]
    said += [row.label for row in summary.kernels]
    said += [cut.reason for cut in summary.cuts] + [f for cut in summary.cuts for f in cut.flips]
    said += [account["derivation"] for k in sample()["plan"]["kernels"]
             for account in k["accounts"].values()]  # fmt: skip
    assert [each for each in said if each and " ".join(each.split()) not in words] == []


def test_names_from_the_model_cannot_become_markup() -> None:
    """A name with a tag in it is shown as text."""
    made = sample()
    made["source"] = "<script>alert(1)</script>.onnx"
    made["graph"]["name"] = "</title><b>"
    reader, words = _read(document(**made))
    assert "script" not in reader.tags
    assert "<script>alert(1)</script>.onnx" in words


def test_equal_kernels_share_a_row() -> None:
    """Forty equal layers are one row with a count and one set of accounts."""
    reader, words = _read(repeated(40))
    assert "× 40" in words
    assert reader.tags.count("details") == 2  # the kernel's accounts, and where its cut flips


def test_without_jinja2_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is told with the exact installation."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(html, "import_module", missing)
    with pytest.raises(MissingExtra, match=r'pip install "fuseledger\[report\]"'):
        html.plan_html(document(), summarise(document()))
