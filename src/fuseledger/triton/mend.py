"""What the check changes in Triton 3.9's interpreter: two mistakes, and what makes it slow."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


def mend_interpreter() -> None:
    """Change the interpreter of this process."""
    _keep_conditions()
    _round_bfloat16()
    _quicken()


def _keep_conditions() -> None:
    """Let the interpreter spread a scalar condition over a tile as a condition.

    Triton 3.9's interpreter makes 32-bit integers of it, which its loads then refuse as a mask.
    """
    numpy: Any = import_module("numpy")
    builder: Any = import_module("triton.runtime.interpreter").InterpreterBuilder
    spread = builder.create_splat

    def create_splat(self: Any, kind: Any, value: Any) -> Any:
        found = spread(self, kind, value)
        if value.data.dtype == numpy.bool_:
            found.data = found.data.astype(numpy.bool_)
        return found

    builder.create_splat = create_splat


def _round_bfloat16() -> None:
    """Let the interpreter compute with bfloat16 as GPUs do.

    Triton 3.9's interpreter keeps its bits as 16-bit integers: it multiplies those in `tl.dot`,
    and drops the bits that do not fit where hardware rounds to the nearest.
    """
    numpy: Any = import_module("numpy")
    language: Any = import_module("triton.language")
    interpreter: Any = import_module("triton.runtime.interpreter")
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast, dot = builder.cast_impl, builder.create_dot

    def cast_impl(self: Any, source: Any, kind: Any) -> Any:
        before, after = source.dtype.scalar, kind.scalar
        if before == language.bfloat16 and after == language.float32:
            bits = source.data.astype(numpy.uint32) << 16
            return handle(bits.view(numpy.float32), after)
        if before == language.float32 and after == language.bfloat16:
            bits = numpy.ascontiguousarray(source.data).view(numpy.uint32)
            nearest = bits + 0x7FFF + ((bits >> 16) & 1)
            is_nan = numpy.isnan(source.data)
            kept = numpy.where(is_nan, bits | 0x400000, nearest) >> 16
            return handle(kept.astype(numpy.uint16), after)
        return cast(self, source, kind)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [
            self.cast_impl(x, language.float32) if x.dtype.scalar == language.bfloat16 else x
            for x in (a, b)
        ]
        return dot(self, *wide, *rest)

    builder.cast_impl = cast_impl
    builder.create_dot = create_dot


def _quicken() -> None:
    """Leave out what the check does not need, and what the interpreter does again at every step.

    Its check of integer overflow computes every index twice, in 64 bits: small shapes overflow
    nothing. It prepares the language anew for every call of a function; once a module is enough.
    """
    interpreter: Any = import_module("triton.runtime.interpreter")
    builder = interpreter.interpreter_builder
    options: dict[str, Any] = {**vars(builder.options), "sanitize_overflow": False}
    builder.options = type(builder.options)(**options)
    whole, of_scalar = interpreter._get_np_dtype, cache(interpreter._get_np_dtype)

    def numpy_dtype(kind: Any) -> Any:
        return whole(kind) if kind.scalar.is_ptr() else of_scalar(kind.scalar)

    interpreter._get_np_dtype = numpy_dtype
    prepared: set[int] = set()

    def call_function(self: Any, *arguments: Any, **named: Any) -> Any:
        names = self.fn.__globals__
        if id(names) not in prepared:
            prepared.add(id(names))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call_function
