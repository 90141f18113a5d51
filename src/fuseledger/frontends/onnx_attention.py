"""ONNX Attention and RotaryEmbedding."""

from __future__ import annotations

from msgspec import Struct

from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered
from fuseledger.graph import compose, window
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call
from fuseledger.graph.view import View


class Masking(Struct, frozen=True, kw_only=True):
    """What is done to the scores before the softmax."""

    scale: float
    softcap: float = 0.0
    """cap·tanh(score/cap) where it is not 0."""
    mask: View | None = None
    """Added to the scores, or, if boolean, true where attention is allowed."""
    causal: bool = False
    past: int = 0
    """Keys before the first query."""
    left: int = -1
    """Keys that a query sees before itself; −1 for all."""
    right: int = -1


def attention(s: Site, q: View, k: View, v: View, masking: Masking) -> View:
    """softmax(mask(q·kᵀ))·v for q [b,h,m,d], k and v [b,g,n,d]; g divides h."""
    batch, heads, m, d = q.shape
    groups = k.shape[1]
    with s.b.labelled("attention"):
        q = s.b.reshape(q, [batch, groups, heads // groups, m, d])
        k, v = k.unsqueeze(2), v.unsqueeze(2)
        scores = s.b.contract("gemm.qk", "bgrmd,bgrnd->bgrmn", [q, k], dtype=s.dtype)
        masked = _masked(s, scores, masking)
        weights = compose.softmax(s.b, masked, -1, dtype=s.dtype)
        result = s.b.contract("gemm.pv", "bgrmn,bgrne->bgrme", [weights, v], dtype=s.dtype)
        return s.b.reshape(result, [batch, heads, m, v.shape[-1]])


def _masked(s: Site, scores: View, masking: Masking) -> View:
    """One op: scale, soft cap, mask, causal and window limits as functions of (m, n)."""
    letters, out = dim_letters(scores.shape)
    body: Expr = call("mul", Read(0), masking.scale)
    if masking.softcap:
        capped = call("tanh", call("mul", body, 1.0 / masking.softcap))
        body = call("mul", capped, masking.softcap)
    reads = [Operand(scores, tuple(out))]
    if masking.mask is not None:
        mask = _grouped(s, masking.mask, scores.shape)
        where: tuple[Where, ...] = tuple(
            x if size != 1 else None for x, size in zip(out, mask.shape, strict=True)
        )
        reads.append(Operand(mask, where))
        is_bool = mask.dtype == "bool"
        body = (
            call("where", Read(1), body, float("-inf")) if is_bool else call("add", body, Read(1))
        )
    row, column = (Coord(letter) if letter else Const(0.0) for letter in out[-2:])
    here = call("add", row, masking.past)
    limits = [("le", 0)] if masking.causal else []
    limits += [("le", masking.right)] if masking.right >= 0 else []
    limits += [("ge", -masking.left)] if masking.left >= 0 else []
    for comparison, reach in limits:
        allowed = call(comparison, column, call("add", here, reach))
        body = call("where", allowed, body, float("-inf"))
    return s.b.loop("scale_mask", letters, reads, out, body, dtypes=[scores.dtype])[0]


def _grouped(s: Site, mask: View, shape: tuple[int, ...]) -> View:
    """A mask of up to four dimensions with its head dimension split as the scores have it."""
    _, groups, repeat, _, n = shape
    if mask.shape[-1] != n:
        raise Unlowered("attn_mask")
    full = [1] * (4 - len(mask.shape)) + list(mask.shape)
    head = [1, 1] if full[1] == 1 else [groups, repeat]
    return s.b.reshape(mask, [full[0], *head, *full[2:]])


def heads_apart(s: Site, x: View, heads: int | None) -> View:
    """[b, m, h·d] as [b, h, m, d]; four dimensions stay as they are."""
    if len(x.shape) == 4:
        return x
    if not heads:
        raise Unlowered("num_heads")
    batch, length, hidden = x.shape
    return s.b.reshape(x, [batch, length, heads, hidden // heads]).transpose([0, 2, 1, 3])


def heads_together(s: Site, x: View) -> View:
    """[b, h, m, d] as [b, m, h·d]."""
    batch, heads, m, d = x.shape
    return s.b.reshape(x.transpose([0, 2, 1, 3]), [batch, m, heads * d])


def _attention(s: Site) -> list[View | None]:
    """(Y, present_key, present_value); the scores are no result of a fused attention."""
    q = heads_apart(s, s.view(0), s.get("q_num_heads"))
    k, v = (heads_apart(s, s.view(i), s.get("kv_num_heads")) for i in (1, 2))
    if s.is_read(3) or s.given(6) is not None:
        raise Unlowered("qk_matmul_output")
    past_key, past_value = s.maybe(4), s.maybe(5)
    past = past_key.shape[2] if past_key is not None else 0
    if past_key is not None and past_value is not None:
        k, v = window.concat(s.b, [past_key, k], 2), window.concat(s.b, [past_value, v], 2)
    masking = Masking(
        scale=float(s.get("scale", q.shape[-1] ** -0.5)), softcap=float(s.get("softcap", 0.0)),
        mask=s.maybe(3), causal=bool(s.get("is_causal", 0)), past=past,
        left=int(s.get("left_window_size", -1)), right=int(s.get("right_window_size", -1)),
    )  # fmt: skip
    result = attention(s, q, k, v, masking)
    return [heads_together(s, result) if len(s.view(0).shape) == 3 else result, k, v]


# -- rotary embedding ------------------------------------------------------------------------------


def rotated(s: Site, x: View, cos: View, sin: View, *, interleaved: bool) -> View:
    """x [b, h, m, d] turned by tables [b or 1, m, r/2]; what is beyond r stays.

    (x₁, x₂) → (x₁·cos − x₂·sin, x₂·cos + x₁·sin), the partner read through an index map.
    """
    batch, heads, m, d = x.shape
    half = cos.shape[-1]
    turned = s.b.slice(x, 3, 0, 2 * half)
    pair = 4 if interleaved else 3
    split = [batch, heads, m, half, 2] if interleaved else [batch, heads, m, 2, half]
    pairs = s.b.reshape(turned, split)
    swapped = pairs.flip(pair)
    if swapped is None:
        swapped = s.b.move(pairs).flip(pair)
    assert swapped is not None  # a stored tensor's dimension is one atom
    letters, out = dim_letters(split)
    sign = call("sub", call("mul", Coord(f"d{pair}"), 2.0), 1.0)
    partner = call("mul", call("mul", Read(1), sign), Read(3))
    body = call("add", call("mul", Read(0), Read(2)), partner)
    place = 3 if interleaved else 4
    lead = out[0] if cos.shape[0] != 1 else None
    where: tuple[Where, ...] = (lead, out[2], out[place])
    reads = [Operand(v, tuple(out)) for v in (pairs, swapped)] + [
        Operand(t, where) for t in (cos, sin)
    ]
    with s.b.labelled("rope"):
        (result,) = s.b.loop("rope", letters, reads, out, body, dtypes=[x.dtype])
        whole = s.b.reshape(result, [batch, heads, m, 2 * half])
        if 2 * half == d:
            return whole
        return window.concat(s.b, [whole, s.b.slice(x, 3, 2 * half, d - 2 * half)], 3)


def _rotary_embedding(s: Site) -> View:
    given = s.view()
    x = heads_apart(s, given, s.get("num_heads"))
    tables = [s.view(1), s.view(2)]
    positions = s.maybe(3)
    if positions is not None:
        tables = [window.take(s.b, table, positions, 0) for table in tables]
    cos, sin = tables
    result = rotated(s, x, cos, sin, interleaved=bool(s.get("interleaved", 0)))
    return heads_together(s, result) if len(given.shape) == 3 else result


ATTENTION: dict[str, Lowerer] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary_embedding,
}
