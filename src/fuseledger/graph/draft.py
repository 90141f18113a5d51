"""Ops and tensors while a graph is being built: mutable, addressed by logical dimension."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from fuseledger.graph.axis import Axis, Index
from fuseledger.graph.op import Kind
from fuseledger.graph.scalar import Expr
from fuseledger.graph.tensor import Role


class DraftTensor(Struct):
    """A stored tensor: logical shape, dtype, role."""

    shape: tuple[int, ...]
    dtype: str
    role: Role


class DraftAccess(Struct):
    """A read or write: one coordinate per logical dimension of the stored tensor."""

    tensor: str
    coords: list[Index]
    fill: float | None


class DraftOp(Struct):
    """A loop nest whose axes are its own (`%7`); `hints` says what to call them."""

    name: str
    function: str
    kind: Kind
    label: str | None
    axes: list[Axis]
    hints: dict[str, str]
    reduces: set[str]
    scans: set[str]
    reads: list[DraftAccess]
    writes: list[DraftAccess]
    body: Expr | None
    combine: str | None
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
