"""Long lines of emitted code, broken as a formatter would."""

from __future__ import annotations

from collections.abc import Iterator

WIDTH = 100
OPENING, CLOSING = "([{", ")]}"


def lines_of(text: str, indent: int) -> Iterator[str]:
    """A statement at an indent, in lines of at most `WIDTH` where it has places to break."""
    pad = "    " * indent
    if len(pad) + len(text) <= WIDTH or text.startswith("#"):
        yield pad + text
        return
    head, inner, tail = _outer_call(text)
    if inner is None:
        left, sign, right = text.partition(" = ")
        for operator in ("+ ", "* ") if sign else ():
            terms = _split(right, f" {operator}")
            if len(terms) > 1:
                yield f"{pad}{left} = ("
                yield from _joined(terms, operator, indent + 1)
                yield f"{pad})"
                return
        yield pad + text
        return
    yield pad + head
    for argument in _split(inner, ", "):
        name, sign, value = argument.partition("=")
        pointer, plus, offset = argument.partition(" + (")
        if plus and len(pad) + 5 + len(argument) > WIDTH and pointer.isidentifier():
            yield f"{pad}    {pointer} + ("
            yield from _joined(_split(offset[:-1], " + "), "+ ", indent + 2)
            yield f"{pad}    ),"
            continue
        terms = _split(value, " & ") if sign and name.isidentifier() else []
        if len(pad) + 5 + len(argument) <= WIDTH or len(terms) < 2:
            yield f"{pad}    {argument},"
        else:
            yield f"{pad}    {name}=("
            yield from _joined(terms, "& ", indent + 2)
            yield f"{pad}    ),"
    yield pad + tail


def _joined(terms: list[str], sign: str, indent: int) -> Iterator[str]:
    pad = "    " * indent
    line = pad
    for position, term in enumerate(terms):
        piece = f" {sign}{term}" if position else term
        if len(line) + len(piece) > WIDTH and line.strip():
            yield line
            line, piece = pad, piece.lstrip()
        line += piece if line.strip() else piece.lstrip()
    yield line


def _outer_call(text: str) -> tuple[str, str | None, str]:
    """(up to the opening parenthesis, arguments, the rest) where a call is all of the right."""
    start = text.find("(")
    if start < 0 or not text.endswith(")") or " " in text[:start].partition(" = ")[2]:
        return text, None, ""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in OPENING) - (text[position] in CLOSING)
        if depth == 0 and position < len(text) - 1:
            return text, None, ""
    return text[: start + 1], text[start + 1 : -1], ")"


def _split(text: str, sign: str) -> list[str]:
    """Parts of a text between signs that no parenthesis encloses."""
    parts: list[str] = []
    depth = start = 0
    for position in range(len(text)):
        depth += (text[position] in OPENING) - (text[position] in CLOSING)
        if depth == 0 and text.startswith(sign, position):
            parts.append(text[start:position])
            start = position + len(sign)
    return [*parts, text[start:]]
