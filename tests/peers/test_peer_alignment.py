"""Which of our ops a peer's kernel computes, and what it costs."""

from __future__ import annotations

from fuseledger.devices import load
from fuseledger.peers.align import ops_by_kernel, ops_by_name
from fuseledger.peers.eager_peer import eager_peer
from fuseledger.peers.peer import PeerKernel, PeerPlan
from fuseledger.peers.priced import price
from fuseledger.peers.program import Program, read_program
from fuseledger.planner.plan import make_plan

ROWS, COLUMNS = 4096, 8192


def _norm() -> Program:
    """A GEMM and a softmax of its rows, each a node of its own."""
    program = read_program(f"gemm({ROWS},{COLUMNS},1024) | softmax")
    made_by = {op.name: op.label or op.name for op in program.graph.ops}
    return Program(source="", graph=program.graph, aten=None, made_by=made_by)


def _kernel(kind: str, origins: tuple[str, ...], written: int) -> PeerKernel:
    return PeerKernel(name="k", kind=kind, origins=origins, writes={"out": written})


def test_a_norm_fused_whole_is_one_kernel() -> None:
    """Statistic and apply share the kernel that writes the result."""
    result = 2 * ROWS * COLUMNS
    kernels = (_kernel("extern", ("gemm",), result), _kernel("triton", ("softmax",), result))
    assert ops_by_kernel(_norm(), kernels) == [(0,), (1, 2)]


def test_a_product_of_one_row_belongs_to_the_library_call() -> None:
    """A matrix times a vector is no work for matrix units, and a call of a library all the same."""
    program = read_program("gemm(1,8192,1024) | silu")
    program = Program(
        source="", graph=program.graph, aten=None,
        made_by={op.name: op.function for op in program.graph.ops},
    )  # fmt: skip
    kernels = (
        _kernel("extern", ("gemm",), 2 * COLUMNS),
        _kernel("triton", ("gemm", "silu"), 2 * COLUMNS),
    )
    assert ops_by_kernel(program, kernels) == [(0,), (1,)]


def test_parts_of_a_product_belong_to_the_call_that_made_them() -> None:
    """A call that names nothing makes parts of a product; the kernel that sums them names it, and
    what follows is computed there."""
    program = read_program("gemm(1,8192,1024) | silu")
    kernels = (
        PeerKernel(name="dot", kind="template", origins=(), writes={"parts": 4 * 8192 * 8}),
        PeerKernel(
            name="sum", kind="loop", origins=("gemm",), reads={"parts": 4 * 8192 * 8},
            writes={"out": 2 * 8192},
        ),
    )  # fmt: skip
    assert ops_by_name(program.graph, kernels) == [(0,), (1,)]


def test_a_norm_in_two_kernels_is_told_apart_by_what_they_write() -> None:
    """A kernel that writes two numbers a row holds the statistic, the next one the result."""
    result, numbers = 2 * ROWS * COLUMNS, 2 * 4 * ROWS
    kernels = (
        _kernel("extern", ("gemm",), result),
        _kernel("triton", ("gemm", "softmax"), numbers),
        _kernel("triton", ("gemm", "softmax"), result),
    )
    assert ops_by_kernel(_norm(), kernels) == [(0,), (1,), (2,)]


def test_parts_of_a_result_are_not_the_result() -> None:
    """A kernel that writes parts larger than the loss leaves the loss to the one of 4 B."""
    program = read_program("gather(log_softmax(x[4096,512] fp32), i[4096,1]) | sum")
    made_by = dict.fromkeys((op.name for op in program.graph.ops), "loss")
    program = Program(source="", graph=program.graph, aten=None, made_by=made_by)
    kernels = (_kernel("triton", ("loss",), 48), _kernel("triton", ("loss",), 4))
    *_, gather, total = range(len(program.graph.ops))
    before, after = ops_by_kernel(program, kernels)
    assert total in after
    assert before == (0,)
    assert gather in after


def test_a_copy_has_no_op_and_is_priced_by_its_bytes() -> None:
    """A kernel that computes none of our ops takes its bytes at stream bandwidth and a launch."""
    program = _norm()
    device = load("h100-sxm")
    copy = PeerKernel(name="copy", kind="triton", reads={"a": 10**9}, writes={"b": 10**9})
    plan = PeerPlan(name="inductor", version=None, status="planned", kernels=(copy,))
    (priced,) = price(program, plan, make_plan(program.graph, device)).kernels
    assert priced.ops == ()
    seconds = 2e9 / (device.require("stream_gbs") * 1e9)
    assert abs(priced.time_us - (seconds * 1e6 + device.launch_us("queued"))) < 1e-6


def test_without_aten_nodes_eager_is_one_kernel_an_op() -> None:
    """The chain's four ops are four kernels of 335,552,512 bytes, as in the textbook."""
    plan = eager_peer(read_program("gemm(4096,4096,4096) + bias + gelu + residual"))
    assert plan.launches == 4
    assert plan.bytes == 335_552_512
