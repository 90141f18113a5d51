"""The ATen graph JSON form: tensors, parameters and nodes as a tracer recorded them.

`nodes` is the eager sequence of calls, `export_graph` the torch.export form of the same module.
Reading needs no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, cast

from fuseledger.errors import SourceError
from fuseledger.frontends.aten import AtenGraph, AtenNode, Ref, Value, lower
from fuseledger.graph.graph import Graph

Json = dict[str, Any]

DTYPES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "complex64": "complex64",
    "complex128": "complex128", "int64": "int64", "int32": "int32", "int16": "int16",
    "int8": "int8", "uint64": "uint64", "uint32": "uint32", "uint16": "uint16", "uint8": "uint8",
    "bool": "bool",
}  # fmt: skip
"""torch's name → ours."""


def load(path: str | Path, *, form: Literal["eager", "export"] = "eager") -> Graph:
    """The graph of a JSON file. Raises SourceError naming the file and what is wrong with it.

    The eager form stays as it was run: composites spelled out in single calls are not gathered.
    """
    return lower(read(path, form=form), composites=form == "export")


def read(path: str | Path, *, form: Literal["eager", "export"] = "eager") -> AtenGraph:
    """The file as ATen nodes, not yet lowered."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: not JSON ({error})") from None
    try:
        return _graph(path, content, form)
    except (KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{path}: not an ATen graph: {error!r} is missing or of a wrong type"
        ) from None


def _graph(path: Path, content: Json, form: str) -> AtenGraph:
    body: Json = content if form == "eager" else content["export_graph"]
    tensors = [entry for entry in body["inputs"] if "value" not in entry]  # the rest are numbers
    stored = [*body["params"], *body["constants"]]
    return AtenGraph(
        name=f"{content['name']}",
        source=str(path),
        inputs=tuple((str(entry["name"]), _value(path, entry)) for entry in tensors),
        weights=tuple((str(entry["name"]), _value(path, entry)) for entry in stored),
        nodes=tuple(_node(path, entry) for entry in body["nodes"]),
        outputs=tuple(str(name) for name in body["outputs"]),
    )


def _value(path: Path, entry: Json) -> Value:
    dtype = str(entry["dtype"]).removeprefix("torch.")
    if dtype not in DTYPES:
        raise SourceError(f"{path}: tensor {entry['id']} has unknown dtype {dtype}")
    shape = tuple(entry["shape"])
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise SourceError(f"{path}: tensor {entry['id']} has no fixed shape: {list(shape)}")
    return Value(str(entry["id"]), shape, DTYPES[dtype])


def _node(path: Path, entry: Json) -> AtenNode:
    """Tensors and attributes by argument name; `tensors[1]` is the second of a list."""
    args: dict[str, Any] = {}
    for tensor in cast("list[Json]", entry["inputs"]):
        name, bracket, place = str(tensor["arg"]).partition("[")
        ref = Ref(str(tensor["id"]))
        if not bracket:
            args[name] = ref
            continue
        items = cast("list[Any]", args.setdefault(name, []))
        position = int(place.rstrip("]"))
        items.extend([None] * (position + 1 - len(items)))
        items[position] = ref
    for name, value in entry["attrs"].items():
        args.setdefault(name, value)
    outputs = tuple(_value(path, output) for output in entry["outputs"])
    return AtenNode(name=str(entry["id"]), op=str(entry["op"]), args=args, outputs=outputs)
