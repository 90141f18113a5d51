"""Storages, strides and views of an ATen graph while it is walked the way eager PyTorch runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from fuseledger.clock.library_kernel import BYTES, Kind, LibraryKernel, Pipe, Stream, tensor_bytes
from fuseledger.frontends.aten_graph import AtenNode, Ref, Value


class Operand(Struct, frozen=True):
    """A tensor as a kernel sees it: where it is stored and how it is walked."""

    storage: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Elements of the view."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Distinct bytes that the view covers: an expanded dimension counts once."""
        stored = (n for n, stride in zip(self.shape, self.strides, strict=True) if stride)
        return math.prod(stored) * BYTES.get(self.dtype, 4)

    @property
    def contiguous(self) -> bool:
        """Whether elements lie in row-major order without gaps."""
        expected = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and stride != expected:
                return False
            expected *= n
        return True

    @property
    def stream(self) -> Stream:
        """Its bytes, read or written once."""
        return Stream(self.storage, self.bytes)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def dense(value: Value, storage: str | None = None) -> Operand:
    """A value in its own row-major storage."""
    return Operand(storage or value.name, value.shape, dense_strides(value.shape), value.dtype)


class Call(Struct):
    """One ATen call with its tensors resolved, and the kernels it launches so far."""

    node: AtenNode
    tensors: dict[str, Operand]
    """By argument name; the items of a list as `tensors[0]`, `tensors[1]` …"""
    outputs: tuple[Operand, ...]
    kernels: list[LibraryKernel]

    @property
    def out(self) -> Operand:
        """The first result."""
        return self.outputs[0]

    def get(self, name: str, default: Any = None) -> Any:
        """A plain argument, or `default` where it is missing or None."""
        found = self.node.args.get(name)
        return default if found is None or isinstance(found, Ref) else found

    def ints(self, name: str, rank: int, default: int) -> list[int]:
        """A list of `rank` integers; one integer stands for all of them."""
        found = self.get(name)
        values = [default] if found in (None, []) else found
        values = [int(v) for v in values] if isinstance(values, list) else [int(values)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        return values * rank if len(values) == 1 else values

    def dims(self, rank: int, name: str = "dim") -> list[int]:
        """Dimensions counted from 0; all of them where the argument is missing or empty."""
        found = self.get(name)
        if found is None or found == []:
            return list(range(rank))
        listed: list[Any] = list(found) if isinstance(found, list) else [found]  # pyright: ignore[reportUnknownArgumentType]
        return sorted({int(dim) % max(rank, 1) for dim in listed})

    def launch(
        self,
        name: str,
        kind: Kind,
        reads: Sequence[Operand | Stream],
        writes: Sequence[Operand | Stream],
        *,
        flops: float = 0.0,
        pipe: Pipe = "lanes",
        launches: int = 1,
        shape: Mapping[str, float] | None = None,
        **sizes: float,
    ) -> None:
        """Add one kernel; operands stand for their whole storage read or written once."""
        self.kernels.append(
            LibraryKernel(
                name=name, op=f"{self.node.op} ({self.node.name})", kind=kind,
                reads=tuple(r if isinstance(r, Stream) else r.stream for r in reads),
                writes=tuple(w if isinstance(w, Stream) else w.stream for w in writes),
                flops=flops, pipe=pipe, shape={**(shape or {}), **sizes}, launches=launches,
            )
        )  # fmt: skip

    def scratch(self, name: str, shape: Sequence[int], dtype: str = "fp32") -> Stream:
        """A temporary of the call itself."""
        return Stream(f"{self.node.name}.{name}", tensor_bytes(shape, dtype))

    def dense_input(self, operand: Operand, why: str) -> Operand:
        """The operand itself where it is contiguous; else a copy of it, which is a kernel."""
        if operand.contiguous:
            return operand
        storage = f"{self.node.name}.{operand.storage}.contiguous"
        copy = Operand(storage, operand.shape, dense_strides(operand.shape), operand.dtype)
        self.launch(f"copy ({why})", "copy", [operand], [copy], strided=1.0)
        return copy


Rule = Callable[[Call], None]


# -- views ---------------------------------------------------------------------------------


def _permuted(operand: Operand, order: Sequence[int]) -> Operand:
    return Operand(
        operand.storage, tuple(operand.shape[i] for i in order),
        tuple(operand.strides[i] for i in order), operand.dtype,
    )  # fmt: skip


def _permute(call: Call, x: Operand) -> Operand:
    return _permuted(x, [int(i) % len(x.shape) for i in call.get("dims", [])])


def _transpose(call: Call, x: Operand) -> Operand:
    order = list(range(len(x.shape)))
    if len(order) >= 2:
        a, b = (int(call.get(name, i)) % len(order) for i, name in enumerate(("dim0", "dim1")))
        order[a], order[b] = order[b], order[a]
    return _permuted(x, order)


def _reshaped(call: Call, x: Operand) -> Operand:
    """A view of the same storage; strides of a shape that drops or adds unit axes are kept."""
    shape = call.node.outputs[0].shape
    if x.contiguous:
        return Operand(x.storage, shape, dense_strides(shape), x.dtype)
    kept = [(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n != 1]
    if [n for n, _ in kept] == [n for n in shape if n != 1]:
        strides = iter(s for _, s in kept)
        steps = tuple(1 if n == 1 else next(strides) for n in shape)
        return Operand(x.storage, shape, steps, x.dtype)
    return Operand(x.storage, shape, _split_strides(x, shape), x.dtype)


def _split_strides(x: Operand, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides after dimensions are split or merged where memory allows; dense where not."""
    strides: list[int] = []
    old = [(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n != 1]
    for n in reversed(shape):
        if not old or n == 1:
            strides.append(1)
            continue
        size, stride = old.pop()
        while size < n and old:
            outer, _ = old.pop()
            size *= outer
        strides.append(stride)
        if size > n:
            old.append((size // n, stride * n))
    return tuple(reversed(strides))


def _expand(call: Call, x: Operand) -> Operand:
    shape = call.node.outputs[0].shape
    padded = (1,) * (len(shape) - len(x.shape)) + x.shape
    steps = (0,) * (len(shape) - len(x.shape)) + x.strides
    strides = tuple(
        0 if old == 1 and new != 1 else step
        for old, new, step in zip(padded, shape, steps, strict=True)
    )
    return Operand(x.storage, shape, strides, x.dtype)


def _part(call: Call, x: Operand) -> Operand:
    return Operand(x.storage, call.node.outputs[0].shape, x.strides, x.dtype)


def _select(call: Call, x: Operand) -> Operand:
    dim = int(call.get("dim", 0)) % len(x.shape)
    strides = x.strides[:dim] + x.strides[dim + 1 :]
    return Operand(x.storage, call.node.outputs[0].shape, strides, x.dtype)


VIEWS: dict[str, Callable[[Call, Operand], Operand]] = {
    "permute": _permute, "transpose": _transpose,
    "t": lambda call, x: _permuted(x, range(len(x.shape) - 1, -1, -1)),
    "view": _reshaped, "_unsafe_view": _reshaped, "reshape": _reshaped, "flatten": _reshaped,
    "unsqueeze": _reshaped, "squeeze": _reshaped, "as_strided_": _reshaped,
    "detach": _reshaped, "alias": _reshaped, "lift_fresh_copy": _reshaped,
    "expand": _expand, "slice": _part, "narrow": _part, "split": _part, "split_with_sizes": _part,
    "chunk": _part, "unbind": _select, "select": _select,
}  # fmt: skip
"""Calls that launch nothing: they change how a storage is walked."""
