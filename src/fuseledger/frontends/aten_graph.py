"""An exported PyTorch program as a neutral list of ATen calls, whatever it was read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct


class Ref(Struct, frozen=True):
    """A tensor argument, by the name of the value."""

    name: str


class Value(Struct, frozen=True):
    """A tensor of the source: the name by which nodes refer to it, its shape and our dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class AtenNode(Struct, frozen=True, kw_only=True):
    """One call. `op` is `aten.mul.Tensor`; missing `args` take ATen's defaults."""

    name: str
    op: str
    args: Mapping[str, Any]
    """By the schema's argument names: `Ref`, number, bool, string, None, or lists of these."""
    outputs: tuple[Value, ...]

    @property
    def packet(self) -> str:
        """The operator without namespace `aten` and without overload: `mul`, `kb.sdpa`."""
        parts = self.op.split(".")
        name = ".".join(parts[:-1]) if len(parts) > 2 else self.op
        return name.removeprefix("aten.")


class AtenGraph(Struct, frozen=True, kw_only=True):
    """What a source holds: values that exist before it runs, calls, and what leaves."""

    name: str
    source: str
    """File or factory, for error messages."""
    inputs: tuple[tuple[str, Value], ...]
    """(the source's own name, value) of what the caller passes."""
    weights: tuple[tuple[str, Value], ...]
    """(qualified name, value) of parameters, buffers and constants."""
    nodes: tuple[AtenNode, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = ()


def is_in_place(packet: str) -> bool:
    """Whether the operator writes to its first argument."""
    return packet.endswith("_") and not packet.endswith("__")


def needed(source: AtenGraph) -> set[str]:
    """Values that reach an output; what is written in place counts, whoever reads it."""
    found = set(source.outputs)
    for node in reversed(source.nodes):
        if is_in_place(node.packet) or any(value.name in found for value in node.outputs):
            found.update(references(node.args.values()))
    return found


def references(args: Iterable[Any]) -> Iterator[str]:
    """Names of the tensors among arguments, lists included."""
    for arg in args:
        if isinstance(arg, Ref):
            yield arg.name
        elif isinstance(arg, list):
            yield from references(arg)  # pyright: ignore[reportUnknownArgumentType]
