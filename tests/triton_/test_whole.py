from __future__ import annotations

import pytest
from msgspec.structs import replace

from fuseledger.devices import load as load_device
from fuseledger.frontends.source import load
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.triton.check import Checked, check_kernels
from fuseledger.triton.compile import compile_kernels, target_of
from fuseledger.triton.emit import emit_kernel

pytestmark = pytest.mark.torch
ROW = "rms_norm(x[1,4096])"


def _kernel(source: str, **axes: AxisSchedule) -> tuple[Graph, Kernel]:
    """A graph in fp16 as one kernel, with its axes so scheduled."""
    graph = load(source, dtype="fp16", dims={})
    assert {axis.name for op in graph.ops for axis in op.axes} == axes.keys()
    ops = tuple(range(len(graph.ops)))
    return graph, Kernel(ops=ops, schedule=Schedule(axes=tuple(axes.items())))


def _checked(graph: Graph, kernel: Kernel) -> Checked:
    (found,) = check_kernels(graph, [("k1", kernel)])
    assert found.outcome == "pass", found
    return found


def test_a_row_that_is_held_is_loaded_once() -> None:
    """A norm's row of 4,096 and a matrix of 64 rows do not fit at once: the matrix goes by four
    rows at a time, and what is made of them is one vector, turned as a vector."""
    graph, kernel = _kernel(
        f"z[1024,128] * rope({ROW} @ transpose(w[128,4096]))",
        d=AxisSchedule("grid", 64), n=AxisSchedule("grid", 2), n1=AxisSchedule("grid", 32),
        k=AxisSchedule("whole", 4096),
    )  # fmt: skip
    emitted = emit_kernel(graph, kernel)
    assert emitted.constants["STEPS"] == 64 // 4
    assert emitted.source.count("x_ptr + ") == 1
    assert emitted.source.count("for ") == 1
    assert "tl.gather(tl.reshape(gemm, " in emitted.source
    assert not emitted.notes
    traffic = _checked(graph, kernel).traffic
    assert traffic is not None
    assert traffic.is_equal, traffic


def test_results_of_two_places_are_made_a_few_at_a_time() -> None:
    """Queries of four heads, made of one row, are rows of the product with the keys: the row has no
    lanes beside heads and depth, and is held all the same."""
    graph, kernel = _kernel(
        f"einsum('cd,nd->cn', einsum('k,cdk->cd', reshape({ROW},4096), w[4,64,4096]), y[512,64])",
        c=AxisSchedule("grid", 4), n=AxisSchedule("grid", 64), d=AxisSchedule("loop", 64),
        k=AxisSchedule("whole", 4096),
    )  # fmt: skip
    source = emit_kernel(graph, kernel).source
    assert source.count("x_ptr + ") == 1
    assert "for c_2 in range(C):" in source
    traffic = _checked(graph, kernel).traffic
    assert traffic is not None
    assert traffic.is_equal, traffic


def test_a_row_that_is_walked_again_is_counted_again() -> None:
    """A matrix whose rows lie the other way goes by steps along the row, which the kernel loads
    again: it says so, and so do the bytes of the small shapes."""
    graph, kernel = _kernel(
        f"{ROW} @ w[4096,1024]", n=AxisSchedule("grid", 128), k=AxisSchedule("whole", 4096)
    )
    (note,) = emit_kernel(graph, kernel).notes
    assert "what is held along it is made again" in note
    traffic = _checked(graph, kernel).traffic
    assert traffic is not None
    (difference,) = traffic.differences
    assert "of x, account" in difference


def test_a_turned_vector_does_not_lay_out_what_it_is_spread_over() -> None:
    """Keys of one token, turned and spread over 1,024 cached ones: where a tile was turned, the
    compiler gave each warp all of the operand, and a thread spilled 11 KB."""
    graph, kernel = _kernel(
        "q[16,32] @ transpose(y[1024,32] * rope(rms_norm(x[1,1024]) @ transpose(w[32,1024])))",
        m=AxisSchedule("grid", 16), n2=AxisSchedule("grid", 1024), n=AxisSchedule("loop", 2),
        n1=AxisSchedule("loop", 16), k=AxisSchedule("whole", 1024),
    )  # fmt: skip
    emitted = emit_kernel(graph, replace(kernel, schedule=replace(kernel.schedule, warps=8)))
    assert "tl.gather(" in emitted.source
    (compiled,) = compile_kernels([emitted], target_of(load_device("h100-sxm")), processes=1)
    assert compiled.failed is None
    assert compiled.spilled_bytes == 0
