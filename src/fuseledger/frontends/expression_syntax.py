"""The syntax of expressions: text to statements, and mistakes shown with a caret.

The grammar is `expression.lark`. Every node knows its place in the text (`at`, an offset) and how
deeply it is nested, so that reading a tree needs a bounded stack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from msgspec import Struct

from fuseledger.errors import SourceError

MAX_DEPTH = 60
"""Nesting of calls that a reader can follow; the evaluator recurses once per level."""

_WHOLE_DIGITS = 18

_CONTINUED = re.compile(r"[-+*/@|,=<>]\s*\n|\n(?=\s*[|+*/@])")
"""A line break after an operator, or before one that starts no expression."""

_WIDTH = 76
"""Columns of source shown above a caret."""


class Mistake(Exception):
    """What is wrong, and where: an offset into the text, or None for the call being read."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class Number(Struct, frozen=True):
    """A literal; whole numbers stay integers."""

    at: int
    value: float
    depth: int = 0


class Text(Struct, frozen=True):
    """A quoted string (an einsum's equation)."""

    at: int
    value: str
    depth: int = 0


class Name(Struct, frozen=True):
    """A bare word: a tensor, a result, a size, a stage, or an option such as `true`."""

    at: int
    name: str
    depth: int = 0


class Group(Struct, frozen=True):
    """Several values in brackets or parentheses: `[0, 1]`, `(0, 1)`."""

    at: int
    items: tuple[Node, ...]
    depth: int


class Declaration(Struct, frozen=True):
    """`weight w[4096, 4096] bf16`: role and dtype are optional."""

    at: int
    role: Name | None
    name: str
    sizes: tuple[Node, ...]
    dtype: Name | None
    depth: int


class Argument(Struct, frozen=True):
    """`value` or `keyword=value`."""

    keyword: Name | None
    value: Node

    @property
    def depth(self) -> int:
        """Nesting of the value."""
        return self.value.depth


class Invocation(Struct, frozen=True):
    """`function(arguments)`."""

    at: int
    function: str
    arguments: tuple[Argument, ...]
    depth: int


class Negation(Struct, frozen=True):
    """Unary minus."""

    at: int
    operand: Node
    depth: int


class Chain(Struct, frozen=True):
    """Operators of one precedence, left to right: each with the place of its sign."""

    at: int
    first: Node
    rest: tuple[tuple[str, int, Node], ...]
    depth: int


Node = Number | Text | Name | Group | Declaration | Invocation | Negation | Chain


class Statement(Struct, frozen=True):
    """`targets = values`, or values alone."""

    targets: tuple[Name, ...]
    values: tuple[Node, ...]
    depth: int = 0


def read(text: str) -> list[Statement]:
    """The statements of a text; raises Mistake where it breaks the grammar."""
    import lark

    flat = _flatten(text)
    try:
        return _parser().parse(flat)
    except lark.UnexpectedCharacters as error:
        at = cast("int", error.pos_in_stream)
        raise Mistake(f"unexpected {text[at]!r}", at) from None
    except lark.UnexpectedToken as error:
        token: Any = error.token
        if token.type == "$END":
            raise Mistake("something is missing at the end", len(text.rstrip())) from None
        what = "end of line" if str(token) == "\n" else repr(str(token))
        raise Mistake(f"unexpected {what}", token.start_pos) from None


def source_error(text: str, mistake: Mistake) -> SourceError:
    """The mistake as a message: one line, then the source with a caret under the place."""
    at = min(mistake.at or 0, len(text))
    start = text.rfind("\n", 0, at) + 1
    line = text[start:].split("\n", 1)[0].replace("\t", " ")
    column = at - start
    line_number = text.count("\n", 0, at) + 1
    place = f"line {line_number}, " if "\n" in text.strip() else ""
    skipped = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
    shown = line[skipped : skipped + _WIDTH]
    caret = " " * (column - skipped) + "^"
    message = f"expression: {place}column {column + 1}: {mistake.message}"
    return SourceError(f"{message}\n  {shown}\n  {caret}" if line.strip() else message)


def _flatten(text: str) -> str:
    """The text with comments and inner line breaks blanked; offsets stay.

    Raises Mistake at a bracket without its partner.
    """
    closing = {"(": ")", "[": "]"}
    flat = list(text)
    opened: list[tuple[str, int]] = []
    quote = comment = ""
    for at, character in enumerate(text):
        if character == "\n":
            quote = comment = ""
            if opened:
                flat[at] = " "
        elif comment or (character == "#" and not quote):
            comment = "#"
            flat[at] = " "
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in closing:
            opened.append((character, at))
        elif character in closing.values():
            if not opened:
                raise Mistake(f"{character!r} closes nothing", at)
            last, since = opened.pop()
            if closing[last] != character:
                raise Mistake(f"{last!r} is closed by {character!r}", at if at > since else since)
    if opened:
        character, at = opened[-1]
        raise Mistake(f"{character!r} is never closed", at)
    return _CONTINUED.sub(lambda found: found[0].replace("\n", " "), "".join(flat))


@cache
def _parser() -> Any:
    from fuseledger.frontends.expression_grammar import parser

    return parser(_Builder())


def _number(text: str) -> float:
    digits = text.replace("_", "")
    whole = digits.isdigit() and len(digits) <= _WHOLE_DIGITS
    return int(digits) if whole else float(digits)


def _below(at: int, *nodes: Any) -> int:
    """Depth of a node over `nodes`; raises Mistake where a reader, and our stack, would give up."""
    depth = 1 + max((node.depth for node in nodes), default=0)
    if depth > MAX_DEPTH:
        raise Mistake(f"nested deeper than {MAX_DEPTH} levels; name parts with h = …", at)
    return depth


def _chain(children: Sequence[Any]) -> Node:
    if len(children) == 1 or children[1] is None:
        return children[0]
    first, *rest = children
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    links = tuple((str(sign), int(sign.start_pos), node) for sign, node in pairs)
    at = links[0][1]
    return Chain(at, first, links, _below(at, first, *(node for _, node in pairs)))


class _Builder:
    """Rule name → node; lark calls a method with the children of each rule that it reduces."""

    pipe = comparison = sum = term = power = staticmethod(_chain)

    @staticmethod
    def start(children: Sequence[Statement]) -> list[Statement]:
        return list(children)

    @staticmethod
    def statement(children: Sequence[Any]) -> Statement:
        left, right = children
        if right is None:
            return Statement((), left)
        for target in left:
            if not isinstance(target, Name):
                raise Mistake("only a name can be on the left of =", target.at)
        return Statement(left, right)

    @staticmethod
    def items(children: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(children)

    @staticmethod
    def number(children: Sequence[Any]) -> Number:
        (token,) = children
        return Number(token.start_pos, _number(token))

    @staticmethod
    def text(children: Sequence[Any]) -> Text:
        (token,) = children
        return Text(token.start_pos, str(token)[1:-1])

    @staticmethod
    def name(children: Sequence[Any]) -> Name:
        (token,) = children
        return Name(token.start_pos, str(token))

    @staticmethod
    def negation(children: Sequence[Any]) -> Node:
        sign, operand = children
        at = sign.start_pos
        if isinstance(operand, Number):
            return Number(at, -operand.value)
        return Negation(at, operand, _below(at, operand))

    @staticmethod
    def parenthesis(children: Sequence[Any]) -> Node:
        (items,) = children
        return (
            items[0] if len(items) == 1 else Group(items[0].at, items, _below(items[0].at, *items))
        )

    @staticmethod
    def group(children: Sequence[Any]) -> Group:
        bracket, items = children
        at = bracket.start_pos
        return Group(at, items or (), _below(at, *(items or ())))

    @staticmethod
    def argument(children: Sequence[Any]) -> Argument:
        keyword, value = children
        named = None if keyword is None else Name(keyword.start_pos, str(keyword))
        return Argument(named, value)

    @staticmethod
    def arguments(children: Sequence[Any]) -> tuple[Argument, ...]:
        return tuple(child for child in children if child is not None)

    @staticmethod
    def invocation(children: Sequence[Any]) -> Invocation:
        token, arguments = children
        at = token.start_pos
        return Invocation(at, str(token), arguments, _below(at, *arguments))

    @staticmethod
    def declaration(children: Sequence[Any]) -> Declaration:
        role, token, sizes, dtype = children
        words = [None if t is None else Name(t.start_pos, str(t)) for t in (role, dtype)]
        return Declaration(
            token.start_pos, words[0], str(token), sizes.items, words[1], sizes.depth
        )
