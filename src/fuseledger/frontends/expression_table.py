"""The shape of the function table of expressions: parameters, their kinds, and the scope.

A lowering takes the scope, then its parameters by name, already checked and converted by kind.
It raises Mistake (or ShapeError) for what the kinds cannot see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from msgspec import Struct

from fuseledger.frontends.expression_syntax import Mistake
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.tensor import DTYPE_BITS, MAX_ELEMENTS, is_float, too_large
from fuseledger.graph.view import View

Kind = Literal[
    "tensor", "weight", "indices", "size", "integer", "number", "integers", "axis", "axes",
    "flag", "dtype", "word", "text",
]  # fmt: skip
"""`weight` and `indices` are tensors whose bare declarations get that role, or dtype int64."""

TENSOR_KINDS: tuple[Kind, ...] = ("tensor", "weight", "indices")

Result = View | tuple[View, ...]
REQUIRED: Any = object()

MAX_RANK = 8


class Param(Struct, frozen=True):
    """One parameter; `default` is what a user could have written, or REQUIRED."""

    name: str
    kind: Kind
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()
    """The words of kind `word`."""
    many: bool = False
    """Takes every positional argument that is left."""

    def __str__(self) -> str:
        if self.many:
            return f"{self.name}…"
        return self.name if self.default is REQUIRED else f"{self.name}={shown(self.default)}"


def shown(value: Any) -> str:
    """A default as a user writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


class Function(Struct, frozen=True):
    """One row of the table."""

    name: str
    params: tuple[Param, ...]
    lower: Callable[..., Result]
    meaning: str
    """What it computes, in one line of the documentation."""
    aliases: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """`softmax(x, axis=-1)`."""
        return f"{self.name}({', '.join(map(str, self.params))})"

    @property
    def is_stage(self) -> bool:
        """Whether it can follow `+` or `|`: it takes a tensor first."""
        return bool(self.params) and self.params[0].kind in TENSOR_KINDS


class Scope(Struct):
    """What a lowering may use: the builder, and the dtype of tensors that name none."""

    b: GraphBuilder
    dtype: str

    def weight(self, name: str, shape: Sequence[int], like: View) -> View:
        """A parameter that the function brings along, in the dtype of what it meets."""
        dtype = like.dtype if DTYPE_BITS[like.dtype] >= 16 and is_float(like.dtype) else self.dtype
        return self.b.weight(name, shape, dtype)

    def accumulated(self, dtype: str) -> str:
        """What a sum of products of this dtype is stored as: never 8 bits or fewer."""
        if not is_float(dtype):
            return "int32" if dtype in ("int8", "uint8", "int4", "uint4", "bool") else dtype
        if DTYPE_BITS[dtype] >= 16:
            return dtype
        return self.dtype if DTYPE_BITS[self.dtype] >= 16 and is_float(self.dtype) else "bf16"

    def real(self, dtype: str) -> str:
        """The dtype itself where it is floating, else the expression's."""
        return dtype if is_float(dtype) or dtype.startswith("complex") else self.dtype


DTYPE_ALIASES = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "float16": "fp16",
    "half": "fp16", "bfloat16": "bf16", "fp8": "fp8_e4m3", "e4m3": "fp8_e4m3",
    "e5m2": "fp8_e5m2", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
    "long": "int64", "int": "int32",
}  # fmt: skip
"""Other libraries' names."""


def dtype_named(word: str) -> str:
    """The dtype of a word; raises Mistake for an unknown one."""
    name = DTYPE_ALIASES.get(word, word)
    if name not in DTYPE_BITS:
        hint = nearest(word, (*DTYPE_BITS, *DTYPE_ALIASES)) or f"known are {', '.join(DTYPE_BITS)}"
        raise Mistake(f"unknown dtype '{word}'; {hint}")
    return name


def nearest(word: str, known: Sequence[str]) -> str | None:
    """`did you mean 'gelu'?`, or None where nothing is near."""
    from difflib import get_close_matches

    likeness = 0.8 if len(word) < 4 else 0.7  # 'foo' is not 'floor'
    found = get_close_matches(word, known, n=1, cutoff=likeness)
    return f"did you mean '{found[0]}'?" if found else None


def checked(param: Param, value: Any, first: View | None) -> Any:
    """A written value converted by its parameter's kind; raises Mistake where it does not fit.

    `first` is the function's first tensor, whose dimensions an axis counts.
    """
    if value is None and param.default is None and param.kind != "axes":
        return None
    return _CHECKS[param.kind](param, value, first)


def shape_of(sizes: Sequence[int]) -> str:
    """`[8,16]`."""
    return f"[{','.join(map(str, sizes))}]"


def _tensor(param: Param, value: Any, first: View | None) -> View:
    if not isinstance(value, View):
        raise Mistake(f"{param.name} must be a tensor")
    return value


def _number(param: Param, value: Any, first: View | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mistake(f"{param.name} must be a number")
    return value


def _integer(param: Param, value: Any, first: View | None) -> int:
    number = _number(param, value, first)
    if number != number or abs(number) == float("inf") or number != int(number):
        raise Mistake(f"{param.name} must be a whole number, not {number:g}")
    return int(number)


def _size(param: Param, value: Any, first: View | None) -> int:
    size = _integer(param, value, first)
    if size < 1:
        raise Mistake(f"{param.name} is {size}: a size must be at least 1")
    if size > MAX_ELEMENTS:
        raise Mistake(f"{param.name} is {size}: a size must be at most {MAX_ELEMENTS:,}")
    return size


def _integers(param: Param, value: Any, first: View | None) -> tuple[int, ...]:
    values = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    return tuple(_integer(param, item, first) for item in values)


def _axis(param: Param, value: Any, first: View | None) -> int:
    axis = _integer(param, value, first)
    assert first is not None  # an axis comes after its tensor
    rank = len(first.shape)
    if not -rank <= axis < rank:
        where = f"use {-rank} to {rank - 1}" if rank else "it has no axes"
        raise Mistake(f"{shape_of(first.shape)} has no axis {axis}; {where}")
    return axis % rank


def _axes(param: Param, value: Any, first: View | None) -> tuple[int, ...]:
    assert first is not None
    if value is None:
        return tuple(range(len(first.shape)))
    axes = tuple(_axis(param, item, first) for item in _integers(param, value, first))
    if len(set(axes)) != len(axes):
        raise Mistake("an axis is named twice")
    return axes


def _flag(param: Param, value: Any, first: View | None) -> bool:
    if not isinstance(value, bool):
        raise Mistake(f"{param.name} must be true or false")
    return value


def _dtype(param: Param, value: Any, first: View | None) -> str:
    if not isinstance(value, str):
        raise Mistake(f"{param.name} must be a dtype, such as bf16")
    return dtype_named(value)


def _word(param: Param, value: Any, first: View | None) -> str:
    if value not in param.choices:
        raise Mistake(f"{param.name} must be {' or '.join(param.choices)}")
    return value


def _text(param: Param, value: Any, first: View | None) -> str:
    if not isinstance(value, str):
        raise Mistake(f'{param.name} must be text in quotes, as in "mk,kn->mn"')
    return value


_CHECKS: dict[Kind, Callable[[Param, Any, View | None], Any]] = {
    "tensor": _tensor,
    "weight": _tensor,
    "indices": _tensor,
    "size": _size,
    "integer": _integer,
    "number": _number,
    "integers": _integers,
    "axis": _axis,
    "axes": _axes,
    "flag": _flag,
    "dtype": _dtype,
    "word": _word,
    "text": _text,
}


def check_shape(sizes: Sequence[int]) -> None:
    """Raises Mistake where a declared tensor could exist on no machine."""
    if len(sizes) > MAX_RANK:
        raise Mistake(f"{len(sizes)} dimensions; at most {MAX_RANK} can be read")
    if too_large(sizes):
        raise Mistake(f"{shape_of(sizes)} has more than {MAX_ELEMENTS:,} elements")
