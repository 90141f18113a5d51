"""`.pt2` archives of torch.export: the graph is read from the archive's JSON.

Nothing is unpickled and torch is not imported, so an untrusted file cannot run code; the weights'
values are not read.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field

from fuseledger.errors import SourceError
from fuseledger.frontends.aten import lower
from fuseledger.frontends.aten_graph import AtenGraph, AtenNode, Ref, Value
from fuseledger.graph.graph import Graph

Json = dict[str, Any]

_SCALAR_TYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "fp16", 7: "fp32", 8: "fp64",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bf16", 28: "uint16", 29: "fp8_e4m3",
    30: "fp8_e5m2", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""torch._export.serde.schema.ScalarType → our dtype."""

_JSON_LIMIT_BYTES = 1 << 30
"""A graph's JSON larger than this is refused rather than held in memory."""


def load(path: str | Path) -> Graph:
    """The graph of a `.pt2` archive. Raises SourceError naming the file and what is wrong."""
    return lower(read(path))


def read(path: str | Path) -> AtenGraph:
    """The archive as ATen nodes, not yet lowered."""
    path = Path(path)
    program = _program(path)
    try:
        return _Reader(str(path)).graph(program, path.stem)
    except KeyError as error:
        raise SourceError(f"{path}: not a torch.export graph: it has no {error}") from None
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        raise SourceError(
            f"{path}: not a torch.export graph, or one of another torch ({error})"
        ) from None


def _program(path: Path) -> Json:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith(".json") and "/models/" in f"/{n}"]
            if not names:
                raise SourceError(
                    f"{path}: the archive holds no models/*.json; save it with torch.export.save "
                    "of torch 2.8 or later"
                )
            info = archive.getinfo(names[0])
            if info.file_size > _JSON_LIMIT_BYTES:
                raise SourceError(
                    f"{path}: {names[0]} has {info.file_size} bytes, too many for a graph"
                )
            return cast("Json", json.loads(archive.read(info)))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from None
    except RecursionError:
        raise SourceError(f"{path}: not a torch.export graph: it is nested too deeply") from None
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise SourceError(f"{path}: no .pt2 archive, or a damaged one ({error})") from None
    except ValueError as error:
        raise SourceError(f"{path}: its graph is no JSON ({error})") from None


_WEIGHTS = {
    "parameter": "parameter_name", "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
}  # fmt: skip


class _Reader(Struct):
    source: str
    nodes: list[AtenNode] = field(default_factory=list[AtenNode])

    def graph(self, program: Json, name: str) -> AtenGraph:
        module = program["graph_module"]
        graph, signature = module["graph"], module["signature"]
        inputs: list[tuple[str, Value]] = []
        weights: list[tuple[str, Value]] = []
        env: dict[str, str] = {}
        for spec in signature["input_specs"]:
            ((kind, body),) = spec.items()
            held = body.get("arg")
            arg = cast("Json", held.get("as_tensor", held)) if isinstance(held, dict) else None  # pyright: ignore[reportUnknownMemberType]
            if arg is None or "name" not in arg or arg["name"] not in graph["tensor_values"]:
                continue
            value = self._value(arg["name"], graph, "")
            if kind in _WEIGHTS:
                weights.append((str(body[_WEIGHTS[kind]]), value))
            else:
                inputs.append((value.name, value))
            env[value.name] = value.name
        leaving = self._walk(graph, env, "")
        outputs: list[str] = []
        notes: list[str] = []
        for spec, ref in zip(signature["output_specs"], leaving, strict=True):
            ((kind, body),) = spec.items()
            if kind == "user_output":
                if isinstance(ref, Ref):
                    outputs.append(ref.name)
            elif kind.endswith("mutation"):
                target = (
                    body.get("buffer_name")
                    or body.get("user_input_name")
                    or body.get("parameter_name")
                )
                notes.append(f"writes to {target} are left out")
        return AtenGraph(
            name=name, source=self.source, inputs=tuple(inputs), weights=tuple(weights),
            nodes=tuple(self.nodes), outputs=tuple(outputs), notes=tuple(notes),
        )  # fmt: skip

    def _walk(self, graph: Json, env: dict[str, str], prefix: str) -> list[Any]:
        for node in graph["nodes"]:
            self._call(node, graph, env, prefix)
        return [self._argument(output, env) for output in graph["outputs"]]

    def _call(self, node: Json, graph: Json, env: dict[str, str], prefix: str) -> None:
        target = str(node["target"]).removeprefix("torch.ops.")
        made = [name for output in node["outputs"] for name in _names(output)]
        given = [(entry["name"], entry["arg"]) for entry in node["inputs"]]
        graphs = [i for i, (_, arg) in enumerate(given) if "as_graph" in arg]
        if len(graphs) == 1 and target.startswith("higher_order.wrap"):
            inner: Json = given[graphs[0]][1]["as_graph"]["graph"]
            places = [name for output in inner["inputs"] for name in _names(output)]
            passed = [self._argument(arg, env) for _, arg in given[graphs[0] + 1 :]]
            scope = {p: a.name for p, a in zip(places, passed, strict=True) if isinstance(a, Ref)}
            results = self._walk(inner, scope, f"{prefix}{node.get('name') or made[0]}.")
            for name, result in zip(made, results, strict=True):
                env[name] = result.name
            return
        args = {name or f"arg{i}": self._argument(arg, env) for i, (name, arg) in enumerate(given)}
        values = tuple(self._value(name, graph, prefix) for name in made)
        env.update({name: value.name for name, value in zip(made, values, strict=True)})
        label = f"{prefix}{node.get('name') or (made[0] if made else target)}"
        self.nodes.append(AtenNode(name=label, op=target, args=args, outputs=values))

    def _argument(self, arg: Json, env: dict[str, str]) -> Any:
        ((kind, held),) = arg.items()
        if kind == "as_tensor":
            return Ref(env[held["name"]])
        if kind == "as_tensors":
            return [Ref(env[item["name"]]) for item in held]
        if kind == "as_optional_tensors":
            return [self._argument(item, env) for item in held]
        if kind == "as_none":
            return None
        if kind == "as_scalar_type":
            return _SCALAR_TYPES.get(held)
        if kind in ("as_sym_int", "as_sym_ints", "as_sym_float", "as_sym_bool"):
            items = cast("list[Json]", held if isinstance(held, list) else [held])
            numbers = [self._number(item) for item in items]
            return numbers if isinstance(held, list) else numbers[0]
        return held

    def _number(self, held: Json) -> Any:
        for kind in ("as_int", "as_float", "as_bool"):
            if kind in held:
                return held[kind]
        raise SourceError(f"{self.source}: size {held} is dynamic; export with fixed shapes")

    def _value(self, name: str, graph: Json, prefix: str) -> Value:
        meta = graph["tensor_values"][name]
        shape = tuple(int(self._number(size)) for size in meta["sizes"])
        code = int(meta["dtype"])
        dtype = _SCALAR_TYPES.get(code)
        if dtype is None:
            raise SourceError(
                f"{self.source}: {name} has the dtype number {code}, which has no account yet"
            )
        return Value(f"{prefix}{name}", shape, dtype)


def _names(output: Json) -> list[str]:
    ((kind, held),) = output.items()
    if kind == "as_tensor":
        return [str(held["name"])]
    if kind == "as_tensors":
        return [str(item["name"]) for item in held]
    if kind == "as_optional_tensors":
        return [name for item in held if "as_none" not in item for name in _names(item)]
    return []
