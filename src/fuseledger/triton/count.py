"""Bytes that Triton's interpreter really loads and stores, masked lanes excluded.

A block counts every element of a tensor once a walk: what it loads again in the same walk comes
from its registers, shared memory or L1. A walk is an outermost loop, or one of several loops side
by side in it; a loop around every store is the grid's own walk and no other. What is *requested*
counts every lane of every load.
"""

from __future__ import annotations

import ast
import sys
from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct, field


class Counter(Struct):
    """Counts one launch at a time."""

    path: Path
    """The file of the kernels."""
    tensors: dict[str, Any]
    bytes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """`load`, `store` and `requested` → tensor → bytes."""
    _walks: dict[int, int] = field(default_factory=dict[int, int])
    _seen: dict[tuple[str, str, int], list[Any]] = field(
        default_factory=dict[tuple[str, str, int], list[Any]]
    )

    def __post_init__(self) -> None:
        self._walks = walks_of(self.path.read_text())

    @contextmanager
    def counting(self) -> Generator[None]:
        """Have the interpreter report its loads, its stores and its blocks meanwhile."""
        builder: Any = import_module("triton.runtime.interpreter").InterpreterBuilder
        load, store, block = (
            builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx,
        )  # fmt: skip

        def create_masked_load(inner: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            self._add("load", ptrs.data, mask.data)
            return load(inner, ptrs, mask, *rest, **named)

        def create_masked_store(inner: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._add("store", ptrs.data, mask.data)
            return store(inner, ptrs, value, mask, *rest)

        def set_grid_idx(inner: Any, *where: Any) -> Any:
            self.end_block()
            return block(inner, *where)

        builder.create_masked_load = create_masked_load
        builder.create_masked_store = create_masked_store
        builder.set_grid_idx = set_grid_idx
        try:
            yield
        finally:
            builder.create_masked_load = load
            builder.create_masked_store = store
            builder.set_grid_idx = block

    def _add(self, what: str, addresses: Any, mask: Any) -> None:
        flat = addresses.reshape(-1)[mask.reshape(-1).astype(bool)]
        if not flat.size:
            return
        name, tensor = self._owner(int(flat[0]))
        if what == "load":
            self._count("requested", name, flat.size * tensor.element_size())
        self._seen.setdefault((what, name, self._walk()), []).append(flat)

    def _owner(self, address: int) -> tuple[str, Any]:
        starts = sorted((tensor.data_ptr(), name) for name, tensor in self.tensors.items())
        _, name = starts[bisect_right(starts, (address, chr(0x10FFFF))) - 1]
        return name, self.tensors[name]

    def _walk(self) -> int:
        """The walk of the line at hand."""
        frame: Any = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_code.co_filename != str(self.path):
            frame = frame.f_back
        return self._walks.get(frame.f_lineno, 0) if frame is not None else 0

    def end_block(self) -> None:
        """Add up what the block at hand touched."""
        import numpy as np

        for (what, name, _), found in self._seen.items():
            elements = np.unique(np.concatenate(found)).size
            self._count(what, name, int(elements) * self.tensors[name].element_size())
        self._seen.clear()

    def _count(self, what: str, name: str, amount: int) -> None:
        table = self.bytes.setdefault(what, {})
        table[name] = table.get(name, 0) + amount


def walks_of(source: str) -> dict[int, int]:
    """Line → number of the walk that it belongs to, for the lines inside one."""
    found: dict[int, int] = {}
    number = 0
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef):
            for body in _parts(function.body):
                for loop in _walks(body):
                    number += 1
                    last = loop.end_lineno or loop.lineno
                    found |= dict.fromkeys(range(loop.lineno, last + 1), number)
    return found


def _parts(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The parts that run side by side in ranges of the grid."""
    branches = [each for each in body if isinstance(each, ast.If)]
    if not branches:
        yield body
    for branch in branches:
        yield branch.body
        yield from _parts(branch.orelse) if branch.orelse else ()


def _walks(body: list[ast.stmt]) -> Iterator[ast.For]:
    """Outermost loops, and the loops inside one that stand side by side; a loop around every
    store is none."""
    stores = sum(map(_stores, body))
    for each in body:
        if isinstance(each, ast.For):
            inner = [child for child in each.body if isinstance(child, ast.For)]
            is_grids = stores > 0 and _stores(each) == stores
            if not is_grids:
                yield each
            if is_grids or len(inner) > 1:
                yield from _walks(each.body)


def _stores(node: ast.AST) -> int:
    return sum(isinstance(n, ast.Attribute) and n.attr == "store" for n in ast.walk(node))
