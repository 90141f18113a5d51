"""Which kernels a library has, by what their ops compute."""

from __future__ import annotations

import pytest

from fuseledger.frontends.source import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.scalar import Read
from fuseledger.graph.scalar import call as scalar_call
from fuseledger.ledger.library_calls import CORES_WITH, EPILOGUES, Calls, library_calls
from fuseledger.ledger.nest import analyse

X, W = "x[64,128]", "w[128,256]"
HEADS = "".join(
    f"{name} = transpose(reshape(slice(x[64,96] fp16, {at}, {at + 32}), 1, 64, 8, 4), 0, 2, 1, 3); "
    for name, at in (("q", 0), ("k", 32), ("v", 64))
)
Q, K, V = (f"{name}[1,8,64,32] fp16" for name in "qkv")


def calls(expression: str, vendor: str = "nvidia") -> Calls:
    """All ops of an expression as one kernel."""
    graph = load(expression)
    return library_calls(analyse(graph, tuple(range(len(graph.ops)))), vendor)


@pytest.mark.parametrize(
    ("expression", "call"),
    [
        (f"{X} @ {W}", "cuBLAS"),
        (f"{X} @ {W} + bias", "cuBLAS + BIAS"),
        (f"{X} @ {W} + relu", "cuBLAS + RELU"),
        (f"{X} @ {W} + bias + relu", "cuBLAS + RELU_BIAS"),
        (f"{X} @ {W} + gelu_tanh", "cuBLAS + GELU"),
        (f"{X} @ {W} + bias + gelu_tanh", "cuBLAS + GELU_BIAS"),
        (f"{X} @ {W} + residual", "cuBLAS + beta·C"),
        (f"{X} @ {W} + residual + bias + relu", "cuBLAS + beta·C + RELU_BIAS"),
        (f"{X} @ {W} + bias + residual + relu", "cuBLAS + beta·C + RELU_BIAS"),
        ("conv2d(x[2,16,8,8], w[32,16,3,3]) + relu", "cuDNN + RELU"),
        ("conv2d(x[2,16,8,8], w[32,16,3,3]) + b[32,1,1]", "cuDNN + BIAS"),
        (f"attention({Q}, {K}, {V})", "cuDNN"),
        (f"{HEADS} attention(q, k, v)", "cuDNN"),
        (f"{HEADS} q @ transpose(k)", "cuBLAS"),
        (f"{HEADS} q @ w[1,8,4,16] fp16", "cuBLAS"),
        (f"{X} @ transpose({X})", "cuBLAS"),
    ],
)
def test_what_a_library_computes(expression: str, call: str):
    """The epilogues of cuBLASLt, the residual before the activation only, sums in any order;
    operands may be parts of one tensor, the heads of a packed projection."""
    assert str(calls(expression).call) == call


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (f"{X} @ {W} + bias + gelu", "cuBLAS has GELU in its tanh form only"),
        (f"{X} @ {W} + silu", "cuBLAS has no epilogue silu"),
        (f"{X} int32 @ {W} int32", "cuBLAS has no product of int32"),
        (f"{X} @ {W} + relu + residual", "cuBLAS cannot apply relu, residual in this order"),
        (f"{X} @ {W} + relu + bias", "cuBLAS cannot apply relu, bias in this order"),
        (f"softmax({X} @ {W})", "cuBLAS has no epilogue softmax.statistic"),
        (f"rms_norm({X}) @ {W}", "a library has no rms_norm.statistic before the product"),
        (f"(r[64,256] | silu) * ({X} @ {W})", "a library has no epilogue silu"),
        (f"({X} | silu) @ {W}", "a library has no silu before the product"),
        ("conv2d(x[2,16,8,8], w[32,16,3,3]) + gelu_tanh", "cuDNN has no epilogue gelu_tanh"),
        ("x[64,128] @ w[128,256] @ u[256,64]", "a library computes one product a call"),
        (
            "attention(q[1,8,64,32] fp32, k[1,8,64,32] fp32, v[1,8,64,32] fp32)",
            "cuDNN has no attention in fp32",
        ),
    ],
)
def test_why_no_library_has_it(expression: str, reason: str):
    """A miss names the step that no library has, or the order that it cannot run."""
    found = calls(expression)
    assert found.core is not None
    assert (found.call, found.reason) == (None, reason)


@pytest.mark.parametrize(
    ("dtype", "shapes", "call"),
    [
        ("fp8_e4m3", ((64, 1), (1, 256)), "cuBLAS + BIAS"),
        ("fp8_e4m3", ((), (256,)), "cuBLAS + BIAS"),
        ("fp8_e4m3", ((64, 256), ()), "None"),
        ("fp16", ((64, 1), (1, 256)), "None"),
    ],
)
def test_products_of_fp8_take_their_scales_along(
    dtype: str, shapes: tuple[tuple[int, ...], ...], call: str
):
    """cuBLASLt multiplies by a number an operand, or one a row and a column; fp8 alone has them."""
    b = GraphBuilder("scaled")
    x, w = b.input("x", (64, 128), dtype), b.weight("w", (128, 256), dtype)
    scales = [b.input(name, shape, "fp32") for name, shape in zip("st", shapes, strict=True)]
    product = b.contract("gemm", "mk,kn->mn", [x, w], dtype="fp32")
    body = scalar_call("mul", scalar_call("mul", Read(0), Read(1)), Read(2))
    scaled = b.map("scale", [product, *scales], body=body, dtype="fp32")
    added = scalar_call("add", Read(0), Read(1))
    b.output(b.map("bias", [scaled, b.weight("b", (256,), "fp32")], body=added), "y")
    graph = b.finish()
    assert str(library_calls(analyse(graph, tuple(range(len(graph.ops)))), "nvidia").call) == call


def test_kernels_without_a_product_have_no_class():
    """Norms, softmax and pointwise chains are generated, and nothing is said of a library."""
    for expression in ("softmax(x[64,128])", "x[64,128] + relu", "rms_norm(x[64,128])"):
        assert calls(expression) == Calls(None, None)


def test_generated_beside_a_library_that_has_it_is_quicker():
    """A product that cuBLAS computes is generated where its call is slower; nothing else needs a
    reason."""
    assert calls(f"{X} @ {W}").why_generated == "cuBLAS is slower with these tiles"
    assert calls("softmax(x[64,128])").why_generated == ""


def test_two_results_are_no_call():
    """A product whose intermediate another kernel reads as well has two results."""
    graph = load(f"relu({X} @ {W}) + silu({X} @ {W})")
    names = [op.function for op in graph.ops]
    kernel = (names.index("gemm"), names.index("relu"))
    outputs = analyse(graph, kernel).outputs
    found = library_calls(analyse(graph, kernel), "nvidia")
    assert (found.call is None) == (len(outputs) > 1)


def test_vendors():
    """AMD has its own libraries; a vendor without any generates."""
    assert str(calls(f"{X} @ {W} + bias", "amd").call) == "hipBLASLt + BIAS"
    assert calls(f"{X} @ {W}", "textbook").reason == "no library of textbook is known"


def test_the_table_is_of_known_epilogues():
    """Every core's epilogues are rows of the table."""
    known = set(EPILOGUES.values())
    assert all(names <= known for names in CORES_WITH.values())
