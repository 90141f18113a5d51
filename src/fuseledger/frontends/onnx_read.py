"""ONNX files: what is refused before anything is lowered, and a model without its big data.

Nothing in the file ever runs, external data is never opened, and every check is bounded: the file's
size comes first, model-local functions are counted before they are inlined.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from fuseledger.errors import MissingExtra, SourceError

PROTOBUF_LIMIT_BYTES = 2**31 - 1
"""What one protobuf message may hold; larger models keep their weights as external data."""
VALUE_LIMIT = 4096
"""Elements up to which a tensor's value is kept: shapes, axes, scales."""
NODE_LIMIT = 1_000_000
"""Nodes after model-local functions are inlined."""


def onnx_module() -> Any:
    """The `onnx` package; raises MissingExtra where it is not installed."""
    try:
        onnx = import_module("onnx")
        import_module("onnx.inliner")
        import_module("onnx.shape_inference")
    except ImportError:
        raise MissingExtra("onnx", "onnx") from None
    return onnx


def read_model(path: str | os.PathLike[str]) -> Any:
    """The ModelProto of a file, its external data unread; raises SourceError for anything else."""
    onnx = onnx_module()
    place = Path(path)
    try:
        size = place.stat().st_size
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    if not place.is_file():
        raise SourceError(f"{path}: not a file")
    if size > PROTOBUF_LIMIT_BYTES:
        raise SourceError(
            f"{path}: {size:,} bytes, where a protobuf holds at most 2 GiB: "
            "save the weights as external data"
        )
    try:
        model = onnx.load(os.fspath(place), load_external_data=False)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    except Exception as error:  # DecodeError of whichever protobuf is installed, UnicodeDecodeError
        reason = str(error).split("\n")[0]
        raise SourceError(f"{path}: not an ONNX file, or cut short ({reason})") from None
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise SourceError(f"{path}: not an ONNX file, or cut short (no graph or no opset)")
    return model


def skeleton(model: Any, source: str) -> Any:
    """A copy of the model without big data, its local functions inlined and its nodes in order.

    Raises SourceError for external data outside the model's folder, functions that call
    themselves, values made twice or never, cycles, and a graph without nodes.
    """
    onnx = onnx_module()
    for opset in model.opset_import:
        if not 0 < opset.version < 2**31:
            raise SourceError(f"{source}: there is no opset {opset.version}")
    if not all(isinstance(name, str) for name in _names(model)):  # bytes, where they are no UTF-8
        raise SourceError(f"{source}: not an ONNX file, or damaged (a name is no text)")
    small = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    graph = small.graph
    graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        _confined(tensor, source)
        graph.initializer.append(_without_big_data(onnx, tensor))
    for sparse in model.graph.sparse_initializer:
        dense = onnx.TensorProto(
            name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims
        )
        graph.initializer.append(dense)
    for owner in (graph, *small.functions):
        for node in owner.node:
            _strip_attributes(onnx, node, source)
    if small.functions:
        _bounded_functions(small, source)
        try:
            small = onnx.inliner.inline_local_functions(small)
        except Exception as error:
            reason = str(error).split("\n")[0]
            raise SourceError(f"{source}: functions cannot be inlined ({reason})") from None
    if not small.graph.node:
        raise SourceError(f"{source}: graph has no operators")
    _check_values(small.graph, source)
    return small


def node_title(node: Any) -> str:
    """How messages name a node: its name or first output, and its operator."""
    name = node.name or next((output for output in node.output if output), "?")
    return f"node {name} ({operator(node)})"


def standard(domain: str) -> str:
    """The domain, with the standard one spelled in one way."""
    return "" if domain == "ai.onnx" else domain


def operator(node: Any) -> str:
    """`Conv`, or `com.microsoft.FastGelu` outside the standard domain."""
    domain = standard(node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def subgraphs(node: Any) -> Iterator[Any]:
    """The graphs among a node's attributes (branches, loop bodies)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captured(node: Any) -> list[str]:
    """Values of the enclosing graph that a node's subgraphs read, each once."""
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        for inner in graph.node:
            read = [*inner.input, *captured(inner)]
            found.update(dict.fromkeys(name for name in read if name and name not in own))
            own.update(inner.output)
        read = [value.name for value in graph.output]
        found.update(dict.fromkeys(name for name in read if name not in own))
    return list(found)


# -- data ----------------------------------------------------------------------------------------


def _confined(tensor: Any, source: str) -> None:
    """Refuse external data that is not below the model's own folder."""
    for entry in tensor.external_data:
        if entry.key != "location":
            continue
        parts = PurePosixPath(entry.value.replace("\\", "/")).parts
        absolute = PurePosixPath(entry.value).is_absolute() or PureWindowsPath(entry.value).drive
        if absolute or entry.value.startswith("\\") or ".." in parts:
            raise SourceError(
                f"{source}: tensor {tensor.name} has its data at {entry.value!r}, "
                "outside the model's folder"
            )


def _without_big_data(onnx: Any, tensor: Any) -> Any:
    """The tensor itself where it is small and in the file, else its name, shape and type."""
    elements = 1
    for size in tensor.dims:
        elements *= size
    if elements <= VALUE_LIMIT and not tensor.external_data:
        return tensor
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _strip_attributes(onnx: Any, node: Any, source: str) -> None:
    for attribute in node.attribute:
        tensors = [attribute.t] if attribute.HasField("t") else []
        for tensor in (*tensors, *attribute.tensors):
            _confined(tensor, f"{source}: {node_title(node)}")
            tensor.CopyFrom(_without_big_data(onnx, tensor))
    for graph in subgraphs(node):
        for tensor in graph.initializer:
            _confined(tensor, source)
            tensor.CopyFrom(_without_big_data(onnx, tensor))
        for inner in graph.node:
            _strip_attributes(onnx, inner, source)


def _names(model: Any) -> Iterator[Any]:
    """Every name that the model gives or uses."""
    yield model.graph.name
    for graph in (model.graph, *model.functions):
        for node in _all_nodes(graph.node):
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)
            for inner in subgraphs(node):
                yield from _declared_names(inner)
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
    yield from _declared_names(model.graph)
    yield from (opset.domain for opset in model.opset_import)


def _declared_names(graph: Any) -> Iterator[Any]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))


# -- structure -----------------------------------------------------------------------------------


def _all_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


def _bounded_functions(model: Any, source: str) -> None:
    """Refuse functions that call themselves, and expansions beyond `NODE_LIMIT` nodes."""
    bodies = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_: set[tuple[str, str]] = set()

    def expanded(nodes: Any) -> int:
        return sum(size(node) for node in _all_nodes(nodes))

    def size(node: Any) -> int:
        key = (node.domain, node.op_type)
        if key not in bodies:
            return 1
        if key in open_:
            raise SourceError(f"{source}: function {node.op_type} calls itself")
        if key not in sizes:
            open_.add(key)
            sizes[key] = expanded(bodies[key].node)
            open_.remove(key)
        return sizes[key]

    if expanded(model.graph.node) > NODE_LIMIT:
        raise SourceError(f"{source}: more than {NODE_LIMIT:,} nodes once functions are inlined")


def _check_values(graph: Any, source: str) -> None:
    """Every value is made once and before it is read; nodes are put in topological order."""
    initial = {tensor.name for tensor in graph.initializer}
    for kind, values in (("inputs", graph.input), ("initialisers", graph.initializer)):
        for name, count in Counter(value.name for value in values).items():
            if count > 1:
                raise SourceError(f"{source}: {count} {kind} are named {name}")
    made = initial | {value.name for value in graph.input}
    maker: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        for name in node.output:
            if name in made or name in maker:
                raise SourceError(
                    f"{source}: {node_title(node)} makes {name}, which exists already"
                )
            if name:
                maker[name] = position
    reads = [[name for name in (*node.input, *captured(node)) if name] for node in graph.node]
    for node, names in zip(graph.node, reads, strict=True):
        for name in names:
            if name not in made and name not in maker:
                raise SourceError(f"{source}: {node_title(node)} reads {name}, which nothing makes")
    for value in graph.output:
        if value.name not in made and value.name not in maker:
            raise SourceError(f"{source}: output {value.name} is made by no node")
    before = [{maker[name] for name in names if name in maker} for names in reads]
    order = _topological(before)
    if len(order) < len(before):
        stuck = set(range(len(before))) - set(order)
        walked: set[int] = set()
        position = min(stuck)
        while position not in walked:
            walked.add(position)
            position = min(before[position] & stuck)
        raise SourceError(f"{source}: {node_title(graph.node[position])} depends on its own result")
    if order != sorted(order):
        ordered = [graph.node[position] for position in order]
        del graph.node[:]
        graph.node.extend(ordered)


def _topological(before: list[set[int]]) -> list[int]:
    """Positions in a stable order that respects `before`; fewer than all if there is a cycle."""
    from heapq import heapify, heappop, heappush

    after: list[list[int]] = [[] for _ in before]
    missing = [len(needs) for needs in before]
    for position, needs in enumerate(before):
        for need in needs:
            after[need].append(position)
    ready = [position for position, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        position = heappop(ready)
        order.append(position)
        for later in after[position]:
            missing[later] -= 1
            if not missing[later]:
                heappush(ready, later)
    return order
