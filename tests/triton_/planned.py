"""Plans that the tests of emitted code start from."""

from __future__ import annotations

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.planner.plan import Planned, make_plan

CHAIN = "gemm(4096,4096,4096) + bias + gelu + residual"
SOFTMAX = "softmax(x[4096,8192])"
LAYER_NORM = "layer_norm(x[4096,4096])"
RMS_NORM_GEMM = "rms_norm(x[2048,4096]) @ w[4096,4096]"
ATTENTION = "attention(q[8,16,2048,64],k[8,16,2048,64],v[8,16,2048,64])"
CAST_ATTENTION = "cast(softmax(cast(q[16,1024,64] @ k[16,64,1024], fp32)), fp16) @ v[16,1024,64]"
CONV = "conv(x[8,64,56,56],w[128,64,3,3],padding=1)|relu"
FAMILIES = [CHAIN, SOFTMAX, LAYER_NORM, RMS_NORM_GEMM, ATTENTION, CAST_ATTENTION, CONV]
"""A source of each family of kernels."""


def planned(source: str, *, device: str = "h100-sxm", dtype: str = "fp16") -> Planned:
    """The plan of an expression."""
    return make_plan(load(source, dtype=dtype, dims={}), load_device(device))
