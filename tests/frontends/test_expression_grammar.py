"""The parse tables that are kept are those of the grammar."""

from __future__ import annotations

import json
from typing import Any

import lark
import pytest

from fuseledger.frontends import expression_grammar, expression_syntax
from fuseledger.frontends.expression_syntax import Mistake, read

TEXTS = (
    "gemm(4096,4096,4096) + bias + gelu + residual",
    "h = softmax(x[32,64] @ v[64,128] bf16)\n(h, -h ** 2 | relu) >= 0.5e-3",
    'weight w[8, 16] int8; einsum("mk,kn->mn", x[4,8], w), [1, (2, 3)]',
    "x[4] +",
    "f(a=1, b=",
    "1 = 2 $",
)


def _read(text: str) -> Any:
    try:
        return read(text)
    except Mistake as mistake:
        return mistake.message, mistake.at


def test_kept_tables_read_what_the_grammar_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements and mistakes are equal; `python -m fuseledger.frontends.expression_grammar`."""
    kept = json.loads(expression_grammar.TABLES.read_text())
    assert kept["grammar"] == expression_grammar.GRAMMAR.read_text(), "make the tables anew"
    found = [_read(text) for text in TEXTS]
    monkeypatch.setattr(lark, "__version__", "another")
    expression_syntax._parser.cache_clear()
    assert [_read(text) for text in TEXTS] == found
    expression_syntax._parser.cache_clear()
    assert sum(isinstance(each, tuple) for each in found) == 3
