"""Scalar expressions as Triton text: an op's body over the values that it reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fuseledger.errors import CannotEmit
from fuseledger.graph.axis import Index
from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call, Const, Coord, Expr, Read
from fuseledger.triton.functions import (
    BITWISE,
    CONDITIONS,
    DEFAULTS,
    TAKES_CONDITIONS,
    TEMPLATES,
    power,
)
from fuseledger.triton.scope import Coords, Frame, Text, literal, unwrapped

if TYPE_CHECKING:
    from fuseledger.triton.emit_body import Writer

INTEGER_SAFE = frozenset(
    {"add", "sub", "mul", "neg", "max", "min", "abs", "square", "identity", "where"}
)
KEEPS_BITS = frozenset({"identity", *BITWISE})
"""Functions whose result has no more bits than their arguments."""
RANDOM: dict[str, str] = {"uniform": "tl.rand", "normal": "tl.randn", "bernoulli": "tl.rand"}
SEED = "SEED"
"""The constant that random numbers are drawn from, with the number of their point."""
PLACE = re.compile(r"(?<=\w\(|, )\{(\d)\}(?=[,)])")
"""An argument of a call in a template."""
SHORT, LONG = 12, 70
"""Characters from which an argument gets a name: where a template repeats it, and in any case."""
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def expression(w: Writer, op: Op, expr: Expr | None, coords: Coords, frame: Frame) -> Text:
    """A scalar expression as text."""
    if expr is None:
        raise CannotEmit(f"{op.name} has no body: nothing is known of it but its tensors")
    if isinstance(expr, Read):
        return w.read(op, expr.slot, coords, frame)
    if isinstance(expr, Const):
        return Text(literal(expr.value))
    if isinstance(expr, Coord):
        at = w.coordinate(coords.get(expr.axis, Index()), frame)
        return replace(at, text=f"({at.text})") if " " in at.text else at
    return _call(w, op, expr, coords, frame)


def _call(w: Writer, op: Op, expr: Call, coords: Coords, frame: Frame) -> Text:
    function, arguments = expr.function, expr.args
    if function in RANDOM:
        return _random(w, op, expr, coords, frame)
    template = power(arguments[1]) if function == "pow" else None
    if template is not None:
        arguments = arguments[:1]
    else:
        template = TEMPLATES.get(function) or CONDITIONS.get(function) or BITWISE.get(function)
    if template is None:
        raise CannotEmit(f"{op.name}: the function {function} has no Triton text")
    values = [expression(w, op, each, coords, frame) for each in arguments]
    depth = max((v.depth for v in values), default=0)
    values = [w.known(v.text) or _hoisted(w, op, v, depth) for v in values]
    places = frozenset[int]().union(*(v.places for v in values))
    taken = TAKES_CONDITIONS.get(function, frozenset[int]())
    numbers = [k for k in range(len(values)) if k not in taken]
    whole = function in INTEGER_SAFE | COMPARISONS and _integers(
        [arguments[k] for k in numbers], [values[k] for k in numbers]
    )
    texts = [
        v.condition
        if k in taken
        else _whole(a, v, function)
        if whole or (function in BITWISE and isinstance(a, Const))
        else v.whole
        if function in BITWISE
        else v.number
        for k, (a, v) in enumerate(zip(arguments, values, strict=True))
    ]
    if function == "div" and texts[1] == "1.0":
        return replace(values[0], text=texts[0])
    texts += DEFAULTS.get(function, ())[len(texts) - 1 :] if function in DEFAULTS else ()
    for k, text in enumerate(texts[: len(values)]):
        repeated = template.count(f"{{{k}}}") > 1 and len(text) > SHORT
        if (repeated or len(text) > LONG) and not text.isidentifier():
            texts[k] = w.bind(function_stem(op), replace(values[k], text=text)).text
    is_whole = whole or function in BITWISE
    kind = "bool" if function in CONDITIONS else "int" if is_whole else "float"
    narrow = function in KEEPS_BITS and is_whole and any(v.narrow for v in values)
    return Text(_filled(template, texts), depth, places, kind, narrow)


def _random(w: Writer, op: Op, expr: Call, coords: Coords, frame: Frame) -> Text:
    """A random number of this point: the same wherever, and however often, it is drawn."""
    w.constants.setdefault(SEED, 0)
    strides: dict[str, int] = {}
    stride = 1
    for axis in reversed(op.axes):
        strides[axis.name] = stride
        stride *= axis.size
    at = Index(tuple(strides.items())).substitute(dict(coords))
    point = w.coordinate(at, frame)
    draw = f"{RANDOM[expr.function]}({SEED}, {point.text})"
    if expr.function != "bernoulli":
        return replace(point, text=draw, kind="float")
    share = expression(w, op, expr.args[0], coords, frame)
    return Text(
        f"({draw} < {share.number})",
        max(point.depth, share.depth), point.places | share.places, "bool",
    )  # fmt: skip


def _hoisted(w: Writer, op: Op, value: Text, depth: int) -> Text:
    """Work that an inner loop need not repeat, bound outside it."""
    if value.depth < depth and "(" in value.text and not _is_literal(value.text):
        return w.bind(function_stem(op), value)
    return value


def function_stem(op: Op) -> str:
    """A name for part of an op's work."""
    return f"{op.function}_part"


def _filled(template: str, texts: list[str]) -> str:
    """The template over its arguments, without parentheses around an argument of a call."""
    return PLACE.sub(lambda found: unwrapped(texts[int(found[1])]), template).format(*texts)


def _is_literal(text: str) -> bool:
    return text.startswith("float(")


def _integers(arguments: list[Expr], values: list[Text]) -> bool:
    """Whether a call is on whole numbers: at least one, and constants that are whole."""
    kinds = [
        float(a.value).is_integer() if isinstance(a, Const) else v.kind == "int"
        for a, v in zip(arguments, values, strict=True)
    ]
    return all(kinds) and any(v.kind == "int" for v in values)


def _whole(argument: Expr, value: Text, function: str) -> str:
    if isinstance(argument, Const):
        return str(int(argument.value))
    return value.text if function in KEEPS_BITS else value.wide
