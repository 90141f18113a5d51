"""Composites against PyTorch in float64."""

from __future__ import annotations

import pytest
from agreement import agree

from fuseledger.graph import compose

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch


def randn(*shape: int) -> torch.Tensor:
    """Normal float64 values, the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 5), (5, 6)),
        ((3, 4, 5), (5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((5,), (5, 6)),
        ((4, 5), (5,)),
        ((5,), (5,)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]):
    """matmul broadcasts batches and takes vectors, as NumPy's."""
    agree(compose.matmul, torch.matmul, randn(*left), randn(*right))


def test_linear_is_a_gemm_and_a_bias():
    """linear is x·Wᵀ + b, in two ops."""
    graph = agree(compose.linear, F.linear, randn(2, 3, 5), randn(4, 5), randn(4))
    assert [op.function for op in graph.ops] == ["gemm", "bias"]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int):
    """softmax is one statistic (max, Σexp) and an apply, along any dimension."""
    graph = agree(lambda b, x: compose.softmax(b, x, dim), lambda x: x.softmax(dim), randn(3, 4, 5))
    assert [op.combine for op in graph.ops] == ["max_sumexp", None]


def test_log_softmax():
    """log_softmax is x − t − ln z."""
    agree(lambda b, x: compose.softmax(b, x, 1, log=True), lambda x: x.log_softmax(1), randn(3, 4))


def test_softmax_of_one_element():
    """Along a dimension of size 1 softmax is 1."""
    agree(lambda b, x: compose.softmax(b, x, 1), lambda x: x.softmax(1), randn(3, 1, 4))


@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp(keepdim: bool):
    """logsumexp is the softmax statistic and t + ln z."""
    agree(
        lambda b, x: compose.logsumexp(b, x, [0, 2], keepdim=keepdim),
        lambda x: x.logsumexp((0, 2), keepdim=keepdim),
        randn(3, 4, 5),
    )


def test_mean():
    """mean is one op."""
    graph = agree(lambda b, x: compose.mean(b, x, [1]), lambda x: x.mean(1), randn(3, 4, 5))
    assert len(graph.ops) == 1


@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("root", [False, True])
def test_variance(correction: int, root: bool):
    """Variance and deviation come from one (mean, M2) statistic."""
    reference = torch.std if root else torch.var
    agree(
        lambda b, x: compose.variance(b, x, [1, 2], correction=correction, root=root),
        lambda x: reference(x, dim=(1, 2), correction=correction),
        randn(3, 4, 5),
    )


@pytest.mark.parametrize("dims", [1, 2])
def test_layer_norm(dims: int):
    """Layer norm over the last one or two dimensions."""
    shape = (4, 8)[-dims:]
    agree(
        lambda b, x, g, h: compose.layer_norm(b, x, dims, g, h, 1e-5),
        lambda x, g, h: F.layer_norm(x, shape, g, h, 1e-5),
        randn(3, 4, 8),
        randn(*shape),
        randn(*shape),
    )


def test_rms_norm():
    """RMS norm keeps Σx², not a mean of squares, as its statistic."""
    graph = agree(
        lambda b, x, g: compose.rms_norm(b, x, 1, g, 1e-6),
        lambda x, g: F.rms_norm(x, (8,), g, 1e-6),
        randn(3, 8),
        randn(8),
    )
    assert graph.ops[0].combine == "sum"


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(groups: int):
    """Group norm, and instance norm where every channel is a group of its own."""
    graph = agree(
        lambda b, x, g, h: compose.group_norm(b, x, groups, g, h, 1e-5),
        lambda x, g, h: F.group_norm(x, groups, g, h, 1e-5),
        randn(3, 4, 5, 6),
        randn(4),
        randn(4),
    )
    assert graph.ops[0].label == ("instance_norm" if groups == 4 else "group_norm")


def test_batch_norm_in_training():
    """Batch norm in training uses the batch's statistics."""
    agree(
        lambda b, x, g, h: compose.batch_norm(b, x, g, h, None, None, 1e-5, training=True),
        lambda x, g, h: F.batch_norm(x, None, None, g, h, True),
        randn(3, 4, 5, 6),
        randn(4),
        randn(4),
    )


def test_batch_norm_in_inference_is_affine():
    """Batch norm in inference is one pointwise op on the running statistics."""
    graph = agree(
        lambda b, x, m, v: compose.batch_norm(b, x, None, None, m, v, 1e-5, training=False),
        lambda x, m, v: F.batch_norm(x, m, v, None, None, False),
        randn(3, 4, 5),
        randn(4),
        randn(4).square(),
    )
    assert [op.function for op in graph.ops] == ["batch_norm.affine"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention(causal: bool, kv_heads: int):
    """Attention, grouped-query attention and multi-query attention, causal or not."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (t.repeat_interleave(4 // kv_heads, 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    agree(
        lambda b, q, k, v: compose.attention(b, q, k, v, causal=causal),
        reference,
        randn(2, 4, 5, 8),
        randn(2, kv_heads, 5, 8),
        randn(2, kv_heads, 5, 8),
    )


def test_causal_mask_is_lower_right():
    """With a cache of 6 and 2 new queries, the first sees 5 keys and the second 6."""
    mask = torch.tensor([[True] * 5 + [False], [True] * 6])
    agree(
        lambda b, q, k, v: compose.attention(b, q, k, v, causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        randn(1, 2, 2, 4),
        randn(1, 2, 6, 4),
        randn(1, 2, 6, 4),
    )


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_with_a_bias(heads: int):
    """An additive mask broadcasts over batch and heads, also with grouped queries."""
    agree(
        lambda b, q, k, v, m: compose.attention(b, q, k, v, mask=m),
        lambda q, k, v, m: F.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), attn_mask=m
        ),
        randn(2, 4, 5, 8),
        randn(2, 2, 6, 8),
        randn(2, 2, 6, 8),
        randn(1, heads, 5, 6),
    )


def test_rope_is_one_op():
    """RoPE reads the rotated half through an index map: one op."""

    def reference(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * c + torch.cat([-x[..., half:], x[..., :half]], -1) * s

    graph = agree(compose.rope, reference, randn(2, 3, 5, 8), randn(5, 8), randn(5, 8))
    assert len(graph.ops) == 1
