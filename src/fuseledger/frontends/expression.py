"""Expressions: `gemm(4096,4096,4096) + bias + gelu + residual`, read into a Graph.

`parse` is the way in. The language is described in docs/expressions.md; its functions are the
tables of `expression_nn`, `_window`, `_reduce`, `_pointwise` and `_shape`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fuseledger.errors import ShapeError, SourceError
from fuseledger.frontends.expression_nn import NETWORK, matmul
from fuseledger.frontends.expression_pointwise import POINTWISE
from fuseledger.frontends.expression_reduce import REDUCTIONS
from fuseledger.frontends.expression_shape import SHAPES
from fuseledger.frontends.expression_syntax import (
    Argument,
    Chain,
    Declaration,
    Group,
    Invocation,
    Mistake,
    Name,
    Negation,
    Node,
    Number,
    Statement,
    Text,
    read,
    source_error,
)
from fuseledger.frontends.expression_table import (
    REQUIRED,
    TENSOR_KINDS,
    Function,
    Kind,
    Param,
    Scope,
    check_shape,
    checked,
    dtype_named,
    nearest,
    shape_of,
)
from fuseledger.frontends.expression_window import WINDOWS
from fuseledger.graph.broadcast import promote
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.scalar import Const, Read, call
from fuseledger.graph.tensor import Role
from fuseledger.graph.view import View

FUNCTIONS: dict[str, Function] = {
    row.name: row for row in (*NETWORK, *WINDOWS, *REDUCTIONS, *POINTWISE, *SHAPES)
}
"""Every function by its name."""

_BY_WORD: dict[str, Function] = {
    word: row for row in FUNCTIONS.values() for word in (row.name, *row.aliases)
}

Value = View | float | tuple[View, ...]

_OPERATORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "+": ("add", operator.add),
    "-": ("sub", operator.sub),
    "*": ("mul", operator.mul),
    "/": ("div", lambda x, y: x / y),
    "**": ("pow", lambda x, y: float(x) ** float(y)),
    "==": ("eq", operator.eq),
    "!=": ("ne", operator.ne),
    "<": ("lt", operator.lt),
    "<=": ("le", operator.le),
    ">": ("gt", operator.gt),
    ">=": ("ge", operator.ge),
}
"""Sign → scalar function, and its meaning for two numbers."""

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_POWERS = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
_ROLES: dict[str, Role] = {"weight": "weight", "input": "input", "constant": "constant"}
_LARGEST_NUMBER = 1e300
_NAME_LENGTH = 60


def parse(text: str, *, dtype: str = "fp16", dims: Mapping[str, int] | None = None) -> Graph:
    """The graph of an expression.

    `dtype` is that of tensors which name none. `dims` gives sizes by name, before and instead of
    the text's own `batch = 8`. Raises SourceError, which shows the place with a caret.
    """
    try:
        default = dtype_named(dtype)
    except Mistake as mistake:
        raise SourceError(f"expression: {mistake.message}") from None
    title = " ".join(text.split())
    title = title if len(title) <= _NAME_LENGTH else f"{title[:_NAME_LENGTH]}…"
    try:
        return _Reading(Scope(GraphBuilder(title), default), dict(dims or {})).graph(read(text))
    except Mistake as mistake:
        raise source_error(text, mistake) from None


class _Reading:
    """One pass over the statements: names bound so far, and results to come."""

    def __init__(self, scope: Scope, dims: dict[str, int]) -> None:
        self.scope = scope
        self.dims = dims
        self.names: dict[str, Value] = dict(dims)
        self.unread = set(dims)
        self.results: list[tuple[str, View]] = []

    def graph(self, statements: list[Statement]) -> Graph:
        if not statements:
            raise Mistake("it is empty; try gemm(4096,4096,4096) + bias + gelu", 0)
        for statement in statements:
            if statement.targets:
                self._assign(statement)
            else:
                for node in statement.values:
                    self._leave(node)
        for target in statements[-1].targets:
            self._leave(target)
        for name in sorted(self.unread):
            raise Mistake(f"no size is called '{name}' here", 0)
        self._name_tensors()
        for name, view in self.results:
            self.scope.b.output(view, name)
        graph = self.scope.b.finish()
        if not graph.ops:
            raise Mistake("nothing is computed; apply a function to a tensor", 0)
        return graph

    def _assign(self, statement: Statement) -> None:
        targets = [target.name for target in statement.targets]
        values = [self.value(node) for node in statement.values]
        if len(values) == 1 and isinstance(values[0], tuple) and len(targets) > 1:
            values = list(values[0])
        if len(targets) != len(values):
            counts = f"{len(targets)} names for {len(values)} results"
            raise Mistake(counts, statement.targets[0].at)
        for name, value in zip(targets, values, strict=True):
            if name not in self.dims:
                self.names[name] = value
            elif isinstance(value, View | tuple):
                raise Mistake(f"'{name}' is given as a size", statement.targets[0].at)

    def _leave(self, node: Node) -> None:
        """Note an expression's value as a result; a declaration alone is none."""
        value = self.value(node)
        if isinstance(node, Declaration):
            return
        if isinstance(value, int | float):
            raise Mistake("a number is no result; apply a function to a tensor", node.at)
        taken = {name for name, _ in self.results}
        stem = node.name if isinstance(node, Name) else "out"
        for view in value if isinstance(value, tuple) else (value,):
            name, number = stem, 0
            while name in taken:
                number += 1
                name = f"{stem}_{number}"
            taken.add(name)
            self.results.append((name, view))

    def _name_tensors(self) -> None:
        """Give stored results the names that the text binds them to."""
        b = self.scope.b
        taken = {*b.tensors, *(name for name, _ in self.results)}
        for name, value in self.names.items():
            if not isinstance(value, View) or name in taken:
                continue
            stored = b.tensors[value.base]
            if stored.role == "intermediate" and stored.shape == value.shape:
                b.final_names.setdefault(value.base, name)
                taken.add(name)

    # -- values ----------------------------------------------------------------------------

    def value(self, node: Node, kind: Kind = "tensor") -> Value:
        """What a node stands for; `kind` says what a bare declaration becomes."""
        match node:
            case Number():
                return node.value
            case Name():
                return self._named(node)
            case Declaration():
                return self._declared(node, kind)
            case Invocation():
                return self._call(node, node.function, node.arguments)
            case Chain():
                return self._chain(node, self.value(node.first))
            case Negation():
                return self._negated(node)
            case Group():
                raise Mistake("a list is an argument of a function, not a tensor", node.at)
            case Text():
                raise Mistake("text is an argument of a function, not a tensor", node.at)

    def view(self, node: Node, kind: Kind = "tensor") -> View:
        """The node's value as one tensor."""
        return self._one(self.value(node, kind), node.at)

    def _one(self, value: Value, at: int) -> View:
        if isinstance(value, tuple):
            raise Mistake(f"{len(value)} results; name them first, as in a, b = …", at)
        if not isinstance(value, View):
            raise Mistake(f"a tensor is needed here, not the number {value:g}", at)
        return value

    def _named(self, node: Name) -> Value:
        self.unread.discard(node.name)
        if node.name in self.names:
            return self.names[node.name]
        if node.name in _BY_WORD:
            raise Mistake(
                f"'{node.name}' is a function; write {node.name}(…) or x | {node.name}", node.at
            )
        raise Mistake(self._unknown(node.name), node.at)

    def _unknown(self, name: str, *, function: bool = False) -> str:
        hint = nearest(name, tuple(_BY_WORD))
        if hint or function:
            return f"unknown function '{name}'; {hint or 'docs/expressions.md lists them'}"
        hint = nearest(name, tuple(self.names))
        return (
            f"unknown name '{name}'; {hint or f'a tensor is declared with its sizes: {name}[8,16]'}"
        )

    def _declared(self, node: Declaration, kind: Kind) -> View:
        param = Param("size", "size")
        shape = tuple(self._placed(size, param, self._size(size)) for size in node.sizes)
        dtype = "int64" if kind == "indices" else self.scope.dtype
        if node.dtype is not None:
            with _at(node.dtype.at):
                dtype = dtype_named(node.dtype.name)
        with _at(node.at):
            check_shape(shape)
        known = self.names.get(node.name)
        if known is not None:
            return self._again(node, known, shape, dtype if node.dtype else None)
        view = self.scope.b.tensor(node.name, shape, dtype, self._role(node, kind))
        self.names[node.name] = view
        return view

    def _again(
        self, node: Declaration, known: Value, shape: tuple[int, ...], dtype: str | None
    ) -> View:
        external = (
            isinstance(known, View) and self.scope.b.tensors[known.base].role != "intermediate"
        )
        if not isinstance(known, View) or not external:
            raise Mistake(
                f"'{node.name}' is defined above; {node.name}[…] would declare it anew", node.at
            )
        if known.shape != shape or dtype not in (None, known.dtype):
            as_before = f"{shape_of(known.shape)} {known.dtype}"
            raise Mistake(f"'{node.name}' is already declared as {as_before}", node.at)
        return known

    def _role(self, node: Declaration, kind: Kind) -> Role:
        if node.role is None:
            return "weight" if kind == "weight" else "input"
        if node.role.name not in _ROLES:
            raise Mistake(f"unknown role '{node.role.name}'; use {', '.join(_ROLES)}", node.role.at)
        return _ROLES[node.role.name]

    def _size(self, node: Node) -> Value:
        if isinstance(node, Name) and node.name not in self.names:
            raise Mistake(
                f"unknown size '{node.name}'; set it first, as in {node.name} = 8;", node.at
            )
        return self.value(node)

    # -- operators -------------------------------------------------------------------------

    def _chain(self, node: Chain, left: Value) -> Value:
        for sign, at, right in node.rest:
            if sign == "|" or (sign == "+" and self._is_stage(right)):
                left = self._piped(self._one(left, at), right)
            elif sign == "@":
                is_matrix = isinstance(right, Declaration) and len(right.sizes) == 2
                other = self.view(right, "weight" if is_matrix else "tensor")
                with _at(at):
                    left = matmul(self.scope, self._one(left, at), other)
            else:
                left = self._operated(sign, at, left, self.value(right))
        return left

    def _piped(self, left: View, node: Node) -> Value:
        """A stage applied to what is left of it; `x | gelu + bias` feeds gelu."""
        if isinstance(node, Chain):
            return self._chain(node, self._piped(left, node.first))
        if isinstance(node, Name):
            return self._call(node, node.name, (), left)
        if isinstance(node, Invocation):
            return self._call(node, node.function, node.arguments, left)
        raise Mistake("after | comes a function, such as gelu", node.at)

    def _is_stage(self, node: Node) -> bool:
        """Whether a right operand of + is a function that lacks its tensor."""
        if isinstance(node, Name):
            return node.name not in self.names and node.name in _BY_WORD
        if not isinstance(node, Invocation) or node.function not in _BY_WORD:
            return False
        function = _BY_WORD[node.function]
        return function.is_stage and not any(
            self._has_tensor(argument.value)
            if argument.keyword is None
            else argument.keyword.name == function.params[0].name
            for argument in node.arguments
        )

    def _has_tensor(self, node: Node) -> bool:
        match node:
            case Declaration() | Invocation():
                return True
            case Name():
                return isinstance(self.names.get(node.name), View)
            case Chain():
                return any(map(self._has_tensor, (node.first, *(right for *_, right in node.rest))))
            case Negation():
                return self._has_tensor(node.operand)
            case Group():
                return any(map(self._has_tensor, node.items))
            case Number() | Text():
                return False

    def _negated(self, node: Negation) -> Value:
        value = self.value(node.operand)
        if isinstance(value, int | float):
            return -value
        return self.scope.b.map("neg", [self._one(value, node.at)])

    def _operated(self, sign: str, at: int, left: Value, right: Value) -> Value:
        function, fold = _OPERATORS[sign]
        numbers = [value for value in (left, right) if isinstance(value, int | float)]
        if len(numbers) == 2:
            return _folded(fold, numbers, at)
        if sign == "**" and isinstance(right, int | float) and right in (1, *_POWERS):
            base = self._one(left, at)
            return base if right == 1 else self.scope.b.map(_POWERS[right], [base])
        operands = [self._one(v, at) for v in (left, right) if not isinstance(v, int | float)]
        slots = iter(range(2))
        body = call(
            function,
            *(
                Const(float(value)) if isinstance(value, int | float) else Read(next(slots))
                for value in (left, right)
            ),
        )
        dtype = promote([view.dtype for view in operands])
        if sign == "/" or any(number != int(number) for number in numbers if abs(number) < 2**53):
            dtype = self.scope.real(dtype)
        with _at(at):
            out = "bool" if sign in _COMPARISONS else dtype
            return self.scope.b.map(function, operands, body=body, dtype=out)

    # -- functions -------------------------------------------------------------------------

    def _call(
        self, node: Node, word: str, arguments: tuple[Argument, ...], piped: View | None = None
    ) -> Value:
        function = _BY_WORD.get(word)
        if function is None:
            raise Mistake(self._unknown(word, function=True), node.at)
        if piped is not None and not function.is_stage:
            raise Mistake(f"{function.signature} takes no tensor on its left", node.at)
        slots = _slots(function, arguments, piped is not None)
        first = piped
        bound: dict[str, Any] = {}
        with _at(node.at):
            for position, param in enumerate(function.params):
                nodes = slots.get(param.name)
                if piped is not None and position == 0:
                    bound[param.name] = piped
                elif nodes is not None:
                    bound[param.name] = self._bound(param, nodes, first)
                elif param.default is REQUIRED:
                    raise Mistake(f"{param.name} is missing in {function.signature}")
                else:
                    bound[param.name] = checked(param, param.default, first)
                if first is None and isinstance(bound[param.name], View):
                    first = bound[param.name]
            return function.lower(self.scope, **bound)

    def _bound(self, param: Param, nodes: list[Node], first: View | None) -> Any:
        values = [self._placed(node, param, self._raw(param, node), first) for node in nodes]
        if not param.many:
            return values[0]
        if param.kind == "integers":
            return tuple(item for value in values for item in value)
        return tuple(values)

    def _placed(self, node: Node, param: Param, raw: Any, first: View | None = None) -> Any:
        with _at(node.at):
            return checked(param, raw, first)

    def _raw(self, param: Param, node: Node) -> Any:
        """An argument as written: a tensor, a number, several, a word, a truth value."""
        if isinstance(node, Text):
            return node.value
        word = node.name if isinstance(node, Name) and node.name not in self.names else None
        if word == "none":
            return None
        if param.kind in TENSOR_KINDS:
            return self.view(node, param.kind)
        if word in ("true", "false"):
            return word == "true"
        if param.kind in ("dtype", "word") and isinstance(node, Name):
            return node.name
        if isinstance(node, Group):
            return tuple(self.value(item) for item in node.items)
        return self.value(node)


def _slots(
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


@contextmanager
def _at(at: int) -> Generator[None]:
    """Gives mistakes that have no place this one."""
    try:
        yield
    except Mistake as mistake:
        if mistake.at is None:
            raise Mistake(mistake.message, at) from None
        raise
    except ShapeError as error:
        raise Mistake(str(error), at) from None


def _folded(fold: Callable[[Any, Any], Any], numbers: Sequence[float], at: int) -> float:
    """Two literals as one; whole numbers stay whole."""
    try:
        result = fold(*numbers)
    except ZeroDivisionError:
        raise Mistake("a division by zero", at) from None
    except OverflowError:
        result = float("inf")
    if isinstance(result, complex):
        raise Mistake("a power of a negative number that is not real", at)
    if not abs(result) <= _LARGEST_NUMBER:
        raise Mistake("a number too large", at)
    whole = all(isinstance(number, int) for number in numbers) and result == int(result)
    return int(result) if whole else float(result)


def reference() -> str:
    """The function table of docs/expressions.md, in Markdown."""
    lines = ["| function | also | what it computes |", "|---|---|---|"]
    for row in FUNCTIONS.values():
        also = ", ".join(f"`{alias}`" for alias in row.aliases)
        lines.append(f"| `{row.signature}` | {also} | {row.meaning} |")
    return "\n".join(lines)
