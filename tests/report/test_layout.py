from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseledger.report.figures import bytes_words, label_words, three_digits, time_words
from fuseledger.report.layout import Column, Page, Row, wrap


@given(st.text("ab +·,µ", max_size=80), st.integers(5, 40))
def test_wrapping_keeps_every_sign_but_blanks(text: str, width: int) -> None:
    """Wrapped lines fit, and hold the text's own signs in order."""
    lines = wrap(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_a_number_stays_with_its_unit() -> None:
    """A line never breaks between a figure and its unit."""
    assert wrap("read A 33.6 MB", 12) == ["read A", "33.6 MB"]


def test_a_label_breaks_after_a_plus() -> None:
    """Long labels of fused ops break where the ops join."""
    assert wrap("conv+batch_norm+relu", 16) == ["conv+batch_norm+", "relu"]


def test_the_widest_wrapping_column_gives_way() -> None:
    """A table wider than the page narrows the column that may wrap, and no other."""
    page = Page(width=30, colour=False)
    columns = (Column("a"), Column("b", wraps=True), Column("c", "right"))
    page.table(columns, [Row(("fixed", "one two three four five six", "12.5 MB"), "a note")])
    lines = page.text().splitlines()
    assert max(map(len, lines)) <= 30
    assert lines[1].startswith("fixed  one two")
    assert lines[1].endswith("12.5 MB")
    assert lines[-1] == "       a note"


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("conv+relu+conv+relu+add", "2×(conv+relu)+add"),
        ("add+conv+relu+pool+conv+relu+pool+conv", "add+2×(conv+relu+pool)+conv"),
        ("gemm+bias+gelu", "gemm+bias+gelu"),
        ("gemm", "gemm"),
    ],
)
def test_repeats_in_a_label_are_counted(label: str, words: str) -> None:
    """A run of equal parts is written once with its number; single ops are left alone."""
    assert label_words(label) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.8372, "0.837"), (0.99951, "1.00"), (1.234, "1.23"), (9.996, "10.0"), (12.34, "12.3"),
        (99.96, "100"), (335.55, "336"), (1998.3, "1,998"),
    ],
)  # fmt: skip
def test_three_digits(value: float, words: str) -> None:
    """Figures have three significant digits, also where rounding carries into the next place."""
    assert three_digits(value) == words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (bytes_words(512), "512 B"),
        (bytes_words(8192), "8.19 kB"),
        (bytes_words(3.23e9), "3.23 GB"),
        (time_words(8.816), "8.82 µs"),
        (time_words(1274.8), "1.27 ms"),
        (time_words(2.5e6), "2.50 s"),
    ],
)
def test_units_are_decimal(words: str, expected: str) -> None:
    """Bytes and times take the largest unit in which they are at least 1."""
    assert words == expected
