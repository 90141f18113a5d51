"""Attention of expressions and ONNX files, recognised for peers that have one call for it."""

from __future__ import annotations

import pytest

from fuseledger.frontends.source import load
from fuseledger.peers.attention import attentions


def test_an_attention_is_five_ops_and_its_operands() -> None:
    """Scores, scale, softmax's two and the weighted sum; queries are scaled by 1/√64."""
    graph = load("attention(q[2,8,512,64], k[2,8,256,64], v[2,8,256,64])")
    (found,) = attentions(graph).values()
    assert found.ops == (0, 1, 2, 3, 4)
    assert [found.query.tensor, found.key.tensor, found.value.tensor] == ["q", "k", "v"]
    assert (found.mask, found.is_causal, found.scale) == (None, False, 0.125)


def test_a_causal_square_is_causal_and_one_query_sees_all() -> None:
    """One query of a cache is allowed every key, so its mask says nothing."""
    square = load("attention(q[2,8,64,64], k[2,8,64,64], v[2,8,64,64], causal=true)")
    decode = load("attention(q[2,8,1,64], k[2,8,64,64], v[2,8,64,64], causal=true)")
    assert [call.is_causal for call in attentions(square).values()] == [True]
    assert [call.is_causal for call in attentions(decode).values()] == [False]


def test_a_causal_rectangle_is_no_call() -> None:
    """PyTorch aligns a rectangle's mask at the upper left, ours at the lower right."""
    graph = load("attention(q[2,8,64,64], k[2,8,96,64], v[2,8,96,64], causal=true)")
    assert attentions(graph) == {}


@pytest.mark.parametrize(
    ("mask", "is_bool"), [("m[512,256]", False), ("m[2,1,512,256] bool", True)]
)
def test_a_mask_is_added_or_says_where(mask: str, is_bool: bool) -> None:
    """The mask is one operand of the call, by its tensor."""
    graph = load(f"attention(q[2,8,512,64], k[2,8,256,64], v[2,8,256,64], mask={mask})")
    (found,) = attentions(graph).values()
    assert found.mask is not None
    assert (found.mask.tensor, found.is_bool) == ("m", is_bool)


def test_scores_that_are_also_a_result_are_no_call() -> None:
    """What a fused kernel would not write cannot leave the graph."""
    graph = load("s = softmax(q[8,64,64] @ k[8,64,64] / 8); y = s @ v[8,64,64]; s, y")
    assert attentions(graph) == {}
