"""The lowering of ATen graphs to the IR.

Three sources make an `AtenGraph`: a JSON corpus (`aten_json`), a `.pt2` archive (`aten_pt2`) and a
PyTorch module (`torch`). One table, keyed by operator, lowers all three. Four rules hold for all:

- A view op changes a `View` and makes no op.
- What depends on no input is a weight: it is not computed, and `Lowering.folded` says what it was.
  But what is computed of a weight of 8 bits or fewer is: it is stored narrow, and widened where it
  is read.
- An in-place op rebinds the name it mutates, what that name is a view of, and the views of that.
- An operator that the table does not know, or whose read results it cannot give, is a barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

from msgspec import Struct, field

from fuseledger.errors import ShapeError, SourceError
from fuseledger.frontends.aten_graph import (
    AtenGraph,
    AtenNode,
    Ref,
    Value,
    is_in_place,
    needed,
    references,
)
from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.frontends.names import is_text
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.tensor import DTYPE_BITS, MAX_ELEMENTS, too_large
from fuseledger.graph.view import View

GROUPED_PRODUCTS = frozenset({"_grouped_mm", "_scaled_grouped_mm"})
"""Products whose rows, columns or sums fall into runs, a matrix each (the experts of a mixture); a
tensor says where the runs end, which no loop nest does. Barriers, of which the work is known."""


SCALED_PRODUCTS = frozenset({"_scaled_mm"})
"""Products with scales of their own; barriers where the scales are those of blocks."""


def _grouped_flops(left: View, right: View, result: Sequence[int]) -> int:
    """FLOPs of a grouped product: each element of the result is a sum over one run's depth, or,
    where both operands have runs along the sum, each run's result over its own part of it."""
    runs = result[0] if len(left.shape) == len(right.shape) == 2 else 1
    return 2 * prod(result) * left.shape[-1] // runs


@cache
def table() -> dict[str, Lowerer]:
    """Operator (`max.dim`, else the packet `max`) → its lowering, views included."""
    from fuseledger.frontends import (
        aten_index,
        aten_nn,
        aten_norm,
        aten_pointwise,
        aten_random,
        aten_reduce,
        aten_shape,
        aten_views,
    )

    return {
        **aten_pointwise.POINTWISE,
        **aten_random.DRAWS,
        **aten_reduce.REDUCTIONS,
        **aten_norm.NORMS,
        **aten_nn.NN,
        **aten_index.INDEXING,
        **aten_shape.SHAPES,
        **aten_views.VIEWS,
    }


class _Binding(Struct):
    """A name's current view; for views also what they were taken from, and how."""

    view: View
    parent: str | None = None
    node: AtenNode | None = None
    children: list[str] = field(default_factory=list[str])


class Lowering(Struct):
    """The state of one lowering."""

    builder: GraphBuilder
    source: str
    bindings: dict[str, _Binding] = field(default_factory=dict[str, _Binding])
    uniform: dict[str, float] = field(default_factory=dict[str, float])
    """Stored scalar → its value, where the graph itself says so."""
    folded: dict[str, str] = field(default_factory=dict[str, str])
    """Weight that was not in the source → the source's value that it stands for."""
    packed: set[str] = field(default_factory=set[str])
    """Weights of 8 bits or fewer that the source stores: quantised ones, in whatever order."""
    external: set[str] = field(default_factory=set[str])
    """Values that exist before the graph runs."""
    written: dict[str, None] = field(default_factory=dict[str, None])
    """Tensors of the source that the graph writes in place: mutations, no part of the plan."""
    read: set[str] = field(default_factory=set[str])
    """Values that an output or a mutation depends on."""

    def run(self, source: AtenGraph) -> Graph:
        """The graph of the whole source."""
        b = self.builder
        b.notes.extend(source.notes)
        for name, value in source.inputs:
            self.bindings[value.name] = _Binding(b.input(name, value.shape, value.dtype))
        for name, value in source.weights:
            view = b.weight(name, value.shape, value.dtype)
            self.bindings[value.name] = _Binding(view)
            if DTYPE_BITS[value.dtype] <= 8 and value.dtype != "bool":
                self.packed.add(view.base)
        self.external = set(self.bindings)
        self.read = needed(source)
        for node in source.nodes:
            if is_in_place(node.packet) or any(v.name in self.read for v in node.outputs):
                self._call(node)
        if self.written:
            first, *others = self.written
            rest = f" and of {len(others)} more" if others else ""
            b.notes.append(f"in-place updates of {first}{rest} are left out")
        for name in source.outputs:
            if name not in self.bindings:
                raise SourceError(f"{self.source}: output {name} is made by no node")
            b.output(self.bindings[name].view, name)
        return b.finish()

    # -- one call --------------------------------------------------------------------------

    def _call(self, node: AtenNode) -> None:
        from fuseledger.frontends.aten_views import VIEWS

        if not node.outputs:
            return
        mutates = is_in_place(node.packet)
        results = self._lowered(node, self._resolve(node))
        for value, view in zip(node.outputs, results, strict=True):
            if view is None:
                continue
            if view.shape != value.shape:
                raise ShapeError(
                    f"{self.source}: node {node.name} ({node.op}) gives {list(view.shape)}, "
                    f"where {list(value.shape)} is recorded"
                )
            self.bindings[value.name] = _Binding(view)
        target = next(iter(node.args.values()), None)
        if not isinstance(target, Ref):
            return
        if mutates and results[0] is not None:
            self._mutate(target.name, results[0])
            self._alias(node, target.name)
        elif _lookup(node, VIEWS) is not None:
            self._alias(node, target.name)

    def _alias(self, node: AtenNode, parent: str) -> None:
        for value in node.outputs:
            binding = self.bindings[value.name]
            binding.parent, binding.node = parent, node
            self.bindings[parent].children.append(value.name)

    def _resolve(self, node: AtenNode) -> Site:
        def resolved(arg: Any) -> Any:
            if isinstance(arg, Ref):
                if arg.name not in self.bindings:
                    raise SourceError(f"{self.source}: node {node.name} reads unknown {arg.name}")
                return self.bindings[arg.name].view
            if isinstance(arg, list):
                return [resolved(item) for item in arg]  # pyright: ignore[reportUnknownVariableType]
            return arg

        return Site(self, node, {name: resolved(arg) for name, arg in node.args.items()})

    def _lowered(self, node: AtenNode, site: Site) -> list[View | None]:
        from fuseledger.frontends.aten_random import RANDOM

        operands = _tensors(site.args.values())
        packet = node.packet.removesuffix("_") if is_in_place(node.packet) else node.packet
        constant = packet not in RANDOM and all(map(self._is_constant, operands))
        lower = _lookup(node, table())
        before = len(self.builder.ops), len(self.builder.tensors)
        if lower is not None:
            found = self._tried(node, lower, site)
            if found is not None:
                results = [found] if isinstance(found, View) else list(found)
                results += [None] * (len(node.outputs) - len(results))
                results = results[: len(node.outputs)]
                made = self.builder.ops[before[0] :]
                is_packed = any(view.base in self.packed for view in operands)
                moves = all(op.kind == "move" for op in made)
                if constant and made and (moves or not is_packed):
                    self._roll_back(*before)
                    folded = site.fold()
                    if is_packed:
                        self.packed.update(view.base for view in folded if view is not None)
                    return folded
                if all(
                    view is not None or value.name not in self.read
                    for view, value in zip(results, node.outputs, strict=True)
                ):
                    return results
            self._roll_back(*before)
        if constant:
            return site.fold()
        return self._barrier(node, site, operands)

    def _tried(
        self, node: AtenNode, lower: Lowerer, site: Site
    ) -> View | Sequence[View | None] | None:
        """What the table's function gives, or None where it does not cover the arguments."""
        try:
            return lower(site)
        except Unlowered:
            return None
        except ShapeError as error:
            raise ShapeError(f"{self.source}: node {node.name} ({node.op}): {error}") from None
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"
            raise SourceError(
                f"{self.source}: node {node.name} ({node.op}) has arguments that do not fit: {said}"
            ) from error

    def _barrier(self, node: AtenNode, site: Site, operands: list[View]) -> list[View | None]:
        plain = {n: a for n, a in node.args.items() if not any(references([a]))}
        function = f"aten.{node.packet}" if node.op.startswith("aten.") else node.packet
        results = [(value.shape, value.dtype) for value in node.outputs]
        attributes = {**plain, "op": node.op}
        result = node.outputs[0].shape
        if node.packet in GROUPED_PRODUCTS:
            attributes["flops"] = _grouped_flops(operands[0], operands[1], result)
        if node.packet in SCALED_PRODUCTS:
            attributes["flops"] = 2 * prod(result) * operands[0].shape[-1]
        return list(self.builder.opaque(function, operands, results, attributes=attributes))

    def _is_constant(self, view: View) -> bool:
        return self.builder.tensors[view.base].role in ("weight", "constant")

    def _roll_back(self, ops: int, tensors: int) -> None:
        del self.builder.ops[ops:]
        for name in list(self.builder.tensors)[tensors:]:
            del self.builder.tensors[name]
            self.uniform.pop(name, None)
            self.folded.pop(name, None)

    # -- mutation --------------------------------------------------------------------------

    def _mutate(self, name: str, new: View) -> None:
        """Rebind a name, what it is a view of, and every other view of that."""
        from fuseledger.frontends.aten_write_back import written_back

        binding = self.bindings[name]
        if binding.view == new:
            return
        if binding.parent is not None and binding.node is not None:
            parent = self.bindings[binding.parent]
            before = len(self.builder.ops), len(self.builder.tensors)
            back = written_back(self, binding.node, parent.view, new)
            constant = self._is_constant(parent.view) and self._is_constant(new)
            if back is not None and constant and len(self.builder.ops) > before[0]:
                self._roll_back(*before)
                back = self.builder.weight(binding.parent, parent.view.shape, parent.view.dtype)
            if back is not None:
                self._mutate(binding.parent, back)
                return
            note = f"{name} is written in place through {binding.node.op}: {binding.parent} keeps"
            self.builder.notes.append(f"{note} its old value here")
        if name in self.external:
            self.written[binding.view.base] = None
        binding.view = new
        self._refresh(binding)

    def _refresh(self, binding: _Binding) -> None:
        for child_name in binding.children:
            child = self.bindings[child_name]
            assert child.node is not None
            if is_in_place(child.node.packet):
                child.view = binding.view
            else:
                results = self._lowered(child.node, self._resolve(child.node))
                names = [value.name for value in child.node.outputs]
                renewed = results[names.index(child_name)]
                assert renewed is not None  # a view op gives all its results
                child.view = renewed
            self._refresh(child)


def lower(source: AtenGraph, *, composites: bool = True) -> Graph:
    """The IR of an ATen graph. Raises SourceError and ShapeError naming the node.

    With `composites`, norms and embeddings that the model spells out in single operators are read
    as the composites they are; without, one op stands for each call that eager PyTorch makes.
    """
    from fuseledger.frontends.aten_composites import recognised

    if not source.outputs:
        raise SourceError(f"{source.source}: returns no tensor, so that nothing is left to plan")
    if not all(map(is_text, _names(source))):
        raise SourceError(f"{source.source}: damaged: a name in it is no Unicode text")
    for value in _values(source):
        if too_large(value.shape):
            raise SourceError(
                f"{source.source}: tensor {value.name} of shape {list(value.shape)} has more than "
                f"{MAX_ELEMENTS:,} elements"
            )
    read = recognised(source) if composites else source
    return Lowering(GraphBuilder(source.name), source.source).run(read)


def _values(source: AtenGraph) -> Iterator[Value]:
    """Every tensor that the source speaks of."""
    yield from (value for _, value in (*source.inputs, *source.weights))
    for node in source.nodes:
        yield from node.outputs


def _names(source: AtenGraph) -> Iterator[str]:
    """Every name that a report may show."""
    yield source.name
    yield from (name for name, _ in (*source.inputs, *source.weights))
    yield from (value.name for value in _values(source))
    for node in source.nodes:
        yield from (node.name, node.op)


def _lookup(node: AtenNode, lowerings: Mapping[str, Lowerer]) -> Lowerer | None:
    """By packet and overload, then by packet; an in-place op by its functional name."""
    packet = node.packet.removesuffix("_") if is_in_place(node.packet) else node.packet
    overload = node.op.rsplit(".", 1)[-1]
    return lowerings.get(f"{packet}.{overload}") or lowerings.get(packet)


def _tensors(args: Iterable[Any]) -> list[View]:
    found: list[View] = []
    for arg in args:
        if isinstance(arg, View):
            found.append(arg)
        elif isinstance(arg, list):
            found.extend(_tensors(arg))  # pyright: ignore[reportUnknownArgumentType]
    return found
