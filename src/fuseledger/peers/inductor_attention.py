"""The fused attention that PyTorch's CUDA build would choose, which a CPU build cannot be asked.

`scaled_dot_product_attention` picks its kernel by asking the device. Half precision without a mask
takes flash attention, anything else the memory-efficient kernel (`aten/src/ATen/native/
transformers/cuda/sdp_utils.cpp`, release 2.13); cuDNN's, first choice for half precision on some
GPUs, reads and writes the same tensors. Only `inductor_worker` imports this.
"""

# FX is untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping
from typing import Any

from fuseledger.frontends.aten import AtenNode, Ref, Value

PACKETS = frozenset({"scaled_dot_product_attention", "kb.sdpa"})
"""Calls of PyTorch's attention; the second is a tracer's name for it."""
HALF = frozenset({"fp16", "bf16"})


def attention(
    graph: Any, node: AtenNode, given: Mapping[str, Any], known: Mapping[str, Value]
) -> Any | None:
    """The FX node of the fused kernel's result, or None where PyTorch would fuse nothing.

    `given` are the call's arguments as FX nodes, `known` the source's values by name.
    """
    torch: Any = importlib.import_module("torch")
    aten = torch.ops.aten
    dtype = node.outputs[0].dtype
    options = {
        "dropout_p": given.get("dropout_p") or 0.0,
        "is_causal": bool(given.get("is_causal")),
        "scale": given.get("scale"),
    }
    qkv = (given["query"], given["key"], given["value"])
    mask = given.get("attn_mask")
    if dtype in HALF and mask is None:
        call = aten._scaled_dot_product_flash_attention.default
        return graph.call_function(operator.getitem, (graph.call_function(call, qkv, options), 0))
    if given.get("enable_gqa"):
        return None
    if mask is not None:
        mask = _bias(graph, aten, mask, node, known, getattr(torch, _TORCH[dtype]))
    call = aten._scaled_dot_product_efficient_attention.default
    made = graph.call_function(call, (*qkv, mask, False), options)
    return graph.call_function(operator.getitem, (made, 0))


_TORCH = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def _bias(
    graph: Any, aten: Any, mask: Any, node: AtenNode, known: Mapping[str, Value], dtype: Any
) -> Any:
    """The mask as a bias of the whole score matrix; a boolean one becomes 0 and −∞."""
    query, key, reference = (node.args[name] for name in ("query", "key", "attn_mask"))
    assert isinstance(query, Ref)
    assert isinstance(key, Ref)
    assert isinstance(reference, Ref)
    if known[reference.name].dtype == "bool":
        zeros = graph.call_function(aten.zeros_like.default, (mask,), {"dtype": dtype})
        hidden = graph.call_function(aten.logical_not.default, (mask,))
        mask = graph.call_function(aten.masked_fill.Scalar, (zeros, hidden, float("-inf")))
    scores = [*known[query.name].shape[:-1], known[key.name].shape[-2]]
    return graph.call_function(aten.expand.default, (mask, scores))
