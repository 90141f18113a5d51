"""The parse tables of `expression.lark`: making them takes lark 80 ms, reading them 5.

`python -m fuseledger.frontends.expression_grammar` makes `expression_grammar.json` anew. Tables of
another grammar, or of another lark than the installed one, are not used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lark
import msgspec

GRAMMAR = Path(__file__).with_name("expression.lark")
TABLES = Path(__file__).with_name("expression_grammar.json")
OPTIONS: dict[str, Any] = {"parser": "lalr", "lexer": "basic"}
"""A word is the same wherever it stands, so one regular expression finds them all."""


def parser(transformer: object) -> Any:
    """A lark parser of expressions that hands each rule's children to `transformer`."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    tables: dict[str, Any] = msgspec.json.decode(TABLES.read_bytes())
    if (tables["lark"], tables["grammar"]) != (lark.__version__, grammar):
        return lark.Lark(grammar, transformer=transformer, **OPTIONS)  # pyright: ignore
    data = tables["data"]
    table = data["parser"]["parser"]
    table["tokens"] = _by_number(table["tokens"])
    table["states"] = {k: _by_number(row) for k, row in _by_number(table["states"]).items()}
    # lark's own standalone parsers start so too
    memo = _by_number(tables["memo"])
    return lark.Lark._load_from_dict(data, memo, transformer=transformer)  # pyright: ignore


def make() -> bytes:
    """The tables of the grammar as JSON: what `TABLES` holds."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    grammar = GRAMMAR.read_text(encoding="utf-8")
    made: Any = lark.Lark(grammar, **OPTIONS)
    data, memo = made.memo_serialize([TerminalDef, Rule])
    tables = {"lark": lark.__version__, "grammar": grammar, "data": data, "memo": memo}
    return msgspec.json.encode(tables) + b"\n"


def _by_number(row: dict[str, Any]) -> dict[int, Any]:
    """JSON's keys are text."""
    return {int(key): value for key, value in row.items()}


if __name__ == "__main__":
    TABLES.write_bytes(make())
