"""ONNX Runtime's `com.microsoft` operators that exported transformers use.

No schema is registered for them: shapes follow from the lowering.
"""

from __future__ import annotations

from fuseledger.frontends.onnx_attention import (
    Masking,
    attention,
    heads_apart,
    heads_together,
    rotated,
)
from fuseledger.frontends.onnx_norm import layer_norm
from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered, X, Y
from fuseledger.graph import compose, window
from fuseledger.graph.scalar import Expr, Read, call
from fuseledger.graph.view import View


def _activation(function: str) -> Lowerer:
    """An activation of x, or of x + bias where there is one."""

    def lower(s: Site) -> View:
        body = call(function, X if s.given(1) is None else call("add", X, Y))
        return s.map("gelu", s.operands(), body, dtype=s.view().dtype)

    return lower


def _quick_gelu(s: Site) -> View:
    alpha = float(s.get("alpha", 1.702))
    body = call("mul", X, call("sigmoid", call("mul", X, alpha)))
    return s.map("quick_gelu", [s.operand(0)], body, dtype=s.view().dtype)


def _fused_matmul(s: Site) -> View:
    """alpha·A·B with the last two dimensions of either transposed."""
    if s.get("transBatchA", 0) or s.get("transBatchB", 0):
        raise Unlowered("transBatchA")
    sides: list[View] = []
    for position, name in enumerate(("transA", "transB")):
        x = s.view(position)
        rank = len(x.shape)
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        sides.append(x.transpose(swapped) if s.get(name, 0) and rank > 1 else x)
    product = compose.matmul(s.b, *sides, dtype=s.view().dtype)
    alpha = float(s.get("alpha", 1.0))
    return product if alpha == 1 else s.map("scale", [product], call("mul", X, alpha))


def _summed(s: Site, positions: tuple[int, ...]) -> View:
    """The sum of the inputs that are there, in one op."""
    args = [value for position in positions if (value := s.given(position)) is not None]
    total: Expr = X
    for slot in range(1, len(args)):
        total = call("add", total, Read(slot))
    return s.map("residual", args, total, dtype=s.view().dtype)


def _skip_layer_norm(s: Site) -> list[View | None]:
    """LayerNorm(input + skip + bias); the sum is the fourth result."""
    total = _summed(s, (0, 1, 4))
    axis = len(total.shape) - 1
    result = layer_norm(s, total, s.view(2), s.maybe(3), axis)
    return [*result, total]


def _skip_rms_norm(s: Site) -> list[View | None]:
    total = _summed(s, (0, 1, 3))
    eps = float(s.get("epsilon", 1e-5))
    return [compose.rms_norm(s.b, total, 1, s.view(2), eps), None, None, total]


def _multi_head_attention(s: Site) -> list[View | None]:
    """Separate query, key and value [b, m, h·d], a bias over all three, an additive mask."""
    heads = int(s.get("num_heads"))
    if any(s.given(i) is not None for i in (4, 6, 7, 8, 9)) or any(
        len(s.view(i).shape) != 3 for i in range(3)
    ):
        raise Unlowered("packed, padded or cached")
    parts = [s.view(i) for i in range(3)]
    bias = s.maybe(3)
    if bias is not None:
        start = 0
        for i, x in enumerate(parts):
            piece = s.b.slice(bias, 0, start, x.shape[-1])
            parts[i] = s.map("bias", [x, piece], call("add", X, Y), dtype=x.dtype)
            start += x.shape[-1]
    q, k, v = (heads_apart(s, x, heads) for x in parts)
    scale = float(s.get("scale", 0.0)) or q.shape[-1] ** -0.5
    masking = Masking(scale=scale, mask=s.maybe(5), causal=bool(s.get("unidirectional", 0)))
    return [heads_together(s, attention(s, q, k, v, masking)), k, v]


def _grouped_query_attention(s: Site) -> list[View | None]:
    """A prompt without a cache: causal attention of query heads over fewer key heads."""
    if any(s.given(i) is not None for i in (3, 4, 7, 8, 9, 10)) or s.given(1) is None:
        raise Unlowered("packed, cached or rotated inside")
    if int(s.get("local_window_size", -1)) >= 0 or s.get("do_rotary", 0):
        raise Unlowered("local_window_size")
    q = heads_apart(s, s.view(0), int(s.get("num_heads")))
    k, v = (heads_apart(s, s.view(i), int(s.get("kv_num_heads"))) for i in (1, 2))
    scale = float(s.get("scale", 0.0)) or q.shape[-1] ** -0.5
    masking = Masking(scale=scale, softcap=float(s.get("softcap", 0.0)), causal=True)
    return [heads_together(s, attention(s, q, k, v, masking)), k, v]


def _rotary_embedding(s: Site) -> View:
    """Positions come before the tables, and one position may stand for the first of many."""
    given, positions = s.view(), s.view(1)
    heads = int(s.get("num_heads", 0)) or None
    if heads is None and len(given.shape) == 3:
        heads = given.shape[-1] // (2 * s.view(2).shape[-1])
    x = heads_apart(s, given, heads)
    if positions.elements == 1 and x.shape[2] > 1:
        raise Unlowered("position_ids")
    places = s.b.reshape(positions, [positions.elements // x.shape[2], x.shape[2]])
    cos, sin = (window.take(s.b, s.view(i), places, 0) for i in (2, 3))
    result = rotated(s, x, cos, sin, interleaved=bool(s.get("interleaved", 0)))
    return heads_together(s, result) if len(given.shape) == 3 else result


CONTRIB: dict[str, Lowerer] = {
    f"com.microsoft.{name}": lower
    for name, lower in {
        "FastGelu": _activation("gelu_tanh"),
        "Gelu": _activation("gelu"),
        "BiasGelu": _activation("gelu"),
        "QuickGelu": _quick_gelu,
        "FusedMatMul": _fused_matmul,
        "SkipLayerNormalization": _skip_layer_norm,
        "SkipSimplifiedLayerNormalization": _skip_rms_norm,
        "MultiHeadAttention": _multi_head_attention,
        "GroupQueryAttention": _grouped_query_attention,
        "RotaryEmbedding": _rotary_embedding,
    }.items()
}
"""Packed, padded and cached forms of attention stay barriers."""
