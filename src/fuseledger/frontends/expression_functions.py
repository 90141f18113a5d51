"""Every function of the expression language by its name, and what is written for its parameters."""

from __future__ import annotations

from fuseledger.frontends.expression_nn import NETWORK
from fuseledger.frontends.expression_pointwise import POINTWISE
from fuseledger.frontends.expression_reduce import REDUCTIONS
from fuseledger.frontends.expression_shape import SHAPES
from fuseledger.frontends.expression_syntax import Argument, Mistake, Node
from fuseledger.frontends.expression_table import Function, nearest
from fuseledger.frontends.expression_window import WINDOWS

FUNCTIONS: dict[str, Function] = {
    row.name: row for row in (*NETWORK, *WINDOWS, *REDUCTIONS, *POINTWISE, *SHAPES)
}
"""Every function by its name."""

BY_WORD: dict[str, Function] = {
    word: row for row in FUNCTIONS.values() for word in (row.name, *row.aliases)
}
"""The same, and by its other names."""


def slots_of(
    function: Function, arguments: tuple[Argument, ...], piped: bool
) -> dict[str, list[Node]]:
    """Parameter → the arguments written for it."""
    slots: dict[str, list[Node]] = {}
    waiting = list(function.params[1 if piped else 0 :])
    names = [param.name for param in function.params[1 if piped else 0 :]]
    for argument in arguments:
        if argument.keyword is None:
            if not waiting:
                raise Mistake(f"too many arguments for {function.signature}", argument.value.at)
            slots.setdefault(waiting[0].name, []).append(argument.value)
            if not waiting[0].many:
                del waiting[0]
            continue
        name = argument.keyword.name
        if name not in names:
            hint = nearest(name, names) or f"it is {function.signature}"
            raise Mistake(f"{function.name} has no parameter '{name}'; {hint}", argument.keyword.at)
        if name in slots:
            raise Mistake(f"{name} is given twice in {function.signature}", argument.keyword.at)
        slots[name] = [argument.value]
        waiting = [param for param in waiting if param.name != name]
    return slots


def reference() -> str:
    """The function table of docs/expressions.md, in Markdown."""
    lines = ["| function | also | what it computes |", "|---|---|---|"]
    for row in FUNCTIONS.values():
        also = ", ".join(f"`{alias}`" for alias in row.aliases)
        lines.append(f"| `{row.signature}` | {also} | {row.meaning} |")
    return "\n".join(lines)
