"""ONNX models as graphs.

    graph = load("model.onnx", dims={"batch": 1})

External data is left unread, nothing in the file runs, and a bad file is one clear SourceError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuseledger.errors import SourceError
from fuseledger.frontends.onnx_infer import FOLDABLE, Inference
from fuseledger.frontends.onnx_lower import Lowering, table
from fuseledger.frontends.onnx_read import onnx_module, operator, read_model, skeleton
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph

_DEFINITION_DEPTH = 3
"""Rounds of inlining: a loss is defined by another loss, that one by plain operators."""


def load(path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None) -> Graph:
    """The graph of an `.onnx` file.

    `dims` sets symbolic dimensions, by the model's own names (`batch`) or by value and position
    (`input.0`). Raises SourceError for a file that is no valid model and for dimensions left
    open, MissingExtra without the `onnx` package.
    """
    model = read_model(path)
    return _run(model, dims or {}, Path(path).stem, os.fspath(path))[0]


def from_model(
    model: Any, *, dims: Mapping[str, int] | None = None, name: str | None = None
) -> Graph:
    """The graph of a ModelProto, which is left as it is; see `load`."""
    return from_model_with_values(model, dims=dims, name=name)[0]


def from_model_with_values(
    model: Any, *, dims: Mapping[str, int] | None = None, name: str | None = None
) -> tuple[Graph, dict[str, Any]]:
    """The graph, and the data of small values that depend on no input, by name.

    With the file's own weights it is what evaluating the graph needs.
    """
    title = name or model.graph.name or "model"
    return _run(model, dims or {}, title, title)


def _run(
    model: Any, dims: Mapping[str, int], name: str, source: str
) -> tuple[Graph, dict[str, Any]]:
    try:
        small = _without_functions(skeleton(model, source))
        inference = Inference(small, source, dims)
        inference.start()
        graph = Lowering(GraphBuilder(name), inference).run()
        known = {v.name: v.array for v in inference.values.values() if v.array is not None}
        return graph, known
    except RecursionError:
        raise SourceError(f"{source}: graphs or functions are nested too deeply") from None
    except UnicodeDecodeError:
        raise SourceError(f"{source}: not an ONNX file, or damaged (a name is no text)") from None
    except SourceError as error:
        if str(error).isprintable():
            raise
        line = "".join(c if c.isprintable() else "�" for c in str(error))
        raise SourceError(line) from None


def _without_functions(model: Any) -> Any:
    """The model with standard operators that no table lowers replaced by their own definitions."""
    onnx = onnx_module()
    for _ in range(_DEFINITION_DEPTH):
        defined = _defined(model)
        if not defined:
            return model
        try:
            model = onnx.inliner.inline_selected_functions(
                model, defined, inline_schema_functions=True
            )
        except Exception:  # a definition that does not fit the node: it stays, and is a barrier
            return model
    return model


def _defined(model: Any) -> list[tuple[str, str]]:
    """Operators of the model that ONNX defines by others and that no table lowers."""
    onnx = onnx_module()
    opsets = {o.domain: o.version for o in model.opset_import}
    found: dict[tuple[str, str], None] = {}
    for node in model.graph.node:
        title = operator(node)
        if title in table() or title in FOLDABLE or node.domain not in opsets:
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
        except onnx.defs.SchemaError:
            continue
        if schema.has_function or schema.has_context_dependent_function:
            found[node.domain, node.op_type] = None
            _spell_out_defaults(node, schema)
    return list(found)


def _spell_out_defaults(node: Any, schema: Any) -> None:
    """Attributes that the node leaves to their defaults: definitions refer to them by name."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
