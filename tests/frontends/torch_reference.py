"""A graph evaluated in NumPy against the module run by PyTorch, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fuseledger.frontends import torch as frontend
from fuseledger.frontends.aten import Lowering
from fuseledger.frontends.aten_composites import recognised
from fuseledger.frontends.aten_graph import AtenGraph, Ref
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate


class Function(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """The function of the inputs."""
        return self.function(*args)


def _array(value: Any) -> np.ndarray:
    return (
        value.detach().to(torch.float64).numpy()
        if value.dtype == torch.bfloat16
        else value.detach().numpy()
    )


class _Constants:
    """Values of the graph's folded weights, computed by PyTorch from the nodes they stand for."""

    def __init__(self, source: AtenGraph, known: dict[str, Any]) -> None:
        self.makers = {v.name: (n, i) for n in source.nodes for i, v in enumerate(n.outputs)}
        self.known = known

    def value(self, name: str) -> Any:
        if name not in self.known:
            node, position = self.makers[name]
            _, packet, overload = node.op.split(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload)
            result = operator(**{key: self._argument(arg) for key, arg in node.args.items()})
            results = result if isinstance(result, list | tuple) else [result]
            self.known[name] = results[position]
        return self.known[name]

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return self.value(arg.name)
        if isinstance(arg, list):
            return [self._argument(item) for item in arg]
        if isinstance(arg, str) and arg.startswith("torch."):
            return getattr(torch, arg.removeprefix("torch."))
        return torch.device(arg) if isinstance(arg, str) and arg in ("cpu", "meta") else arg


def exported(
    module: nn.Module, inputs: Sequence[Any], keywords: dict[str, Any] | None = None
) -> Any:
    """The module's exported program."""
    with torch.no_grad():
        return torch.export.export(module, tuple(inputs), keywords or {}, strict=False)


def lowered(
    module: nn.Module, inputs: Sequence[Any], keywords: dict[str, Any] | None = None,
    program: Any = None,
) -> tuple[Graph, dict[str, np.ndarray]]:  # fmt: skip
    """The validated graph, and the value of each of its external tensors."""
    program = program if program is not None else exported(module, inputs, keywords)
    source = frontend.read_program(program, name="test", source="test")
    lowering = Lowering(GraphBuilder("test"), "test")
    graph = validate(lowering.run(recognised(source)))
    stored = {**program.state_dict, **program.constants}
    known: dict[str, Any] = {value.name: stored[name] for name, value in source.weights}
    given = [
        t
        for t in torch.utils._pytree.tree_leaves((inputs, keywords or {}))
        if isinstance(t, torch.Tensor)
    ]
    known |= {value.name: t for (_, value), t in zip(source.inputs, given, strict=True)}
    constants = _Constants(source, known)
    names = {name: value.name for name, value in (*source.inputs, *source.weights)}
    values: dict[str, np.ndarray] = {}
    for name, tensor in graph.tensors.items():
        if not tensor.is_external:
            continue
        if name in lowering.uniform:
            values[name] = np.array(lowering.uniform[name])
        else:
            values[name] = _array(constants.value(lowering.folded.get(name) or names[name]))
    return graph, values


def compared(
    module: nn.Module,
    inputs: Sequence[Any],
    keywords: dict[str, Any] | None = None,
    *,
    tolerance: float = 1e-9,
    program: Any = None,
) -> Graph:
    """The graph, after its outputs were found equal to the module's own."""
    graph, values = lowered(module, inputs, keywords, program)
    with torch.no_grad():
        expected = module(
            *[t.clone() if isinstance(t, torch.Tensor) else t for t in inputs], **(keywords or {})
        )
    leaves = [t for t in torch.utils._pytree.tree_leaves(expected) if isinstance(t, torch.Tensor)]
    found = evaluate(graph, values)
    assert len(graph.results) == len(leaves)
    for result, leaf in zip(graph.results, leaves, strict=True):
        assert found[result.name].shape == tuple(leaf.shape)
        np.testing.assert_allclose(
            found[result.name], _array(leaf).astype(np.float64), rtol=tolerance, atol=tolerance
        )
    return graph
