from __future__ import annotations

import pytest

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import Kernel
from fuseledger.planner.plan import plan_of_groups
from fuseledger.triton.check import check_kernels
from fuseledger.triton.emit import emit_kernel

pytestmark = pytest.mark.torch


def _planned(source: str, ops: tuple[int, ...]) -> tuple[Graph, Kernel]:
    """A graph in fp16, and the kernel of some of its ops; every other op is one of its own."""
    graph = load(source, dtype="fp16", dims={})
    others = [(i,) for i in range(len(graph.ops)) if i not in ops]
    before = [group for group in others if group < ops]
    plan = plan_of_groups(graph, load_device("h100-sxm"), [*before, ops, *others[len(before) :]])
    (kernel,) = (ledger.kernel for ledger in plan.kernels if ledger.kernel.ops == ops)
    return graph, kernel


def _loads_the_account(graph: Graph, kernel: Kernel) -> bool:
    (found,) = check_kernels(graph, [("k1", kernel)])
    assert found.outcome == "pass", found
    assert found.traffic is not None
    return found.traffic.is_equal


def test_rows_by_another_name_do_not_hinder_a_turn_in_lanes() -> None:
    """Keys beside values: a projection has its rows by the values' name and its rope by its own.
    The halves are turned in the product's tile: one product for each of the two."""
    x = "x = gelu(x[512,1024]); q = x @ a[1024,128]; k = x @ b[1024,128]; v = x @ c[1024,64]"
    graph, kernel = _planned(f"{x}; rope(q) @ transpose(rope(k)) @ v", (2, 3, 5))
    assert graph.ops[5].axes[0] != graph.ops[2].axes[0]
    assert len(kernel.parts) == 2
    assert emit_kernel(graph, kernel).source.count("tl.dot(") == 2
    assert _loads_the_account(graph, kernel)


def test_the_part_that_tiles_a_shared_tensor_stores_it() -> None:
    """What two parts make and other kernels read is stored where it is tiled, in the loop that
    makes it: the first part has its rows by another name, and would walk all of them again."""
    x = "x = gelu(x[512,256]); q = tanh(sin(tanh(x @ a[256,64]))); k = x @ b[256,64]"
    graph, kernel = _planned(f"{x}; (q @ transpose(k)) @ x", (0, 1, 5))
    first, second, third = (graph.ops[i].axes[0] for i in (0, 1, 5))
    assert first == second != third
    assert [part.ops for part in kernel.parts] == [(0, 5), (0, 1)]
    assert emit_kernel(graph, kernel).source.count("for ") == 2
    assert _loads_the_account(graph, kernel)
