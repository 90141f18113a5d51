"""One ONNX node with its tensors resolved: what the tables of lowerings work on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from fuseledger.frontends.onnx_infer import Value
from fuseledger.frontends.onnx_read import onnx_module
from fuseledger.graph.broadcast import broadcast_shapes
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.scalar import Const, Coord, Expr, Read, rename
from fuseledger.graph.view import View

X, Y, Z = Read(0), Read(1), Read(2)
"""The first three arguments of `Site.map`."""


class Unlowered(Exception):
    """The table's function does not cover this node: it becomes a barrier."""


class Views(Protocol):
    """Where a site finds the views of values, and puts weights that the file does not have."""

    def view(self, value: Value) -> View:
        """The view of a sized value; a weight is made on first use."""
        ...

    def is_read(self, name: str) -> bool:
        """Whether an output of the model depends on the value."""
        ...

    def fold(self, name: str, shape: Sequence[int], dtype: str) -> View:
        """A weight that stands for a value of the model that is not computed."""
        ...


class Site(Struct):
    """One node: its inputs as views or data, its attributes, its results as far as known."""

    b: GraphBuilder
    values: Views
    node: Any
    opset: int
    """Version of the operator set that the node belongs to."""
    inputs: list[Value | None]
    results: list[Value | None]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.attributes = plain_attributes(self.node)

    # -- inputs ----------------------------------------------------------------------------------

    def given(self, position: int) -> Value | None:
        """What is known of an input, or None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def maybe(self, position: int) -> View | None:
        """An input that may be left out."""
        value = self.given(position)
        return None if value is None else self.values.view(value)

    def view(self, position: int = 0) -> View:
        """An input that must be there."""
        found = self.maybe(position)
        if found is None:
            raise Unlowered(position)
        return found

    def views(self) -> list[View]:
        """All inputs that are there."""
        return [self.values.view(value) for value in self.inputs if value is not None]

    def array(self, position: int) -> Any:
        """The data of an input (None where it is left out); Unlowered where it is not known."""
        value = self.given(position)
        if value is None:
            return None
        if value.array is None:
            raise Unlowered(position)
        return value.array

    def number(self, position: int, default: float) -> float:
        """The one element of an input that must be known."""
        array = self.array(position)
        return default if array is None else float(array.reshape(-1)[0])

    # -- attributes --------------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def ints(self, name: str, position: int | None = None) -> list[int] | None:
        """Integers from an attribute or, in later opsets, from an input; None where neither is."""
        if name in self.attributes:
            return [int(n) for n in self.attributes[name]]
        array = self.array(position) if position is not None else None
        return None if array is None else [int(n) for n in array.reshape(-1)]

    def axis(self, rank: int, default: int) -> int:
        """The attribute `axis`, counted from 0."""
        return int(self.get("axis", default)) % max(rank, 1)

    # -- results -----------------------------------------------------------------------------------

    @property
    def out(self) -> Value:
        """The first result."""
        value = self.results[0]
        if value is None:
            raise Unlowered(0)
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        if self.out.shape is None:
            raise Unlowered(0)
        return self.out.shape

    @property
    def dtype(self) -> str:
        """Dtype of the first result; the first input's where nothing says so."""
        if self.out.dtype is None and self.out.has_element_type:
            raise Unlowered(self.out.name)
        return self.out.dtype or self.view().dtype

    def is_read(self, position: int) -> bool:
        """Whether the model has a use for a result."""
        value = self.results[position] if position < len(self.results) else None
        return value is not None and self.values.is_read(value.name)

    def map(
        self,
        function: str,
        args: Sequence[View | Value | float],
        body: Expr,
        *,
        dtype: str | None = None,
    ) -> View:
        """A pointwise op over arguments that broadcast; a known single element is a literal.

        In `body`, `Read(i)` is argument i. The dtype is the node's where none is given.
        """
        operands: list[View] = []
        exprs: list[Expr] = []
        shapes: list[tuple[int, ...]] = []
        for arg in args:
            if isinstance(arg, Value) and arg.array is not None and arg.array.size == 1:
                exprs.append(Const(float(arg.array.reshape(-1)[0])))
                shapes.append(arg.array.shape)
            elif isinstance(arg, View | Value):
                view = arg if isinstance(arg, View) else self.values.view(arg)
                exprs.append(Read(len(operands)))
                operands.append(view)
                shapes.append(view.shape)
            else:
                exprs.append(Const(float(arg)))
        if not operands:
            raise Unlowered(function)
        shape = broadcast_shapes(function, shapes)
        expr = rename(body, slots=exprs.__getitem__, axes=Coord)
        result = self.b.map(function, operands, body=expr, dtype=dtype or self.dtype)
        return result if result.shape == shape else self.b.reshape(result, shape)

    def operands(self) -> list[Value]:
        """All inputs that are there, as arguments of `map`."""
        return [value for value in self.inputs if value is not None]

    def operand(self, position: int) -> Value:
        """An input that must be there, as an argument of `map`."""
        value = self.given(position)
        if value is None:
            raise Unlowered(position)
        return value


Lowerer = Callable[[Site], "View | Sequence[View | None]"]
"""What a table holds: the results of a node, None for those that nothing reads."""


def plain_attributes(node: Any) -> dict[str, Any]:
    """Attributes as numbers, strings and lists; tensors and subgraphs are left out."""
    kinds = onnx_module().AttributeProto
    read: dict[int, Callable[[Any], Any]] = {
        kinds.FLOAT: lambda a: float(a.f),
        kinds.INT: lambda a: int(a.i),
        kinds.STRING: lambda a: a.s.decode(errors="replace"),
        kinds.FLOATS: lambda a: list(a.floats),
        kinds.INTS: lambda a: list(a.ints),
        kinds.STRINGS: lambda a: [s.decode(errors="replace") for s in a.strings],
    }
    return {a.name: read[a.type](a) for a in node.attribute if a.type in read}
