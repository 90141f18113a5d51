"""ONNX graphs against ONNX's own reference: shared by the tests of the ONNX frontend."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from fuseledger.errors import SourceError
from fuseledger.frontends.onnx import from_model_with_values
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate


@cache
def node_cases() -> dict[str, list[Any]]:
    """ONNX's backend test cases by the operator that they are about.

    An `_expanded` case holds the operator's definition: many nodes, under the operator's name.
    """
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    grouped: dict[str, list[Any]] = {}
    for case in cases:
        nodes = case.model.graph.node
        inner = next((o for n in nodes for o in n.output if "_function_" in o), None)
        single = nodes[0].op_type if len(nodes) == 1 else "several nodes"
        name = inner.partition("_test_")[0] if inner is not None else single
        grouped.setdefault(name, []).append(case)
    return grouped


def weights(model: Any, graph: Graph, known: dict[str, Any]) -> dict[str, Any]:
    """What the graph reads and is no input: from the file, or worked out by the reference."""
    from onnx import numpy_helper

    found = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    found.update(known)
    missing = [
        t.name
        for t in graph.tensors.values()
        if t.role == "weight" and t.name in graph.consumers and t.name not in found
    ]
    found.update(_constants(model, missing, found))
    for tensor in graph.tensors.values():  # made by the frontend: empty parts, indices of size 1
        if tensor.role == "weight" and tensor.name not in found:
            assert tensor.elements == 0 or tensor.name.endswith(".zero"), tensor.name
            found[tensor.name] = np.zeros(tensor.shape)
    return found


def _constants(model: Any, names: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Values that depend on no input, by the reference evaluator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    needed = set(names)
    nodes: list[Any] = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.insert(0, node)
            needed |= set(node.input) - set(given)
    made = {name for node in nodes for name in node.output}
    outputs = [onnx.helper.make_empty_tensor_value_info(n) for n in names if n in made]
    if not outputs:
        return {}
    feeds = {n: given[n] for node in nodes for n in node.input if n in given}
    inputs = [onnx.helper.make_empty_tensor_value_info(n) for n in feeds]
    part = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "constants", inputs, outputs),
        opset_imports=list(model.opset_import),
        ir_version=model.ir_version,
    )
    values = ReferenceEvaluator(part).run(None, feeds)
    return {info.name: value for info, value in zip(outputs, values, strict=True)}


def evaluated(model: Any, inputs: dict[str, Any], **options: Any) -> tuple[Graph, list[Any]]:
    """The graph and its outputs in float64; no outputs where it has barriers."""
    graph, known = from_model_with_values(model, **options)
    validate(graph)
    if graph.barriers:
        return graph, []
    results = evaluate(graph, {**weights(model, graph, known), **inputs})
    return graph, [results[info.name] for info in model.graph.output]


def worst_difference(found: list[Any], expected: list[Any]) -> float:
    """Largest difference relative to the tolerance: at most 1 where all outputs agree."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        reference = np.asarray(theirs)
        loose = reference.dtype.itemsize <= 2 and reference.dtype.kind not in "iub"
        wide = reference.astype(np.float64)
        assert ours.shape == wide.shape, (ours.shape, wide.shape)
        same = np.isclose(ours, wide, rtol=1e-2 if loose else 1e-3, atol=1e-5, equal_nan=True)
        if not same.all():
            worst = max(worst, float(np.nanmax(np.abs(ours - wide)[~same], initial=2.0)))
    return worst


def outcome(case: Any) -> str:
    """`agrees`, `barrier`, `refused`, or how a case differs.

    Where the frontend needs the values of inputs that say what to compute (axes, sizes), all but
    the first are made initialisers.
    """
    import onnx
    from onnx import numpy_helper

    given, expected = case.data_sets[0]
    if not all(isinstance(v, np.ndarray | np.generic | onnx.TensorProto) for v in given):
        return "refused"
    arrays = [_array(numpy_helper, v) for v in given]
    names = [info.name for info in case.model.graph.input]
    result = "refused"
    for inputs in (len(names), 1):
        model = _frozen(case.model, names, arrays, inputs)
        try:
            graph, found = evaluated(model, dict(zip(names[:inputs], arrays[:inputs], strict=True)))
        except SourceError:
            continue
        if graph.barriers:
            result = "barrier"
            continue
        worst = worst_difference(found, [_array(numpy_helper, v) for v in expected])
        return "agrees" if worst == 0 else f"{case.name} differs by {worst}"
    return result


def _array(numpy_helper: Any, value: Any) -> Any:
    is_array = isinstance(value, np.ndarray | np.generic)
    return np.asarray(value) if is_array else numpy_helper.to_array(value)


def _frozen(model: Any, names: list[str], arrays: list[Any], inputs: int) -> Any:
    """The model with all inputs after the first few as initialisers."""
    import onnx

    if inputs >= len(names) or any(a.dtype == object for a in arrays):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[inputs:]
    copy.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name)
        for name, array in zip(names[inputs:], arrays[inputs:], strict=True)
    )
    return copy
