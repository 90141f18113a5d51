"""Expressions: `gemm(4096,4096,4096) + bias + gelu + residual`, read into a Graph.

`parse` is the way in. The language is described in docs/expressions.md; its functions are the
tables of `expression_nn`, `_window`, `_reduce`, `_pointwise` and `_shape`,
collected in `expression_functions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseledger.errors import SourceError
from fuseledger.frontends.expression_functions import BY_WORD, slots_of
from fuseledger.frontends.expression_nn import matmul
from fuseledger.frontends.expression_operators import Value, one, operated, placed
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
    Kind,
    Param,
    Scope,
    check_shape,
    checked,
    dtype_named,
    nearest,
    shape_of,
)
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.tensor import Role
from fuseledger.graph.view import View

_ROLES: dict[str, Role] = {"weight": "weight", "input": "input", "constant": "constant"}
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
        return one(self.value(node, kind), node.at)

    def _named(self, node: Name) -> Value:
        self.unread.discard(node.name)
        if node.name in self.names:
            return self.names[node.name]
        if node.name in BY_WORD:
            raise Mistake(
                f"'{node.name}' is a function; write {node.name}(…) or x | {node.name}", node.at
            )
        raise Mistake(self._unknown(node.name), node.at)

    def _unknown(self, name: str, *, function: bool = False) -> str:
        hint = nearest(name, tuple(BY_WORD))
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
            with placed(node.dtype.at):
                dtype = dtype_named(node.dtype.name)
        with placed(node.at):
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
                left = self._piped(one(left, at), right)
            elif sign == "@":
                is_matrix = isinstance(right, Declaration) and len(right.sizes) == 2
                other = self.view(right, "weight" if is_matrix else "tensor")
                with placed(at):
                    left = matmul(self.scope, one(left, at), other)
            else:
                left = operated(self.scope, sign, at, left, self.value(right))
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
            return node.name not in self.names and node.name in BY_WORD
        if not isinstance(node, Invocation) or node.function not in BY_WORD:
            return False
        function = BY_WORD[node.function]
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
        return self.scope.b.map("neg", [one(value, node.at)])

    # -- functions -------------------------------------------------------------------------

    def _call(
        self, node: Node, word: str, arguments: tuple[Argument, ...], piped: View | None = None
    ) -> Value:
        function = BY_WORD.get(word)
        if function is None:
            raise Mistake(self._unknown(word, function=True), node.at)
        if piped is not None and not function.is_stage:
            raise Mistake(f"{function.signature} takes no tensor on its left", node.at)
        slots = slots_of(function, arguments, piped is not None)
        first = piped
        bound: dict[str, Any] = {}
        with placed(node.at):
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
        with placed(node.at):
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
