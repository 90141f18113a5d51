"""ATen nodes as an FX graph module over fake CUDA tensors. Only `inductor_worker` imports this."""

# FX is untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
import operator
from typing import Any, cast

from msgspec import Struct

from fuseledger.errors import SourceError
from fuseledger.frontends.aten_graph import AtenGraph, AtenNode, Ref
from fuseledger.frontends.aten_json import DTYPES
from fuseledger.peers.inductor_attention import LONG_NAMES, PACKETS, attention

TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
"""Our dtype → torch's name."""

KEPT_WHOLE = {"kb.sdpa": "scaled_dot_product_attention"}
"""A tracer's own operator → the ATen operator that it stands for."""


class FxProgram(Struct, frozen=True):
    """A graph module, its fake inputs, and what each of its nodes is called in the source."""

    module: Any
    inputs: list[Any]
    names: dict[str, list[str]]


def fx_program(source: AtenGraph, mode: Any) -> FxProgram:
    """The FX form of an ATen graph; weights are inputs, as in inference without freezing.

    Raises SourceError naming a node whose operator torch does not have.
    """
    fx: Any = importlib.import_module("torch.fx")
    torch: Any = importlib.import_module("torch")
    graph = fx.Graph()
    values: dict[str, Any] = {}
    inputs: list[Any] = []
    names: dict[str, list[str]] = {}
    with mode:
        for _, value in (*source.inputs, *source.weights):
            values[value.name] = graph.placeholder(f"in_{len(inputs)}")
            inputs.append(fake_tensor(value.shape, value.dtype))
    known = {value.name: value for _, value in (*source.inputs, *source.weights)}
    for node in source.nodes:
        known.update({value.name: value for value in node.outputs})
        given = {
            LONG_NAMES.get(name, name) if node.op in KEPT_WHOLE else name: _argument(
                name, arg, values
            )
            for name, arg in node.args.items()
        }
        before = {each.name for each in graph.nodes}
        fused = attention(graph, node, given, known) if node.packet in PACKETS else None
        if fused is not None:
            values[node.outputs[0].name] = fused
            names |= {each.name: [node.name] for each in graph.nodes if each.name not in before}
            continue
        made = graph.call_function(_operator(source, node), (), given)
        names[made.name] = [node.name]
        if _is_list(made.target):
            for i, value in enumerate(node.outputs):
                values[value.name] = graph.call_function(operator.getitem, (made, i))
        elif node.outputs:
            values[node.outputs[0].name] = made
    graph.output(tuple(values[name] for name in source.outputs))
    return FxProgram(fx.GraphModule(torch.nn.Module(), graph), inputs, names)


def fake_tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """A fake CUDA tensor; to be called under a fake mode."""
    torch: Any = importlib.import_module("torch")
    return torch.empty(shape, dtype=getattr(torch, TORCH_DTYPES[dtype]), device="cuda")


def _operator(source: AtenGraph, node: AtenNode) -> Any:
    torch: Any = importlib.import_module("torch")
    if node.op in KEPT_WHOLE:
        return getattr(torch.ops.aten, KEPT_WHOLE[node.op]).default
    found: Any = torch.ops
    try:
        for part in node.op.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise SourceError(
            f"{source.source}: node {node.name}: torch has no operator {node.op}"
        ) from None
    return found


def _is_list(overload: Any) -> bool:
    """Whether the operator returns several tensors, or a list of them."""
    returns = overload._schema.returns
    return (
        len(returns) > 1
        or (bool(returns) and "[]" in str(returns[0].type))
        or (bool(returns) and str(returns[0].type).startswith("List"))
    )


def _argument(name: str, arg: Any, values: dict[str, Any]) -> Any:
    """The argument as torch takes it: devices become CUDA, names of dtypes become dtypes."""
    torch: Any = importlib.import_module("torch")
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, list):
        return [_argument(name, item, values) for item in cast("list[Any]", arg)]
    if isinstance(arg, str):
        if name == "device":
            return torch.device("cuda", 0)
        if arg.startswith("torch."):
            return getattr(torch, arg.removeprefix("torch."))
    return arg
