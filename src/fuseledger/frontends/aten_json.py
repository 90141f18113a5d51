"""The ATen graph JSON form: tensors, parameters and nodes as a tracer recorded them.

`nodes` is the eager sequence of calls, `export_graph` the torch.export form of the same module.
Reading needs no torch.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct

from fuseledger.errors import SourceError
from fuseledger.frontends.aten import lower
from fuseledger.frontends.aten_graph import AtenGraph, AtenNode, Ref, Value
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

_PLACE = re.compile(r"(?P<name>[^\[]*)\[(?P<position>\d{1,6})\]")
"""An argument that is one of a list: `tensors[1]`."""


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
    except RecursionError:
        raise SourceError(f"{path}: not an ATen graph: it is nested too deeply") from None
    return _Reader(str(path)).graph(content, form)


_Kind = TypeVar("_Kind", str, list[Any], dict[str, Any])
_KINDS = {str: "a text", list: "a list", dict: "an object"}


class _Reader(Struct, frozen=True):
    """Reads the form; every mistake is a SourceError that names the place."""

    source: str

    def graph(self, content: Any, form: str) -> AtenGraph:
        name = self._field(content, "name", str, "the file")
        at = "the file"
        if form == "export":
            content, at = self._field(content, "export_graph", dict, at), "export_graph"
        inputs, params, constants, nodes = (
            self._objects(content, field, at)
            for field in ("inputs", "params", "constants", "nodes")
        )
        tensors = [entry for entry in inputs if "value" not in entry]  # the rest are numbers
        graph = AtenGraph(
            name=name,
            source=self.source,
            inputs=tuple(self._named(entry, "inputs") for entry in tensors),
            weights=tuple(self._named(entry, "weights") for entry in (*params, *constants)),
            nodes=tuple(self._node(entry) for entry in nodes),
            outputs=tuple(map(str, self._field(content, "outputs", list, at))),
        )
        self._once([value.name for _, value in (*graph.inputs, *graph.weights)], "tensor")
        self._once([node.name for node in graph.nodes], "node")
        return graph

    # -- entries -----------------------------------------------------------------------------

    def _named(self, entry: Json, at: str) -> tuple[str, Value]:
        return self._field(entry, "name", str, f"an entry of {at}"), self._value(entry, at)

    def _value(self, entry: Json, at: str) -> Value:
        name = self._field(entry, "id", str, f"an entry of {at}")
        dtype = self._field(entry, "dtype", str, f"tensor {name}").removeprefix("torch.")
        if dtype not in DTYPES:
            raise SourceError(f"{self.source}: tensor {name} has unknown dtype {dtype}")
        shape = self._field(entry, "shape", list, f"tensor {name}")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise SourceError(f"{self.source}: tensor {name} has no fixed shape: {shape}")
        return Value(name, tuple(shape), DTYPES[dtype])

    def _node(self, entry: Json) -> AtenNode:
        """Tensors and attributes by argument name; `tensors[1]` is the second of a list."""
        name = self._field(entry, "id", str, "an entry of nodes")
        at = f"node {name}"
        args: dict[str, Any] = {}
        for tensor in self._objects(entry, "inputs", at):
            argument = self._field(tensor, "arg", str, f"an input of {at}")
            ref = Ref(self._field(tensor, "id", str, f"an input of {at}"))
            place = _PLACE.fullmatch(argument)
            if place is None:
                args[argument] = ref
                continue
            items = cast("list[Any]", args.setdefault(place["name"], []))
            position = int(place["position"])
            items.extend([None] * (position + 1 - len(items)))
            items[position] = ref
        for argument, value in self._field(entry, "attrs", dict, at).items():
            args.setdefault(argument, value)
        outputs = tuple(self._value(output, at) for output in self._objects(entry, "outputs", at))
        op = self._field(entry, "op", str, at)
        return AtenNode(name=name, op=op, args=args, outputs=outputs)

    # -- fields ------------------------------------------------------------------------------

    def _field(self, entry: Any, field: str, kind: type[_Kind], at: str) -> _Kind:
        """A field of the kind that the form says it has."""
        if not isinstance(entry, dict):
            raise SourceError(f"{self.source}: not an ATen graph: {at} is no object")
        if field not in entry:
            raise SourceError(f"{self.source}: not an ATen graph: {at} has no field {field!r}")
        value: Any = cast("Json", entry)[field]
        if not isinstance(value, kind):
            raise SourceError(
                f"{self.source}: not an ATen graph: {field} of {at} is not {_KINDS[kind]}"
            )
        return value

    def _objects(self, entry: Any, field: str, at: str) -> list[Json]:
        found = self._field(entry, field, list, at)
        if not all(isinstance(each, dict) for each in found):
            raise SourceError(
                f"{self.source}: not an ATen graph: {field} of {at} holds what is no object"
            )
        return found

    def _once(self, names: list[str], kind: str) -> None:
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise SourceError(f"{self.source}: two {kind}s are named {twice}")
