from __future__ import annotations

import pytest

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.planner.plan import plan_of_groups
from fuseledger.triton.check import check_kernels

pytestmark = pytest.mark.torch

PRODUCTS = "gelu(x @ a[1024,64]) @ b[64,256] + x @ c[1024,256]"
IMAGE = "x = gelu(x[4,64,56,56])"
SOURCES = {
    "gate and up share a loop": "x = gelu(x[512,1024]); silu(x @ a[1024,768]) * (x @ b[1024,768])",
    "a product inside another's loop": f"x = gelu(x[512,1024]); {PRODUCTS}",
    "the same of a norm, walked twice": f"x = rms_norm(x[512,1024]); {PRODUCTS}",
    "a product, then its input": "gelu(x[512,1024] @ a[1024,1024]) + x",
    "what both read is made here": "x = gelu(x[512,1024]); x @ a[1024,1024] + x",
    "windows of two sizes": (
        f"{IMAGE}; conv(x,w[64,64,3,3],padding=1) + conv(x,v[64,64,5,5],padding=2)"
    ),
    "a window on a product, and a product": (
        "conv(relu(conv(x[4,64,56,56],w[64,64,1,1])),v[64,64,3,3],padding=1) + conv(x,u[64,64,1,1])"
    ),
    "a window on a product, then the tile": (
        "conv(relu(conv(x[4,64,56,56],w[64,64,1,1])),v[64,64,3,3],padding=1) + x"
    ),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_one_kernel_loads_what_its_loops_need(source: str) -> None:
    """All ops as one kernel: the interpreter loads the account's bytes of every tensor. (An A100's
    shared memory holds no rows of a norm that the code would walk again.)"""
    graph = load(source, dtype="fp16", dims={})
    ops = tuple(range(len(graph.ops)))
    (ledger,) = plan_of_groups(graph, load_device("a100-sxm-80"), [ops]).kernels
    (found,) = check_kernels(graph, [(ledger.name, ledger.kernel)])
    assert found.outcome == "pass", found
    assert found.traffic is not None
    assert found.traffic.is_equal, found.traffic
