"""Each ATen operator: the graph's value in NumPy against PyTorch's, in float64."""

# ruff: noqa: E402, E501 -- torch is optional; a table reads best with a case a line

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: N812  its usual name
from torch_reference import Function, compared, exported, lowered

from fuseledger.devices import load as load_device
from fuseledger.frontends import torch as frontend
from fuseledger.graph.evaluate import evaluate
from fuseledger.planner.plan import make_plan

pytestmark = pytest.mark.torch

A, T = torch.ops.aten, torch


def r(*shape: int) -> Any:
    """Standard normal numbers."""
    return torch.randn(
        *shape,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(sum(shape) + len(shape)),
    )


def u(*shape: int) -> Any:
    """Numbers in (0.05, 0.95)."""
    return r(*shape).sigmoid() * 0.9 + 0.05


def i(high: int, *shape: int) -> Any:
    """Integers below `high`."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(7))


X, Y, V = r(3, 4), r(3, 4) * 2 + 0.3, r(4)
B = X > 0
I4 = r(2, 4, 7, 8)

Case = tuple[Callable[..., Any], tuple[Any, ...]]

UNARY = [
    "relu",
    "sigmoid",
    "tanh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tan",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "abs",
    "neg",
    "sign",
    "square",
    "floor",
    "ceil",
    "round",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "deg2rad",
    "rad2deg",
    "sgn",
]
POSITIVE = [
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "asin",
    "acos",
    "atanh",
    "logit",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "fmod",
    "remainder",
    "atan2",
    "floor_divide",
    "fmax",
    "fmin",
    "hypot",
    "logaddexp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "xlogy",
]
ACTIVATIONS = [
    "relu6",
    "silu",
    "mish",
    "softsign",
    "selu",
    "hardswish",
    "hardsigmoid",
    "gelu",
    "elu",
    "celu",
    "leaky_relu",
    "softplus",
    "hardtanh",
    "softshrink",
    "hardshrink",
    "logsigmoid",
    "tanhshrink",
]

CASES: dict[str, Case] = {
    **{f"{n}": (getattr(torch, n), (X,)) for n in UNARY},
    **{f"{n}": (getattr(torch, n), (u(3, 4),)) for n in POSITIVE},
    "acosh": (torch.acosh, (u(3, 4) + 1,)),
    **{f"{n}": (getattr(torch, n), (X.abs() if n == "xlogy" else X, Y.abs() if n == "xlogy" else Y)) for n in BINARY},
    **{f"{n}": (getattr(F, n), (X,)) for n in ACTIVATIONS},
    "gelu.tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "add.alpha": (lambda x, y: torch.add(x, y, alpha=2), (X, V)),
    "sub.scalar": (lambda x: x - 1.5, (X,)),
    "rsub": (lambda x: 1.5 - x, (X,)),
    "div.floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, Y)),
    "div.trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, Y)),
    "pow.2": (lambda x: x**2, (X,)), "pow.3": (lambda x: x**3, (X,)),
    "pow.half": (lambda x: x**0.5, (u(3, 4),)), "pow.tensor": (torch.pow, (u(3, 4), V)),
    "pow.scalar_base": (lambda x: 2.0**x, (X,)), "pow.rsqrt": (lambda x: x**-0.5, (u(3, 4),)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (X,)), "clamp.tensor": (torch.clamp, (X, V - 1, V + 1)),
    "clamp_min": (lambda x: x.clamp_min(0.1), (X,)), "clamp_max": (lambda x: x.clamp_max(0.1), (X,)),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), (X,)), "glu": (lambda x: F.glu(x, -1), (X,)),
    "prelu": (F.prelu, (r(2, 4, 3), V)), "where": (torch.where, (B, X, Y)),
    "where.scalar": (lambda b, x: torch.where(b, x, 0.0), (B, X)),
    "masked_fill": (lambda x, b: x.masked_fill(b, 3.0), (X, B)),
    "addcmul": (lambda x, y, v: torch.addcmul(x, y, v, value=2), (X, Y, V)),
    "addcdiv": (lambda x, y, v: torch.addcdiv(x, y, v, value=2), (X, Y, V)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)), "lerp.tensor": (torch.lerp, (X, Y, V)),
    "bitwise_and": (torch.bitwise_and, (B, Y > 0)), "bitwise_or": (torch.bitwise_or, (B, Y > 0)),
    "bitwise_not": (torch.bitwise_not, (B,)), "bitwise_xor": (torch.bitwise_xor, (B, Y > 0)),
    "bitwise_and.int": (torch.bitwise_and, (i(9, 5), i(7, 5))),
    "and.int": (lambda x, y: (x & y) | (y ^ 3), (i(9, 5), i(7, 5))),
    "norm.fro": (lambda x: x.norm("fro"), (X,)), "linalg_norm": (torch.linalg.norm, (X,)),
    "dropout.feature": (lambda x: F.dropout2d(x, 1.0, True), (I4,)), "dropout.all": (lambda x: F.dropout(x, 1.0, True), (X,)),
    "shift": (lambda x: (x << 2) >> 1, (i(9, 5),)), "bitwise_not.int": (torch.bitwise_not, (i(9, 5),)),
    "to.int": (lambda x: x.to(torch.int64) + 1, (X * 3,)), "to.bool": (lambda x: x.bool(), (i(2, 3, 4),)),
    "type_as": (lambda x, n: n.type_as(x) * 2, (X, i(5, 4))),
    "tril": (lambda x: x.tril(-1), (r(5, 4),)), "triu": (lambda x: x.triu(1), (r(2, 4, 5),)),
    "tril.constant": (lambda x: x.masked_fill(torch.tril(torch.ones(4, 4)) == 0, -1.0), (r(4, 4),)),
    "zeros_like": (lambda x: torch.zeros_like(x) + x, (X,)),
    "full": (lambda x: x * torch.full((4,), 2.5), (X,)), "ones": (lambda x: x + torch.ones(3, 4), (X,)),
    "arange": (lambda x: x + torch.arange(4), (X,)), "eye": (lambda x: x @ torch.eye(4, dtype=x.dtype), (X,)),
    "linspace": (lambda x: x + torch.linspace(0, 1, 4), (X,)),
    "scalar_tensor": (lambda x: x * torch.tensor(2.0), (X,)),
    # reductions
    "sum": (lambda x: x.sum(), (X,)), "sum.dim": (lambda x: x.sum(-1, keepdim=True), (X,)),
    "sum.dims": (lambda x: x.sum((0, 2)), (r(2, 3, 4),)), "sum.bool": (lambda b: b.sum(0), (B,)),
    "mean": (lambda x: x.mean(), (X,)), "mean.dim": (lambda x: x.mean((1, 2)), (r(2, 3, 4),)),
    "prod": (lambda x: x.prod(), (X,)), "prod.dim": (lambda x: x.prod(1), (X,)),
    "amax": (lambda x: x.amax((0, 1)), (r(2, 3, 4),)), "amin": (lambda x: x.amin(1, True), (X,)),
    "max": (lambda x: x.max(), (X,)), "max.values": (lambda x: x.max(1).values, (X,)),
    "max.dim": (lambda x: tuple(x.max(1)), (X,)), "min.dim": (lambda x: tuple(x.min(0, keepdim=True)), (X,)),
    "argmax": (lambda x: x.argmax(1), (X,)), "argmin": (lambda x: x.argmin(0, keepdim=True), (X,)),
    "argmax.all": (lambda x: x.argmax(), (X,)), "any": (lambda b: b.any(1), (B,)),
    "all": (lambda b: b.all(), (B,)), "var": (lambda x: x.var(1), (X,)), "std": (lambda x: x.std(), (X,)),
    "var.correction": (lambda x: x.var(1, correction=0, keepdim=True), (X,)),
    "var_mean": (lambda x: tuple(torch.var_mean(x, 1)), (X,)),
    "std_mean": (lambda x: tuple(torch.std_mean(x, 1, correction=0)), (X,)),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, 2, 1), (X,)),
    "norm.1": (lambda x: torch.linalg.vector_norm(x, 1, 1), (X,)),
    "norm.inf": (lambda x: torch.linalg.vector_norm(x, float("inf"), 1, True), (X,)),
    "norm.3": (lambda x: torch.linalg.vector_norm(x, 3, 1), (X,)), "norm": (lambda x: x.norm(), (X,)),
    "normalize": (lambda x: F.normalize(x, dim=1), (X,)),
    "cumsum": (lambda x: x.cumsum(1), (X,)), "cumprod": (lambda x: x.cumprod(0), (X,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X,)), "softmax": (lambda x: x.softmax(1), (r(2, 3, 4),)),
    "log_softmax": (lambda x: x.log_softmax(-1), (X,)), "count_nonzero": (lambda b: b.count_nonzero(1), (B,)),
    "softmax.one": (lambda x: x.softmax(1), (r(3, 1),)), "sum.one": (lambda x: x.sum(1), (r(3, 1),)),
    "layer_norm.one": (lambda x: F.layer_norm(x, (1,)), (r(3, 1),)),
    # shapes
    "view": (lambda x: x.view(2, 6) * 1, (X,)), "reshape.move": (lambda x: x.t().reshape(3, 4) + 1, (X,)),
    "flatten": (lambda x: x.flatten(1) + 1, (I4,)), "unflatten": (lambda x: x.unflatten(1, (2, 2)) + 1, (X,)),
    "permute": (lambda x: x.permute(2, 0, 1) + 1, (r(2, 3, 4),)), "transpose": (lambda x: x.transpose(0, -1) + 1, (r(2, 3, 4),)),
    "t": (lambda x: x.t() * 1, (X,)), "mT": (lambda x: x.mT + 1, (r(2, 3, 4),)), "movedim": (lambda x: x.movedim(0, 2) + 1, (r(2, 3, 4),)),
    "squeeze": (lambda x: x.squeeze() + 1, (r(1, 3, 1),)), "squeeze.dim": (lambda x: x.squeeze(0) + 1, (r(1, 3, 1),)),
    "unsqueeze": (lambda x: x.unsqueeze(-1) + V, (X,)), "expand": (lambda x: x.expand(3, 4) + 1, (V,)),
    "expand_as": (lambda v, x: v.expand_as(x) * x, (V, X)), "select": (lambda x: x[:, 1] + x.select(1, -1), (X,)),
    "slice": (lambda x: x[1:, ::2] + 1, (X,)), "slice.negative": (lambda x: x[-2:, :-1] + 1, (X,)),
    "narrow": (lambda x: x.narrow(1, 1, 2) + 1, (X,)), "split": (lambda x: [p + 1 for p in x.split(3, 1)], (X,)),
    "split_sizes": (lambda x: [p + 1 for p in x.split([1, 3], 1)], (X,)),
    "chunk": (lambda x: [p + 1 for p in x.chunk(2, 1)], (X,)), "unbind": (lambda x: [p + 1 for p in x.unbind(0)], (X,)),
    "flip": (lambda x: x.flip((0, 1)) + 1, (X,)), "repeat": (lambda x: x.repeat(2, 3) + 1, (X,)),
    "tile": (lambda x: x.tile(2) + 1, (X,)), "repeat_interleave": (lambda x: x.repeat_interleave(2, 1) + 1, (X,)),
    "unfold": (lambda x: x.unfold(1, 3, 2) + 1, (r(2, 9),)), "diagonal": (lambda x: x.diagonal(1) + 1, (r(4, 4),)),
    "roll": (lambda x: x.roll((1, -1), (0, 1)) + 1, (X,)), "cat": (lambda x, y: torch.cat([x, y, x], 1), (X, Y)),
    "cat.constant": (lambda x: torch.cat([torch.zeros(3, 2), x, torch.ones(3, 1)], 1), (X,)),
    "cat.mixed": (lambda x, n: torch.cat([x, n], 0), (X, i(5, 2, 4))),
    "stack": (lambda x, y: torch.stack([x, y], 1), (X, Y)), "clone": (lambda x: x.clone().contiguous() + 1, (X,)),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), (X, r(3, 2))),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 1), (X, V)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), (X,)), "pad.crop": (lambda x: F.pad(x, (-1, 2)), (X,)),
    "pad.reflect": (lambda x: F.pad(x, (2, 1, 1, 2), "reflect"), (I4,)),
    "pad.replicate": (lambda x: F.pad(x, (2, 1, 1, 2), "replicate"), (I4,)),
    "pad.circular": (lambda x: F.pad(x, (2, 1, 1, 2), "circular"), (I4,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2) + 1, (I4,)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2) + 1, (r(1, 2, 4, 6),)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2) + 1, (I4,)),
    "upsample_nearest": (lambda x: F.interpolate(x, scale_factor=2) + 1, (I4,)),
    "diag": (lambda v: torch.diag(v) + 1, (V,)), "diag.matrix": (lambda x: torch.diag(x) + 1, (r(4, 4),)),
    "diag_embed": (lambda x: torch.diag_embed(x, 1), (X,)), "diag_embed.below": (lambda x: torch.diag_embed(x, -2), (X,)),
    "im2col": (lambda x: F.unfold(x, 3, 2, 1, 2), (I4,)), "native_channel_shuffle": (lambda x: torch.native_channel_shuffle(x, 2) + 1, (I4,)),
    # windows over a dimension of one element
    "pad.one": (lambda x: F.pad(x, (1, 2), value=0.5), (r(3, 1),)),
    "conv2d.one": (lambda x, w: F.conv2d(x, w, None, 1, 1), (r(2, 3, 1, 1), r(4, 3, 3, 3))),
    "conv2d.wide_one": (lambda x, w: F.conv2d(x, w, None, 1, 2), (r(2, 3, 1, 1), r(4, 3, 3, 3))),
    "conv_transpose2d.one": (lambda x, w: F.conv_transpose2d(x, w, None, 2, 1), (r(2, 3, 1, 1), r(3, 4, 3, 3))),
    "max_pool2d.one": (lambda x: F.max_pool2d(x, 3, 2, 1), (r(2, 3, 1, 4),)),
    "avg_pool2d.one": (lambda x: F.avg_pool2d(x, 3, 2, 1), (r(2, 3, 1, 4),)),
    # lookups
    "embedding": (lambda n, w: F.embedding(n, w), (i(5, 2, 3), r(5, 4))),
    "index_select": (lambda x, n: x.index_select(1, n), (X, i(4, 5))),
    "gather": (lambda x, n: x.gather(1, n), (X, i(4, 3, 2))), "index": (lambda x, n: x[n], (X, i(3, 5))),
    "index.two": (lambda x, n, m: x[n, m], (X, i(3, 5), i(4, 5))),
    "index.inner": (lambda x, n: x[:, n], (r(2, 5, 3), i(5, 2, 2))),
    "index.apart": (lambda x, n: x[n, :, n], (r(4, 3, 4), i(4, 5))),
    "index.broadcast": (lambda x, n, m: x[n[:, None], m], (X, i(3, 5), i(4, 2))),
    "one_hot": (lambda n: F.one_hot(n, 5), (i(5, 3),)),
    # contractions
    "mm": (torch.mm, (X, r(4, 5))), "bmm": (torch.bmm, (r(2, 3, 4), r(2, 4, 5))),
    "matmul": (torch.matmul, (r(2, 1, 3, 4), r(5, 4, 2))), "mv": (torch.mv, (X, V)), "dot": (torch.dot, (V, V + 1)),
    "addmm": (lambda c, x, y: torch.addmm(c, x, y, beta=2, alpha=3), (r(5), X, r(4, 5))),
    "baddbmm": (torch.baddbmm, (r(2, 3, 5), r(2, 3, 4), r(2, 4, 5))),
    "baddbmm.0": (lambda c, x, y: torch.baddbmm(c, x, y, beta=0), (r(2, 3, 5), r(2, 3, 4), r(2, 4, 5))),
    "linear": (F.linear, (r(2, 3, 4), r(5, 4), r(5))), "outer": (torch.outer, (V, r(3))),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (r(2, 3, 4), r(2, 5, 4))),
    "einsum.3": (lambda x, y, z: torch.einsum("ij,jk,kl->il", x, y, z), (X, r(4, 5), r(5, 2))),
    "einsum.dots": (lambda x, y: torch.einsum("...j,jk->...k", x, y), (r(2, 3, 4), r(4, 5))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), (r(2, 3, 9), r(4, 3, 3), r(4))),
    "conv2d": (lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 2), (I4, r(6, 2, 3, 3))),
    "conv2d.same": (lambda x, w: F.conv2d(x, w, padding="same"), (I4, r(6, 4, 4, 3))),
    "conv3d": (F.conv3d, (r(1, 2, 4, 5, 6), r(3, 2, 2, 3, 3))),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 1), (r(2, 3, 5), r(3, 4, 3))),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), (I4, r(4, 3, 3, 3), r(3))),
    "conv2d.unbatched": (F.conv2d, (I4[0], r(6, 4, 3, 3), r(6))),
    # pools
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), (r(2, 3, 9),)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (I4,)), "max_pool3d": (lambda x: F.max_pool3d(x, 2), (r(1, 2, 4, 4, 4),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (r(2, 3, 9),)), "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (I4,)),
    "avg_pool2d.divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (I4,)), "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (r(1, 2, 4, 4, 4),)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), (r(2, 3, 8),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), (I4,)), "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (7, 2)), (I4,)),
    # norms and losses
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (r(2, 3, 4), V, V + 1)),
    "layer_norm.2": (lambda x: F.layer_norm(x, (3, 4)), (r(2, 3, 4),)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w, 1e-5), (r(2, 3, 4), V)), "rms_norm.eps": (lambda x: F.rms_norm(x, (4,)), (r(2, 3, 4),)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (I4, V, V + 1)),
    "batch_norm.train": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (I4, V, V + 1)),
    "batch_norm": (lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), (I4, V, u(4), V, V + 1)),
    "instance_norm": (lambda x: F.instance_norm(x), (I4,)),
    "mse_loss": (F.mse_loss, (X, Y)), "l1_loss": (F.l1_loss, (X, Y)), "smooth_l1": (F.smooth_l1_loss, (X, Y)),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.7), (X, Y)), "bce": (F.binary_cross_entropy, (u(3, 4), u(4, 3).t())),
    "bce_logits": (F.binary_cross_entropy_with_logits, (X, u(3, 4))), "kl_div": (lambda x, y: F.kl_div(x, y, reduction="sum"), (X, u(3, 4))),
    "cross_entropy": (F.cross_entropy, (r(5, 7), i(7, 5))), "cross_entropy.2d": (F.cross_entropy, (r(2, 7, 3), i(7, 2, 3))),
    "cross_entropy.ignore": (lambda x, n: F.cross_entropy(x, n, ignore_index=2), (r(5, 7), i(7, 5))),
    "nll": (lambda x, n: F.nll_loss(x, n, reduction="sum"), (r(5, 7), i(7, 5))),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y), (X, Y)), "pairwise_distance": (F.pairwise_distance, (X, Y)),
    "triplet": (F.triplet_margin_loss, (X, Y, X * 3)), "hinge_embedding": (F.hinge_embedding_loss, (X, X.sign())),
    # attention
    "sdpa": (F.scaled_dot_product_attention, (r(2, 3, 5, 4), r(2, 3, 6, 4), r(2, 3, 6, 4))),
    "sdpa.causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (r(2, 3, 5, 4), r(2, 3, 5, 4), r(2, 3, 5, 4))),
    "sdpa.causal_long": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (r(2, 3, 5, 4), r(2, 3, 6, 4), r(2, 3, 6, 4))),
    "sdpa.mask": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (r(2, 3, 5, 4), r(5, 5) < 1)),
    "sdpa.bias": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m, scale=0.3), (r(2, 3, 5, 4), r(2, 1, 5, 5))),
    "sdpa.gqa": (lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m, enable_gqa=True), (r(2, 6, 5, 4), r(2, 3, 5, 4), r(2, 6, 5, 5))),
    "sdpa.3d": (F.scaled_dot_product_attention, (r(3, 5, 4), r(3, 6, 4), r(3, 6, 4))),
    "sdpa.one_key": (F.scaled_dot_product_attention, (r(2, 3, 1, 4), r(2, 3, 1, 4), r(2, 3, 1, 4))),
    # computed positions
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (r(2, 3, 5, 6), r(2, 3, 4, 2))),
    "grid_sample.nearest": (lambda x, g: F.grid_sample(x, g, "nearest", "reflection", True), (r(2, 3, 5, 6), r(2, 3, 4, 2))),
    "affine_grid": (lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=False), (r(2, 2, 3),)),
    "fold": (lambda x: F.fold(x, (7, 8), (2, 3), padding=1, stride=2), (r(2, 12, 16),)),
    "dropout.eval": (lambda x: F.dropout(x, 0.5, False) + 1, (X,)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_operator_has_torch_value(case: str) -> None:
    """The operator lowers without a barrier to a graph of the same value."""
    function, inputs = CASES[case]
    graph = compared(Function(function), inputs, program=_program(case))
    assert not graph.barriers


@cache
def _program(case: str) -> Any:
    """The exported program of a case."""
    function, inputs = CASES[case]
    return exported(Function(function), inputs)


NOT_COMPUTING = {"_assert_tensor_metadata", "detach_", "lift_fresh_copy"}
"""Operators that exporting adds and that compute nothing."""


def test_the_sweep_covers_230_aten_operators() -> None:
    """The cases' programs call 230 different operators that compute something, overloads as one."""
    programs = [frontend.read_program(_program(case), name=case, source=case) for case in CASES]
    packets = {node.packet for program in programs for node in program.nodes}
    assert len(packets - NOT_COMPUTING) >= 230


def _in_place(x: Any, v: Any) -> Any:
    y = x.clone()
    row, block = y[1], y[:, 1:3]
    row.mul_(2).add_(v)
    block.relu_()
    y.t()[0].fill_(5.0)
    y.view(-1)[0:2].copy_(v[:2])
    return y, row, block + 1


def test_writes_through_views_reach_every_alias() -> None:
    """A write through a view changes its base and every other view of it."""
    compared(Function(_in_place), (X, V))


def test_writes_into_a_diagonal_reach_the_matrix() -> None:
    """A diagonal written in place changes the matrix."""

    def written(x: Any, v: Any) -> Any:
        y = x.clone()
        y.diagonal().mul_(v)
        return y

    compared(Function(written), (r(4, 4), V))


def test_constants_written_in_place_stay_weights() -> None:
    """A mask that is filled part by part is one weight and no op."""

    def masked(x: Any) -> Any:
        mask = torch.zeros(4, 4)
        mask[:2, 2:] = 1
        mask[2:, :2] = 2
        return x * mask

    graph = frontend.from_module(Function(masked), (r(4, 4),))
    assert [(op.function, len(op.reads)) for op in graph.ops] == [("mul", 2)]


def test_ops_that_depend_on_no_input_are_weights() -> None:
    """A mask computed from constants alone is one weight and no op."""

    def masked(x: Any) -> Any:
        row, column = torch.arange(4)[:, None], torch.arange(4)[None]
        return x.masked_fill((column > row) | (column < row - 2), 0.0)

    graph = compared(Function(masked), (r(4, 4),))
    assert [op.function for op in graph.ops] == ["masked_fill"]
    assert sorted(t.role for t in graph.tensors.values()) == ["input", "output", "weight"]


class Quantised(torch.nn.Module):
    """A linear layer whose weight is stored in 8 bits, two values in each or one."""

    def __init__(self, columns: int, *, two: bool) -> None:
        super().__init__()
        dtype = torch.uint8 if two else torch.int8
        self.register_buffer("w", torch.zeros(8, columns // (1 + two), dtype=dtype))
        self.two = two

    def forward(self, x: Any) -> Any:
        """x times the weight, widened."""
        w: Any = self.w.mT.contiguous().mT
        if self.two:
            w = torch.stack([w & 15, w >> 4], -1).reshape(8, -1)
        return F.linear(x, w.to(x.dtype))


@pytest.mark.parametrize(
    ("two", "functions"),
    [
        (False, ["cast", "gemm"]),
        (True, ["bitwise_and", "shift_right", "concat", "cast", "gemm"]),
    ],
)
def test_quantised_weights_are_read_narrow(two: bool, functions: list[str]) -> None:
    """Of 8 rows and 16 columns, 128 bytes are read in 8 bits a weight and 64 in 4, in whatever
    order they are stored; widening them is an op."""
    graph, _ = lowered(Quantised(16, two=two), (torch.zeros(4, 16),))
    assert [op.function for op in graph.ops] == functions
    (weight,) = [t for t in graph.tensors.values() if t.role == "weight"]
    assert weight.bytes == 128 // (1 + two)


def test_dropout_draws_inside_its_op() -> None:
    """Dropout in training is one op that reads its input alone."""
    graph, _ = lowered(Function(lambda x: F.dropout(x, 0.5, True)), (X,))
    assert [(op.function, len(op.reads)) for op in graph.ops] == [("dropout", 1)]


def test_unknown_operator_is_a_barrier() -> None:
    """An operator without a lowering is a named barrier, and the rest is lowered."""
    graph, _ = lowered(Function(lambda x: torch.sort(x.relu(), 1).values + 1), (X,))
    assert graph.barriers == {"aten.sort": 1}
    assert [op.function for op in graph.ops] == ["relu", "aten.sort", "add"]


@pytest.mark.parametrize(
    ("left", "right", "flops"),
    [
        ((8, 16), (2, 16, 24), 2 * 8 * 16 * 24),
        ((2, 8, 16), (16, 24), 2 * 8 * 16 * 24),
        ((2, 8, 16), (2, 16, 24), 2 * 2 * 8 * 16 * 24),
        ((8, 16), (16, 24), 2 * 8 * 16 * 24),
    ],
)
def test_a_grouped_product_is_a_barrier_that_tells_its_work(
    left: tuple[int, ...], right: tuple[int, ...], flops: int
) -> None:
    """Runs of rows, of columns, a matrix each, and runs of the sum: two operations a product, and
    weights that are stored transposed are read as they are."""
    ends = None if len(left) == len(right) == 3 else torch.tensor([8, 16], dtype=torch.int32)
    weight = torch.zeros(right, dtype=torch.bfloat16).mT.contiguous()
    given = (torch.zeros(left, dtype=torch.bfloat16), weight)
    graph, _ = lowered(Function(lambda a, b: T._grouped_mm(a, b.mT, offs=ends)), given)
    (op,) = graph.ops
    assert op.is_opaque
    assert op.flops == flops
    ledger = make_plan(graph, load_device("h100-sxm")).kernels[0]
    assert ledger.price.flops == {"matrix:bf16": flops}


FP8 = torch.float8_e4m3fn


def _scaled(a: Any, b: Any, s: Any, t: Any, bias: Any = None) -> Any:
    return T._scaled_mm(a, b.mT, s, t, bias, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("shapes", [((), ()), ((8, 1), (1, 24))])
@pytest.mark.parametrize("bias", [False, True])
def test_a_scaled_product_of_fp8_is_a_gemm_and_its_scales(
    shapes: tuple[tuple[int, ...], ...], bias: bool
) -> None:
    """Scales of the whole or of each row and column: (a·b)·s·t and a bias, with values of 1, 2, 3
    and 4 to the digit."""
    given = [torch.full((8, 16), 1.0).to(FP8), torch.full((24, 16), 2.0).to(FP8)]
    given += [torch.full(shape, value) for shape, value in zip(shapes, (3.0, 4.0), strict=True)]
    given += [torch.full((24,), 5.0, dtype=torch.bfloat16)] if bias else []
    graph = frontend.from_module(Function(_scaled), tuple(given))
    assert [op.function for op in graph.ops] == ["gemm", "scale", *(["bias"] if bias else [])]
    values = [tensor.to(torch.float64).numpy() for tensor in given]
    names = [name for name, tensor in graph.tensors.items() if tensor.is_external]
    found = evaluate(graph, dict(zip(names, values, strict=True)))[graph.results[0].name]
    assert found.shape == (8, 24)
    assert set(found.flat) == {16 * 1 * 2 * 3 * 4 + 5 * bias}


def test_a_product_with_scales_of_blocks_is_a_barrier_that_tells_its_work() -> None:
    """Scales of 128 of a row, and of 128×128 columns: two operations a product."""
    given = torch.zeros(128, 256).to(FP8), torch.zeros(384, 256).to(FP8)
    scales = torch.ones(128, 2), torch.ones(2, 3)
    graph = frontend.from_module(Function(_scaled), (*given, *scales))
    (op,) = graph.ops
    assert op.is_opaque
    assert op.flops == 2 * 128 * 256 * 384


def test_read_pool_indices_make_a_barrier() -> None:
    """A max pool whose indices are read is a barrier; unread indices vanish."""
    both, _ = lowered(Function(lambda x: F.max_pool2d(x, 2, return_indices=True)), (I4,))
    assert both.barriers == {"aten.max_pool2d_with_indices": 1}
    one, _ = lowered(Function(lambda x: F.max_pool2d(x, 2, return_indices=True)[0]), (I4,))
    assert not one.barriers


def test_arguments_outside_a_lowering_are_barriers() -> None:
    """A matrix norm and rounding to decimals are barriers, not their simpler namesakes."""
    for function in (lambda x: torch.linalg.norm(x, 2), lambda x: torch.round(x, decimals=1)):
        assert lowered(Function(function), (X,))[0].barriers
