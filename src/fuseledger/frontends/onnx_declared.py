"""What an ONNX file declares of shapes: its symbolic dimensions, set before anything is inferred,
and its fixed ones, which must be those that follow from the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from fuseledger.errors import SourceError
from fuseledger.graph.tensor import MAX_ELEMENTS


class Declaration(Struct, frozen=True, kw_only=True):
    """A shape that the file gives a value of its graph."""

    kind: str
    """`input`, `output`, or `value` for what is between."""
    name: str
    sizes: tuple[int | None, ...]
    """None where it is symbolic."""

    def agrees(self, shape: Sequence[int] | None) -> bool:
        """Whether a shape, where it is known, has this rank and every fixed size."""
        return shape is None or (
            len(shape) == len(self.sizes)
            and all(size in (None, known) for size, known in zip(self.sizes, shape, strict=True))
        )

    def __str__(self) -> str:
        return f"[{', '.join('?' if size is None else str(size) for size in self.sizes)}]"


def declarations(graph: Any) -> list[Declaration]:
    """Every shape that a graph declares, before symbolic dimensions are set."""
    kinds = (("input", graph.input), ("output", graph.output), ("value", graph.value_info))
    return [
        Declaration(
            kind=kind, name=info.name, sizes=tuple(map(_fixed, info.type.tensor_type.shape.dim))
        )
        for kind, infos in kinds
        for info in infos
        if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape")
    ]


def _fixed(dim: Any) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def set_dims(model: Any, dims: Mapping[str, int], initial: set[str], source: str) -> None:
    """Replace symbolic dimensions by their values, in place.

    `dims` names them as the model does (`batch`), or by value and position (`input.0`). Raises
    SourceError for a dimension of an input left open, and for names that the model does not have.
    """
    for name, size in dims.items():
        if not 1 <= size <= MAX_ELEMENTS:
            raise SourceError(
                f"{source}: --dim {name}={size}: a dimension is at least 1 and at most "
                f"{MAX_ELEMENTS:,}"
            )
    graph = model.graph
    inputs = [info for info in graph.input if info.name not in initial]
    used: set[str] = set()
    open_: dict[str, None] = {}
    for info in inputs:
        if not info.type.HasField("tensor_type"):
            raise SourceError(f"{source}: input {info.name} is no tensor")
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            _give_rank(info, dims)
        if not tensor.HasField("shape"):
            open_[f"{info.name}.0"] = None
        for position, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")
            name = _set(dim, f"{info.name}.{position}", dims, used)
            if name is not None:
                open_[name] = None
    for info in (*graph.output, *graph.value_info):
        for position, dim in enumerate(info.type.tensor_type.shape.dim):
            if _set(dim, f"{info.name}.{position}", dims, used) is not None:
                dim.ClearField("dim_param")
    _refuse_unknown(graph, dims, used, open_, source)
    if open_:
        several = "dimensions are" if len(open_) > 1 else "dimension is"
        flags = " ".join(f"--dim {name}=VALUE" for name in open_)
        raise SourceError(f"{source}: symbolic {several} not set: {', '.join(open_)}: give {flags}")


def _set(dim: Any, place: str, dims: Mapping[str, int], used: set[str]) -> str | None:
    """Set one dimension; the name by which to set it where it stays open."""
    if dim.HasField("dim_value"):
        return None
    name = dim.dim_param or place
    for key in (place, name):
        if key in dims:
            dim.dim_value = dims[key]
            used.add(key)
            used.add(name)
            return None
    return name


def _give_rank(info: Any, dims: Mapping[str, int]) -> None:
    """An input without a shape has the dimensions that are given: x.0, x.1, …"""
    position = 0
    while f"{info.name}.{position}" in dims:
        info.type.tensor_type.shape.dim.add()
        position += 1


def _refuse_unknown(
    graph: Any, dims: Mapping[str, int], used: set[str], open_: Iterable[str], source: str
) -> None:
    produced = {name for node in graph.node for name in node.output if name}
    for name in dims:
        value, _, position = name.rpartition(".")
        if name in used or (value in produced and position.isdigit()):
            continue
        known = sorted({*open_, *(key for key in used if "." not in key)})
        there = f"its symbolic dimensions are {', '.join(known)}" if known else "it has none"
        raise SourceError(f"{source}: no symbolic dimension is named {name}: {there}")
