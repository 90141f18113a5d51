"""Lowering of an ONNX graph, node by node.

- A view operator (Reshape, Transpose, Slice, …) changes a `View` and makes no op.
- What depends on no input is a weight of its inferred shape: it is not computed and not allocated.
  DequantizeLinear is kept, as the weight that is read is the quantised one.
- An operator that no table knows is a barrier. Where the shape of its result depends on data, the
  barrier takes in its readers as far as shapes are unknown, and a note says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fuseledger.errors import ShapeError, SourceError
from fuseledger.frontends.onnx_infer import Inference, Value, element_name
from fuseledger.frontends.onnx_read import captured, node_title, operator, standard
from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered, plain_attributes
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.draft import DraftOp
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import COMBINES
from fuseledger.graph.view import View

NEVER_CONSTANT = frozenset({
    "DequantizeLinear", "RandomNormal", "RandomUniform", "RandomNormalLike",
    "RandomUniformLike", "Bernoulli", "Multinomial",
})  # fmt: skip
"""Operators that run even if they depend on no input."""


@cache
def table() -> dict[str, Lowerer]:
    """Operator (`Conv`, `com.microsoft.FastGelu`) → its lowering."""
    from fuseledger.frontends import (
        onnx_attention,
        onnx_contrib,
        onnx_index,
        onnx_nn,
        onnx_norm,
        onnx_pointwise,
        onnx_quantised,
        onnx_reduce,
        onnx_shape,
    )

    return {
        **onnx_pointwise.POINTWISE,
        **onnx_shape.SHAPES,
        **onnx_index.INDEXING,
        **onnx_reduce.REDUCTIONS,
        **onnx_norm.NORMS,
        **onnx_nn.NN,
        **onnx_attention.ATTENTION,
        **onnx_quantised.QUANTISED,
        **onnx_contrib.CONTRIB,
    }


class _Unsized(Struct):
    """A value that the IR cannot hold, and what it was made from."""

    operators: tuple[str, ...]
    operands: tuple[Value, ...]


class Lowering(Struct):
    """The state of one lowering."""

    builder: GraphBuilder
    inference: Inference
    views: dict[str, View] = field(default_factory=dict[str, View])
    unsized: dict[str, _Unsized] = field(default_factory=dict[str, _Unsized])
    read: set[str] = field(default_factory=set[str])
    """Values that an output depends on."""
    labels: set[str] = field(default_factory=set[str])
    """Tensor names that are taken."""
    op_names: set[str] = field(default_factory=set[str])
    weights: set[str] = field(default_factory=set[str])
    """Names of the weights made so far."""

    def run(self) -> Graph:
        """The graph of the whole model."""
        graph = self.inference.model.graph
        self.read = _needed(graph)
        self.labels = {name for node in graph.node for name in node.output}
        self.labels |= {info.name for info in (*graph.input, *graph.initializer)}
        for info in graph.input:
            value = self.inference.values[info.name]
            if not value.constant:
                self._input(value)
        for node in graph.node:
            if any(name in self.read for name in node.output):
                self._node(node)
        self.inference.check_stated()
        for info in graph.output:
            self._output(info.name)
        return self.builder.finish()

    def view(self, value: Value) -> View:
        """The view of a sized value; a weight is made on first use."""
        if value.name not in self.views:
            if not value.constant or value.shape is None or value.dtype is None:
                raise Unlowered(value.name)
            self.views[value.name] = self.fold(value.name, value.shape, value.dtype)
        return self.views[value.name]

    def fold(self, name: str, shape: Sequence[int], dtype: str) -> View:
        """A weight that stands for a value of the model that is not computed."""
        view = self.builder.weight(name, shape, dtype)
        label = self._label(name) if name in self.weights else name
        self.weights.add(label)
        self.builder.final_names[view.base] = label
        return view

    def is_read(self, name: str) -> bool:
        """Whether an output of the model depends on the value."""
        return name in self.read

    # -- ends --------------------------------------------------------------------------------------

    def _input(self, value: Value) -> None:
        if value.shape is None or value.dtype is None:
            kind = element_name(value.type_)
            raise SourceError(f"{self.inference.source}: input {value.name} holds {kind}")
        view = self.builder.input(value.name, value.shape, value.dtype)
        self.builder.final_names[view.base] = value.name
        self.views[value.name] = view

    def _output(self, name: str) -> None:
        value = self.inference.values[name]
        if value.name in self.unsized or not value.is_sized:
            known = self.unsized.get(value.name)
            origin = " after ".join(reversed(known.operators)) if known is not None else "?"
            what = (
                f"has a shape that depends on data: give --dim {name}.0=VALUE and so on"
                if value.dtype is not None
                else f"holds {element_name(value.type_)}"
            )
            raise SourceError(f"{self.inference.source}: output {name} ({origin}) {what}")
        self.builder.output(self.view(value), name)

    # -- one node ----------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        branch = self._known_branch(node)
        if branch is not None:
            self._inline(node, branch)
            return
        results = self.inference.infer(node)
        if operator(node) in NEVER_CONSTANT:
            for value in results:
                if value is not None:
                    value.constant, value.array = False, None
        needed = [v if v is not None and v.name in self.read else None for v in results]
        inputs = [self.inference.values[name] if name else None for name in node.input]
        if all(v is None or (v.constant and v.is_sized) for v in needed):
            if not self._unpacked(node, inputs, results, needed):
                self._constant(node, inputs, results, needed)
            return
        reads = [*inputs, *(self.inference.values[name] for name in captured(node))]
        if not any(value is not None and value.name in self.unsized for value in reads):
            views = self._lowered(node, inputs, results, needed)
            if views is not None:
                self._bind(node, needed, views)
                return
        self._barrier(node, [value for value in reads if value is not None], needed)

    def _known_branch(self, node: Any) -> Any:
        """The branch of an If whose condition is known, where its names are still free."""
        if operator(node) != "If":
            return None
        condition = self.inference.values[node.input[0]].array
        if condition is None or condition.size != 1:
            return None
        wanted = "then_branch" if condition.reshape(-1)[0] else "else_branch"
        (graph,) = (a.g for a in node.attribute if a.name == wanted)
        made = {name for inner in graph.node for name in inner.output}
        made |= {tensor.name for tensor in graph.initializer}
        return None if made & set(self.inference.values) else graph

    def _inline(self, node: Any, branch: Any) -> None:
        """The branch in place of the If; the If's results are other names of the branch's."""
        self.read |= _needed(branch)
        self.labels |= {name for inner in branch.node for name in inner.output}
        for tensor in branch.initializer:
            self.inference.initial(tensor)
        for inner in branch.node:
            if any(name in self.read for name in inner.output):
                self._node(inner)
        for name, result in zip(node.output, branch.output, strict=True):
            value = self.inference.values[result.name]
            self.inference.values[name] = replace(value, name=name)
            if value.name in self.unsized:
                self.unsized[name] = self.unsized[value.name]
            elif value.is_sized and value.array is None:
                self.views[name] = self.view(value)

    def _unpacked(
        self, node: Any, inputs: list[Value | None], results: list[Value | None],
        needed: list[Value | None],
    ) -> bool:  # fmt: skip
        """Whether this is computed of quantised weights: they are stored narrow, and widened where
        they are read, in place of being weights in the wider type."""
        if not any(value is not None and value.packed for value in inputs):
            return False
        if any(value is not None and not value.is_sized for value in inputs):
            return False
        if all(value is None or value.array is not None for value in needed):
            return False
        views = self._lowered(node, inputs, results, needed, views_only=True)
        is_view = views is not None
        if views is None:
            views = self._lowered(node, inputs, results, needed)
        if views is None:
            return False
        for value in needed:
            if value is not None:
                value.constant = value.packed = is_view
        self._bind(node, needed, views)
        return True

    def _constant(
        self, node: Any, inputs: list[Value | None], results: list[Value | None],
        needed: list[Value | None],
    ) -> None:  # fmt: skip
        """A view of a weight stays one; other results are weights, made when they are read."""
        if all(value is None or value.array is not None for value in needed):
            return
        if any(value is not None and not value.is_sized for value in inputs):
            return
        views = self._lowered(node, inputs, results, needed, views_only=True)
        if views is not None:
            self._bind(node, needed, views)

    def _lowered(
        self, node: Any, inputs: list[Value | None], results: list[Value | None],
        needed: list[Value | None], *, views_only: bool = False,
    ) -> list[View | None] | None:  # fmt: skip
        """The node's results by its table entry, or None where it has none that fits."""
        lower = table().get(operator(node))
        if lower is None:
            return None
        b = self.builder
        opset = self.inference.opsets.get(standard(node.domain), 1)
        before = len(b.ops), len(b.tensors)
        site = Site(b, self, node, opset, inputs, results)
        try:
            found = lower(site)
        except Unlowered:
            self._roll_back(*before)
            return None
        except ShapeError as error:
            raise SourceError(f"{self.inference.source}: {node_title(node)}: {error}") from None
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise SourceError(
                f"{self.inference.source}: {node_title(node)}: attributes and inputs do not fit "
                f"({type(error).__name__}: {error})"
            ) from error
        views: list[View | None] = [found] if isinstance(found, View) else list(found)
        views += [None] * (len(needed) - len(views))
        missing = any(v is not None and not view for v, view in zip(needed, views, strict=False))
        if missing or (views_only and len(b.ops) > before[0]):
            self._roll_back(*before)
            return None
        self._name(b.ops[before[0] :], node, needed, views)
        return views

    def _bind(self, node: Any, needed: list[Value | None], views: Sequence[View | None]) -> None:
        for value, view in zip(needed, views, strict=False):
            if value is None or view is None:
                continue
            if value.shape is not None and value.shape != view.shape:
                raise SourceError(
                    f"{self.inference.source}: {node_title(node)} gives {list(view.shape)}, "
                    f"where {list(value.shape)} is declared or inferred"
                )
            if not value.is_sized:  # a custom operator, or one without a shape rule
                self.inference.sized(value, view.shape, view.dtype)
            self.views[value.name] = view

    def _barrier(self, node: Any, reads: list[Value], needed: list[Value | None]) -> None:
        """An opaque op for the results of known shape; the others wait for their readers."""
        operands: dict[str, Value] = {}
        operators: dict[str, None] = {}
        for value in reads:
            origin = self.unsized.get(value.name)
            sources = (value,) if origin is None else origin.operands
            operands.update((source.name, source) for source in sources)
            operators.update(dict.fromkeys(origin.operators if origin else ()))
        operators[operator(node)] = None
        named = [value for value in needed if value is not None]
        sized = [value for value in named if value.is_sized]
        for value in named:
            value.constant, value.array = False, None
            if not value.is_sized:
                self.unsized[value.name] = _Unsized(tuple(operators), tuple(operands.values()))
        if len(sized) < len(named) and len(operators) == 1:
            self.builder.notes.append(
                f"{node_title(node)}: the shape of its result depends on data; the node and its "
                "readers, as far as shapes are unknown, are one barrier"
            )
        if not sized:
            return
        before = len(self.builder.ops)
        prefix = "" if standard(node.domain) else "onnx."
        attributes = {**plain_attributes(node), "outputs": [needed.index(value) for value in sized]}
        if len(operators) > 1:
            attributes["after"] = list(operators)[:-1]
        views = self.builder.opaque(
            prefix + operator(node),
            [self.view(value) for value in operands.values() if value.is_sized],
            [(value.shape or (), value.dtype or "") for value in sized],
            attributes=attributes,
        )
        self._name(self.builder.ops[before:], node, sized, views)
        self.views.update((value.name, view) for value, view in zip(sized, views, strict=True))

    # -- names -------------------------------------------------------------------------------------

    def _name(
        self, ops: list[DraftOp], node: Any, values: Sequence[Value | None],
        views: Sequence[View | None],
    ) -> None:  # fmt: skip
        """Ops and stored tensors are named after the values that they make."""
        final = self.builder.final_names
        for value, view in zip(values, views, strict=False):
            made = view is not None and any(w.tensor == view.base for op in ops for w in op.writes)
            if value is not None and view is not None and made:
                final.setdefault(view.base, value.name)
        stem = next(name for name in node.output if name)
        for op in ops:
            titles = [final[w.tensor] for w in op.writes if w.tensor in final]
            inner = op.function.rsplit(".", 1)[-1]
            op.name = _unused(titles[0] if titles else f"{stem}.{inner}", self.op_names)
            results = COMBINES[op.combine].results if op.combine else ("",)
            for position, write in enumerate(op.writes):
                suffix = f".{results[position]}" if position and position < len(results) else ""
                if write.tensor not in final:
                    final[write.tensor] = self._label(op.name + suffix)

    def _label(self, name: str) -> str:
        return _unused(name, self.labels)

    def _roll_back(self, ops: int, tensors: int) -> None:
        del self.builder.ops[ops:]
        for name in list(self.builder.tensors)[tensors:]:
            if self.builder.tensors[name].role == "intermediate":
                del self.builder.tensors[name]


def _unused(name: str, taken: set[str]) -> str:
    """The name, numbered where it is taken; takes it."""
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _needed(graph: Any) -> set[str]:
    """Values that an output depends on."""
    needed = {info.name for info in graph.output}
    for node in reversed(graph.node):
        if any(name in needed for name in node.output):
            needed.update(name for name in (*node.input, *captured(node)) if name)
    return needed
