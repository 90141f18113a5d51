"""Rows of the eager table that multiply: GEMM, convolution, attention, recurrent layers.

Paths in sources are PyTorch's, under `aten/src/ATen/native/`, as of releases 2.5 to 2.9.
"""

from __future__ import annotations

import math

from fuseledger.clock.library_kernel import Pipe
from fuseledger.peers.eager import Entry
from fuseledger.peers.eager_state import Call, Operand

HALF = ("fp16", "bf16")
UNROLLED = ({1}, {3}, {5})
"""Square windows that PyTorch's depthwise kernel is compiled for; others it walks in loops of
run-time length (`cuda/DepthwiseConv2d.cu`, template argument `kSize`)."""

STEP_LAUNCHES = 2
"""A recurrent step's: the product, and all gates in one
(developer.nvidia.com/blog/optimizing-recurrent-neural-networks-cudnn-5)."""


def _matrix_operand(call: Call, x: Operand) -> Operand:
    """cuBLAS takes either order of the last two axes; anything else is copied first."""
    if len(x.shape) < 2 or (1 in x.strides[-2:] and all(x.strides[-2:])):
        return x
    return call.dense_input(x, "neither of the last two axes is contiguous")


def _gemm(call: Call, a: Operand, b: Operand, extra: list[Operand], name: str) -> None:
    a, b = _matrix_operand(call, a), _matrix_operand(call, b)
    batch = float(math.prod(call.out.shape[:-2]))
    m, k = map(float, a.shape[-2:])
    n = float(b.shape[-1])
    pipe: Pipe = "half" if a.dtype in HALF else "fp32"
    call.launch(name, "gemm", [a, b, *extra], [call.out], flops=2 * batch * m * n * k, pipe=pipe,
                m=m, n=n, k=k, batch=batch, transposed=float(b.strides[-1] != 1))  # fmt: skip


def _mm(call: Call) -> None:
    a, b = list(call.tensors.values())[:2]
    if len(a.shape) < 2 or len(b.shape) < 2:  # mv, dot
        call.launch("gemv", "reduce", [a, b], [call.out], flops=2.0 * a.elements,
                    rows=float(call.out.elements),
                    length=a.elements / max(call.out.elements, 1), inner=1.0,
                    index=0.0)  # fmt: skip
        return
    _gemm(call, a, b, [], "cublasGemm")


def _addmm(call: Call) -> None:
    """cuBLASLt adds a one-dimensional bias in its epilogue; any other is copied, then beta·C."""
    bias = call.tensors["self"]
    a, b = list(call.tensors.values())[1:3]
    if len(bias.shape) != 1:
        call.launch("copy_kernel (C = bias)", "copy", [bias], [call.out], strided=0.0)
        bias = call.out
    _gemm(call, a, b, [bias], "cublasLtMatmul + bias")


def _convolution(call: Call) -> None:
    """cuDNN: NCHW tensors turned to NHWC and back around the kernel; then the bias, a pass.

    A depthwise convolution runs PyTorch's own kernel, which adds the bias itself.
    """
    tensors = list(call.tensors.values())
    x, weight = tensors[:2]
    x = call.dense_input(x, "convolution needs a contiguous input")
    bias = call.tensors.get("bias")
    shape = conv_shape(call, x, weight)
    out = call.out
    taps = shape["window"] * weight.shape[1]
    across = x if shape["transposed"] else out
    flops = 2.0 * across.elements * taps
    if shape["depthwise"] and not shape["transposed"]:
        reads = [x, weight, *([bias] if bias else [])]
        call.launch("conv_depthwise_forward_kernel", "conv", reads, [out], flops=flops, shape=shape)
        return
    call.launch("cudnn convolution", "conv", [x, weight], [out], flops=flops,
                pipe="half" if x.dtype in HALF else "tf32", shape=shape)  # fmt: skip
    if bias:
        call.launch("elementwise_kernel (bias)", "pointwise", [out, bias], [out],
                    flops=float(out.elements), broadcast=1.0)  # fmt: skip


def conv_shape(call: Call, x: Operand, weight: Operand) -> dict[str, float]:
    """The sizes that the efficiency surface of a convolution is a function of."""
    rank = len(x.shape) - 2
    transposed = bool(call.get("transposed", False))
    groups = int(call.get("groups", 1))
    c_in = x.shape[1]
    c_out = call.out.shape[1]
    kernel = weight.shape[2:]
    spatial = math.prod(call.out.shape[2:])
    return {
        "batch": float(x.shape[0]), "channels_in": c_in / groups, "channels_out": c_out / groups,
        "groups": float(groups), "rank": float(rank), "window": float(math.prod(kernel)),
        "spatial": float(spatial), "stride": float(math.prod(call.ints("stride", rank, 1))),
        "dilation": float(math.prod(call.ints("dilation", rank, 1))),
        "transposed": float(transposed),
        "depthwise": float(groups > 1 and groups == c_in and c_out % c_in == 0),
        "x_bytes": float(x.bytes), "y_bytes": float(call.out.bytes),
        "even": float(c_in // groups % 4 == 0 and c_out // groups % 4 == 0),
        "unrolled": float(set(kernel) in UNROLLED),
    }  # fmt: skip


def _attention(call: Call) -> None:
    """One fused kernel: flash attention for half precision up to width 256, else CUTLASS's."""
    q, k, v = list(call.tensors.values())[:3]
    rows, width, keys = q.shape[-2], q.shape[-1], k.shape[-2]
    batch = math.prod(q.shape[:-2])
    half = q.dtype in HALF
    name = "flash_fwd_kernel" if half and width <= 256 else "fmha_cutlassF"
    call.launch(name, "attention", [q, k, v], [call.out],
                flops=2.0 * batch * rows * keys * (width + v.shape[-1]),
                pipe="half" if half else "fp32", width=float(width), keys=float(keys),
                batch=float(batch))  # fmt: skip


def _rnn(call: Call) -> None:
    """cuDNN: a GEMM over all steps for a layer's inputs, then one dependent step after another.

    In fp32 PyTorch asks for the standard algorithm, whose steps are launched one by one: a product
    with the state, and the gates.
    """
    x = call.tensors["x"]
    weights = [w for name, w in call.tensors.items() if name.startswith("weights")]
    matrices = [w for w in weights if len(w.shape) == 2]
    layers = float(call.get("num_layers", 1))
    directions = 2.0 if call.get("bidirectional", False) else 1.0
    steps = float(x.shape[1] if call.get("batch_first", False) else x.shape[0])
    sequences = x.elements / x.shape[-1]
    flops = 2.0 * sequences * sum(w.elements for w in matrices)
    launches = int(layers * directions * (1 + STEP_LAUNCHES * steps))
    call.launch("cudnnRNNForward", "rnn", [x, *weights], [call.out], flops=flops, pipe="tf32",
                steps=steps, layers=layers * directions, hidden=float(matrices[0].shape[0]),
                batch=sequences / steps, launches=launches)  # fmt: skip


_GEMM = "cuda/Blas.cpp: cublasSgemm; fp32 keeps full precision unless TF32 is allowed"
_CONVOLUTION = (
    "Convolution.cpp use_cudnn, use_cudnn_depthwise; cudnn/ConvShared.cpp cudnn_convolution "
    "adds the bias with add_; cuda/DepthwiseConv2d.cu"
)
_ATTENTION = (
    "transformers/cuda/sdp_utils.cpp: flash attention for half precision up to width 256, else the "
    "memory-efficient kernel, of any width"
)

TABLE: dict[str, Entry] = {
    "mm": Entry(_mm, _GEMM),
    "mv": Entry(_mm, "cuda/Blas.cpp: gemv"),
    "dot": Entry(_mm, "cuda/Blas.cpp: dot"),
    "bmm": Entry(_mm, "cuda/Blas.cpp bmm_out_cuda_impl: one strided-batched GEMM"),
    "addmm": Entry(
        _addmm,
        "cuda/Blas.cpp addmm_out_cuda_impl: cuBLASLt bias epilogue where self is 1-D, contiguous",
    ),
    "baddbmm": Entry(_addmm, "cuda/Blas.cpp: self copied to the result, then beta·C"),
    "convolution": Entry(_convolution, _CONVOLUTION),
    "kb.sdpa": Entry(_attention, _ATTENTION),
    "scaled_dot_product_attention": Entry(_attention, _ATTENTION),
    "_scaled_dot_product_flash_attention_for_cpu": Entry(_attention, _ATTENTION),
    "kb.lstm": Entry(_rnn, "cudnn/RNN.cpp get_algo: the standard algorithm in fp32"),
    "kb.gru": Entry(_rnn, "cudnn/RNN.cpp get_algo"),
}
