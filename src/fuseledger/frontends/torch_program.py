"""From a `torch.export.ExportedProgram` to ATen calls."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

from msgspec import Struct, field

from fuseledger.errors import SourceError
from fuseledger.frontends.aten_graph import AtenGraph, AtenNode, Ref, Value
from fuseledger.frontends.aten_json import DTYPES


def read_program(program: Any, *, name: str, source: str) -> AtenGraph:
    """A `torch.export.ExportedProgram` as ATen nodes, not yet lowered."""
    return _Reader(source).graph(program, name)


_WRITES = {
    "BUFFER_MUTATION": "buffer",
    "USER_INPUT_MUTATION": "input",
    "PARAMETER_MUTATION": "parameter",
}


class _Reader(Struct):
    """Walks the FX graph of an exported program, inlining the wrappers' subgraphs."""

    source: str
    nodes: list[AtenNode] = field(default_factory=list[AtenNode])

    def graph(self, program: Any, name: str) -> AtenGraph:
        signature = program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
        inputs: list[tuple[str, Value]] = []
        weights: list[tuple[str, Value]] = []
        env: dict[Any, Any] = {}
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            value = self._values(node, node.name)
            if len(value) != 1:
                continue  # a number, a string or None among the inputs
            env[node] = Ref(node.name)
            spec = specs.get(node.name)
            if spec is not None and spec.kind.name != "USER_INPUT":
                weights.append((str(spec.target), value[0]))
            else:
                inputs.append((node.name, value[0]))
        leaving = self._walk(program.graph_module, env, "")
        outputs: list[str] = []
        notes: list[str] = []
        for spec, ref in zip(signature.output_specs, leaving, strict=True):
            if spec.kind.name in _WRITES:
                notes.append(f"writes to {_WRITES[spec.kind.name]} {spec.target} are left out")
            elif isinstance(ref, Ref):
                outputs.append(ref.name)
        return AtenGraph(
            name=name, source=self.source, inputs=tuple(inputs), weights=tuple(weights),
            nodes=tuple(self.nodes), outputs=tuple(outputs), notes=tuple(notes),
        )  # fmt: skip

    def _walk(self, module: Any, env: dict[Any, Any], prefix: str) -> list[Any]:
        """Appends the graph's calls; returns what its output node holds."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                env[node] = _attribute(module, str(node.target))
            elif node.op == "call_function":
                self._call(node, env, prefix)
            elif node.op == "output":
                return list(self._argument(node.args[0], env, node.name))
        return []

    def _call(self, node: Any, env: dict[Any, Any], prefix: str) -> None:
        if node.target is operator.getitem:
            source, position = node.args
            env[node] = env[source][position]
            return
        label = f"{prefix}{node.name}"
        graphs = [
            a for a in node.args if getattr(a, "op", "") == "get_attr" and hasattr(env[a], "graph")
        ]
        if len(graphs) == 1 and str(node.target).startswith("wrap"):
            at = node.args.index(graphs[0])
            inner = env[graphs[0]]
            places = [n for n in inner.graph.nodes if n.op == "placeholder"]
            passed = [self._argument(arg, env, label) for arg in node.args[at + 1 :]]
            env[node] = self._walk(inner, dict(zip(places, passed, strict=True)), f"{label}.")
            return
        args = self._arguments(node, env, label)
        values = self._values(node, label)
        if not values and node.meta.get("val") is not None:
            raise SourceError(
                f"{self.source}: {label} ({node.target}) depends on values of tensors"
            )
        self.nodes.append(
            AtenNode(name=label, op=_operator(node), args=args, outputs=tuple(values))
        )
        is_list = isinstance(node.meta.get("val"), list | tuple)
        refs = [Ref(value.name) for value in values]
        env[node] = refs if is_list else (refs[0] if refs else None)

    def _arguments(self, node: Any, env: dict[Any, Any], label: str) -> dict[str, Any]:
        """Arguments by the names of the operator's schema; defaults are left out."""
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        names += [f"arg{i}" for i in range(len(names), len(node.args))]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        return {name: self._argument(arg, env, label) for name, arg in given.items()}

    def _argument(self, arg: Any, env: dict[Any, Any], label: str) -> Any:
        if isinstance(arg, list | tuple):
            return [self._argument(item, env, label) for item in cast("Sequence[Any]", arg)]
        if hasattr(arg, "op") and hasattr(arg, "graph"):
            return env.get(arg)
        if arg is None or isinstance(arg, bool | int | float | str):
            return arg
        if type(arg).__name__.startswith("Sym"):
            raise SourceError(
                f"{self.source}: {label} has a dynamic size ({arg}); give fixed shapes"
            )
        return str(arg)

    def _values(self, node: Any, label: str) -> list[Value]:
        """The node's tensors; each of several is named after the node that picks it."""
        held = node.meta.get("val")
        several = isinstance(held, list | tuple)
        prefix = label.removesuffix(node.name)
        picked = {
            u.args[1]: f"{prefix}{u.name}" for u in node.users if u.target is operator.getitem
        }
        found: list[Value] = []
        for position, tensor in enumerate(cast("Sequence[Any]", held) if several else [held]):
            if not hasattr(tensor, "dtype") or not hasattr(tensor, "shape"):
                continue
            shape = tuple(tensor.shape)
            if not all(type(size) is int for size in shape):
                raise SourceError(f"{self.source}: {label} {_no_shape(shape)}")
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPES:
                raise SourceError(
                    f"{self.source}: {label} has the dtype {dtype}, which has no account yet"
                )
            name = picked.get(position, f"{label}.{position}") if several else label
            found.append(Value(name, shape, DTYPES[dtype]))
        return found


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _no_shape(shape: tuple[Any, ...]) -> str:
    """Why a shape is not fixed: by torch's names, `u0` is a size that some values decide."""
    sizes = f"[{', '.join(map(str, shape))}]"
    if re.search(r"\bu\d", sizes):
        return f"makes as many elements as the values of its inputs say, {sizes}: no plan covers it"
    return f"has a dynamic shape {sizes}; give fixed shapes"


def _operator(node: Any) -> str:
    """`aten.mul.Tensor`; a higher-order operator, or a function of torch, by its own name."""
    is_function = isinstance(node.target, FunctionType | BuiltinFunctionType)
    return str(node.target.__name__ if is_function else node.target).removeprefix("torch.ops.")
