"""Contractions, attention and rotary embedding as functions of expressions."""

from __future__ import annotations

from collections.abc import Sequence

from fuseledger.frontends.expression_pointwise import X
from fuseledger.frontends.expression_syntax import Mistake
from fuseledger.frontends.expression_table import Function, Param, Scope, shape_of
from fuseledger.graph import compose
from fuseledger.graph.broadcast import broadcast_shapes, promote
from fuseledger.graph.scalar import Read, call
from fuseledger.graph.view import View


def matmul(s: Scope, x: View, y: View) -> View:
    """`x @ y`; raises Mistake, naming both shapes, where the inner sizes differ."""
    shapes = f"{shape_of(x.shape)} @ {shape_of(y.shape)}"
    if not x.shape or not y.shape:
        raise Mistake(f"{shapes}: @ needs tensors with at least one axis")
    inner = x.shape[-1], y.shape[-2 if len(y.shape) > 1 else 0]
    if inner[0] != inner[1]:
        raise Mistake(f"{shapes}: the inner sizes {inner[0]} and {inner[1]} differ")
    broadcast_shapes(f"{shapes}: batch", [x.shape[:-2], y.shape[:-2]])
    return compose.matmul(s.b, x, y, dtype=s.accumulated(promote([x.dtype, y.dtype])))


def _gemm(s: Scope, m: int, n: int, k: int, batch: int, dtype: str | None) -> View:
    lead = [batch] if batch > 1 else []
    a = s.b.input("A", [*lead, m, k], dtype or s.dtype)
    return matmul(s, a, s.b.weight("B", [*lead, k, n], dtype or s.dtype))


def _linear(s: Scope, x: View, features: int, bias: bool) -> View:
    if not x.shape:
        raise Mistake("linear needs a tensor with at least one axis")
    weight = s.weight("weight", [features, x.shape[-1]], x)
    letters = "abcdefgh"[: len(x.shape) - 1]
    dtype = s.accumulated(promote([x.dtype, weight.dtype]))
    product = s.b.contract("gemm", f"{letters}k,nk->{letters}n", [x, weight], dtype=dtype)
    if not bias:
        return product
    vector = s.weight("bias", [features], product)
    return s.b.map("bias", [product, vector], body=call("add", Read(0), Read(1)))


def _einsum(s: Scope, equation: str, operands: Sequence[View]) -> View:
    """Left to right, two operands at a time."""
    words, result = _equation(equation.replace(" ", ""), operands)
    left, view = words[0], operands[0]
    if len(words) == 1:
        return _contracted(s, [left], result, [view])
    for i, (word, operand) in enumerate(zip(words[1:], operands[1:], strict=True), start=2):
        later = "".join(words[i:]) + result
        kept = "".join(dict.fromkeys(x for x in left + word if x in later))
        kept = result if i == len(words) else kept
        view = _contracted(s, [left, word], kept, [view, operand])
        left = kept
    return view


def _equation(equation: str, operands: Sequence[View]) -> tuple[list[str], str]:
    left, arrow, result = equation.partition("->")
    words = left.split(",")
    if not arrow:
        result = "".join(x for x in sorted(set(left) - {","}) if left.count(x) == 1)
    for word in (*words, result):
        if not all(x.isascii() and x.isalpha() for x in word) or len(set(word)) != len(word):
            raise Mistake(f"'{word}' in the equation is not a run of different letters")
    if len(words) != len(operands):
        raise Mistake(f"the equation has {len(words)} operands, and {len(operands)} are given")
    sizes: dict[str, int] = {}
    for word, operand in zip(words, operands, strict=True):
        if len(word) != len(operand.shape):
            raise Mistake(f"'{word}' does not fit shape {shape_of(operand.shape)}")
        for letter, size in zip(word, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                shapes = " and ".join(shape_of(view.shape) for view in operands)
                raise Mistake(f"'{letter}' is {sizes[letter]} and {size} in shapes {shapes}")
    missing = [letter for letter in result if letter not in sizes]
    if missing:
        raise Mistake(f"'{missing[0]}' of the result is in no operand")
    return words, result


def _contracted(s: Scope, words: list[str], result: str, operands: list[View]) -> View:
    reduces = any(letter not in result for word in words for letter in word)
    name = ("gemm" if reduces else "mul") if len(words) > 1 else ("sum" if reduces else "move")
    dtype = promote([view.dtype for view in operands])
    wide = s.accumulated(dtype) if reduces else dtype
    return s.b.contract(name, f"{','.join(words)}->{result}", operands, dtype=wide)


def _attention(
    s: Scope, q: View, k: View, v: View, mask: View | None, causal: bool, scale: float | None
) -> View:
    """Ranks 2 to 4: [heads and batch,] sequence, head size; fewer key heads are shared."""
    shapes = f"q {shape_of(q.shape)}, k {shape_of(k.shape)}, v {shape_of(v.shape)}"
    rank = len(q.shape)
    if not 2 <= rank <= 4 or len(k.shape) != rank or len(v.shape) != rank:
        raise Mistake(f"attention needs three tensors [batch, heads, sequence, size]: {shapes}")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2] or k.shape[:-2] != v.shape[:-2]:
        raise Mistake(f"attention: sequence, size or heads do not agree: {shapes}")
    if (rank == 4 and q.shape[0] != k.shape[0]) or (rank > 2 and q.shape[-3] % k.shape[-3]):
        raise Mistake(f"attention: batch or heads do not agree: {shapes}")
    scores = (*q.shape[:-1], k.shape[-2])
    if mask is not None and broadcast_shapes("attention", [scores, mask.shape]) != scores:
        raise Mistake(f"attention: mask {shape_of(mask.shape)} does not fit {shape_of(scores)}")
    heads = [view.unsqueeze(0) if rank == 2 else view for view in (q, k, v)]
    result = compose.attention(
        s.b, *heads, mask=mask, causal=causal, scale=scale,
        bias_is_bool=mask is not None and mask.dtype == "bool",
    )  # fmt: skip
    return result.squeeze(0) if rank == 2 else result


def _rope(s: Scope, x: View, cos: View | None, sin: View | None) -> View:
    if len(x.shape) < 2 or x.shape[-1] % 2:
        raise Mistake(f"rope needs [.., sequence, even size], not {shape_of(x.shape)}")
    tables: list[View] = []
    for name, given in (("cos", cos), ("sin", sin)):
        table = given or s.b.tensor(name, x.shape[-2:], x.dtype, "constant")
        fits = len(table.shape) > 0 and table.shape[-1] == x.shape[-1]
        if not fits or broadcast_shapes("rope", [x.shape, table.shape]) != x.shape:
            raise Mistake(f"rope: {name} {shape_of(table.shape)} does not fit {shape_of(x.shape)}")
        tables.append(table)
    return compose.rope(s.b, x, *tables)


NETWORK: list[Function] = [
    Function(
        "gemm",
        (
            Param("m", "size"),
            Param("n", "size"),
            Param("k", "size"),
            Param("batch", "size", 1),
            Param("dtype", "dtype", None),
        ),
        _gemm,
        meaning="a new input A[m,k] times a new weight B[k,n]: sizes M, N, K as in cuBLAS",
    ),
    Function(
        "linear",
        (X, Param("features", "size"), Param("bias", "flag", False)),
        _linear,
        meaning="x · a new weight[features, last axis] transposed, and a bias",
    ),
    Function(
        "einsum",
        (Param("equation", "text"), Param("operands", "tensor", many=True)),
        _einsum,
        meaning="Σ over the letters that the result lacks; two operands at a time",
    ),
    Function(
        "attention",
        (
            Param("q", "tensor"),
            Param("k", "tensor"),
            Param("v", "tensor"),
            Param("mask", "tensor", None),
            Param("causal", "flag", False),
            Param("scale", "number", None),
        ),
        _attention,
        meaning="softmax(q·kᵀ·scale + mask)·v of [batch, heads, sequence, size]; "
        "k and v may have fewer heads; scale is 1/√size by default",
    ),
    Function(
        "rope",
        (X, Param("cos", "tensor", None), Param("sin", "tensor", None)),
        _rope,
        meaning="x·cos + rotate_half(x)·sin, with tables [sequence, size]",
    ),
]
