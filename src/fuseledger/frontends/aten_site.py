"""What a lowering function works on: one call with its tensors resolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fuseledger.frontends.aten_graph import AtenNode, Value
from fuseledger.graph.broadcast import broadcast_shapes
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call, rename
from fuseledger.graph.view import View

if TYPE_CHECKING:
    from fuseledger.frontends.aten import Lowering


class Unlowered(Exception):
    """The table's function does not cover these arguments: the call becomes a barrier."""


class Site(Struct, frozen=True):
    """One call with its tensors resolved: what a lowering function works on."""

    lowering: Lowering
    node: AtenNode
    args: dict[str, Any]

    @property
    def b(self) -> GraphBuilder:
        """The builder."""
        return self.lowering.builder

    @property
    def out(self) -> Value:
        """The first result as the source declares it."""
        return self.node.outputs[0]

    def view(self, name: str = "self") -> View:
        """A tensor argument that must be there; a number becomes a uniform tensor."""
        found = self.args.get(name)
        if isinstance(found, View):
            return found
        if isinstance(found, int | float):
            return self.uniform(float(found), (), self.out.dtype)
        raise Unlowered(name)

    def maybe(self, name: str) -> View | None:
        """A tensor argument that may be missing or None."""
        found = self.args.get(name)
        return found if isinstance(found, View) else None

    def get(self, name: str, default: Any = None) -> Any:
        """Any argument; `default` where it is missing or None."""
        found = self.args.get(name)
        return default if found is None else found

    def number(self, name: str, default: float = 0.0) -> float:
        """A scalar argument; a tensor of one known value counts."""
        found = self.args.get(name)
        if isinstance(found, View):
            if found.base not in self.lowering.uniform:
                raise Unlowered(name)
            return self.lowering.uniform[found.base]
        return default if found is None else float(found)

    def ints(self, name: str, default: Sequence[int] = (), length: int | None = None) -> list[int]:
        """A list of integers; one integer stands for `length` of them."""
        found = self.args.get(name)
        values = list(default) if found is None or found == [] else found
        values = [values] if isinstance(values, int) else [int(v) for v in values]
        if length is not None and len(values) == 1:
            values *= length
        return values

    def dims(self, rank: int, name: str = "dim") -> list[int]:
        """Dimensions counted from 0; all of them where the argument is missing or empty."""
        return sorted({dim % rank for dim in self.ints(name, range(rank))}) if rank else []

    def views(self, name: str = "tensors") -> list[View]:
        """A list of tensors."""
        return [view for view in self.get(name, []) if isinstance(view, View)]

    def uniform(self, value: float, shape: Sequence[int], dtype: str) -> View:
        """A tensor of one known value: stored as a scalar, read by pointwise ops as a literal."""
        scalar = self.b.weight(self.node.name, (), dtype)
        self.lowering.uniform[scalar.base] = value
        self.lowering.folded[scalar.base] = self.out.name
        return scalar.expand(tuple(shape))

    def fold(self) -> list[View | None]:
        """The results as weights: they depend on no input."""
        folded: list[View | None] = []
        for value in self.node.outputs:
            view = self.b.weight(value.name, value.shape, value.dtype)
            self.lowering.folded[view.base] = value.name
            folded.append(view)
        return folded

    def map(
        self,
        function: str,
        args: Sequence[View | float],
        body: Expr | None = None,
        *,
        dtype: str | None = None,
    ) -> View:
        """A pointwise op over tensors and numbers that broadcast together.

        `Read(i)` in `body` is argument i; without a body, `function` is applied to all of them.
        The dtype is the call's where none is given.
        """
        operands: list[View] = []
        exprs: list[Expr] = []
        for arg in args:
            known = self.lowering.uniform.get(arg.base) if isinstance(arg, View) else float(arg)
            if isinstance(arg, View) and known is None:
                exprs.append(Read(len(operands)))
                operands.append(arg)
            else:
                exprs.append(Const(known if known is not None else 0.0))
        whole = body if body is not None else call(function, *map(Read, range(len(args))))
        inner = rename(whole, slots=exprs.__getitem__, axes=Coord)
        shape = broadcast_shapes(function, [arg.shape for arg in args if isinstance(arg, View)])
        result = self.b.map(function, operands, body=inner, dtype=dtype or self.out.dtype)
        return result if result.shape == shape else result.expand(shape)


Lowerer = Callable[[Site], "View | Sequence[View | None]"]
