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

from fuseledger.frontends.aten_graph import AtenNode, Ref, Value
from fuseledger.graph.graph import Graph
from fuseledger.peers.attention import Attention

PACKETS = frozenset({"scaled_dot_product_attention", "kb.sdpa"})
"""Calls of PyTorch's attention; the second is a tracer's name for it."""
LONG_NAMES = {"q": "query", "k": "key", "v": "value"}
"""The tracer's names of the operands → ATen's."""
HALF = frozenset({"fp16", "bf16"})


def attention(
    graph: Any, node: AtenNode, given: Mapping[str, Any], known: Mapping[str, Value]
) -> Any | None:
    """The FX node of the fused kernel's result, or None where PyTorch would fuse nothing.

    `given` are the call's arguments as FX nodes, `known` the source's values by name.
    """
    torch: Any = importlib.import_module("torch")
    aten = torch.ops.aten
    given = {LONG_NAMES.get(name, name): value for name, value in given.items()}
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


def is_fused(graph: Graph, call: Attention) -> bool:
    """Whether PyTorch has one kernel for the attention; a kernel with groups takes no mask."""
    first = graph.ops[call.ops[0]]
    alone = set(call.query.axes) - set(call.key.axes)
    grouped = len(alone & set(first.kept)) > 1
    dtype = graph.tensors[call.query.tensor].dtype
    lead = set(call.query.axes) & set(call.key.axes) & set(first.kept)
    return (dtype in HALF and call.mask is None) or (
        dtype in _TORCH and not grouped and len(lead) <= 2
    )


def fused_call(qkv: tuple[Any, Any, Any], mask: Any, call: Attention, dtype: str) -> Any:
    """The same kernels' call for an attention of our own graph, on FX proxies; result first."""
    torch: Any = importlib.import_module("torch")
    aten = torch.ops.aten
    options = {"dropout_p": 0.0, "is_causal": call.is_causal, "scale": call.scale}
    if dtype in HALF and mask is None:
        return aten._scaled_dot_product_flash_attention.default(*qkv, **options)
    if mask is not None:
        if call.is_bool:
            zeros = torch.zeros_like(mask, dtype=getattr(torch, _TORCH[dtype]))
            mask = zeros.masked_fill(torch.logical_not(mask), float("-inf"))
        query, key, _ = qkv
        mask = mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    return aten._scaled_dot_product_efficient_attention.default(*qkv, mask, False, **options)


_TORCH = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def _bias(
    graph: Any, aten: Any, mask: Any, node: AtenNode, known: Mapping[str, Value], dtype: Any
) -> Any:
    """The mask as a bias of the whole score matrix; a boolean one becomes 0 and −∞."""
    args = {LONG_NAMES.get(name, name): arg for name, arg in node.args.items()}
    query, key, reference = (args[name] for name in ("query", "key", "attn_mask"))
    assert isinstance(query, Ref)
    assert isinstance(key, Ref)
    assert isinstance(reference, Ref)
    if known[reference.name].dtype == "bool":
        zeros = graph.call_function(aten.zeros_like.default, (mask,), {"dtype": dtype})
        hidden = graph.call_function(aten.logical_not.default, (mask,))
        mask = graph.call_function(aten.masked_fill.Scalar, (zeros, hidden, float("-inf")))
    scores = [*known[query.name].shape[:-1], known[key.name].shape[-2]]
    return graph.call_function(aten.expand.default, (mask, scores))
