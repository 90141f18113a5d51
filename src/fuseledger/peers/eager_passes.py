"""Rows of the eager table that move data: pointwise, reductions, norms, pooling, copies.

Paths in sources are PyTorch's, under `aten/src/ATen/native/`, as of releases 2.5 to 2.9.
"""

from __future__ import annotations

import math

from fuseledger.clock.library_kernel import BYTES
from fuseledger.peers.eager import Entry
from fuseledger.peers.eager_state import Call, Operand

PERSISTENT_SOFTMAX = 1024
"""Longest row that softmax holds in registers (`cuda/PersistentSoftmax.cuh`, dispatch of
`host_softmax`: `dim_size <= 1024`)."""
NLL_LOSS_THREADS = 32
"""Threads of the only block of the reduced loss (`cuda/NLLLoss.cu`)."""
SHARED_SOFTMAX_BYTES = 48 * 1024
"""Longest row that softmax holds in shared memory (`cuda/SoftMax.cu`, `can_use_smem`: what a block
has without opting in)."""


# -- pointwise -----------------------------------------------------------------------------


def _pointwise(call: Call) -> None:
    """One TensorIterator kernel: every operand read once, the result written once."""
    operands = list(call.tensors.values())
    strided = any(not x.contiguous and 0 not in x.strides for x in operands)
    broadcast = any(x.elements < call.out.elements and x.elements > 1 for x in operands)
    call.launch(
        "elementwise_kernel", "pointwise", operands, [call.out], flops=float(call.out.elements),
        strided=float(strided), broadcast=float(broadcast),
    )  # fmt: skip


def _fill(call: Call) -> None:
    call.launch("fill_kernel", "pointwise", [], [call.out])


def _copy(call: Call) -> None:
    source = call.tensors.get("src", next(iter(call.tensors.values())))
    strided = not (source.contiguous and call.out.contiguous)
    call.launch("copy_kernel", "copy", [source], [call.out], strided=float(strided))


def _masked_fill(call: Call) -> None:
    """Out of place: a clone, then the in-place kernel over the clone."""
    x, mask = call.tensors["self"], call.tensors["mask"]
    if not call.node.packet.endswith("_"):
        call.launch("copy_kernel (clone)", "copy", [x], [call.out], strided=0.0)
    call.launch("masked_fill_kernel", "pointwise", [call.out, mask], [call.out], broadcast=1.0)


def _cat(call: Call) -> None:
    call.launch("CatArrayBatchedCopy", "copy", list(call.tensors.values()), [call.out], strided=0.0,
                cat=1.0)  # fmt: skip


def _pad(call: Call) -> None:
    """Empty, fill, then copy into the interior."""
    call.launch("fill_kernel", "pointwise", [], [call.out])
    x = next(iter(call.tensors.values()))
    call.launch("copy_kernel (interior)", "copy", [x], [x], strided=1.0)


def _flip(call: Call) -> None:
    call.launch("flip_kernel", "copy", [call.tensors["self"]], [call.out], strided=1.0)


def _dropout(call: Call) -> None:
    x = call.tensors["input"]
    call.launch("fused_dropout_kernel", "pointwise", [x], list(call.outputs))


def _embedding(call: Call) -> None:
    rows = call.tensors["indices"]
    call.launch("indexSelectLargeIndex", "gather", [rows, call.out], [call.out])


# -- reductions ----------------------------------------------------------------------------


def _walk(x: Operand, dims: list[int], *, outputs: float = 0.0) -> dict[str, float]:
    """What a reduction's speed depends on: results, length, and whether it runs along memory."""
    rank = len(x.shape)
    length = math.prod(x.shape[d] for d in dims)
    inner = float(not dims or dims[-1] == rank - 1)
    return {"rows": outputs or x.elements / max(length, 1), "length": float(length), "inner": inner}


def _reduce(call: Call) -> None:
    """One `reduce_kernel`; results few enough are made by several blocks and a semaphore."""
    x = next(iter(call.tensors.values()))
    call.launch("reduce_kernel", "reduce", [x], list(call.outputs), flops=float(x.elements),
                index=float(len(call.outputs) > 1 or call.out.dtype == "int64"),
                shape=_walk(x, call.dims(len(x.shape))))  # fmt: skip


def _scan(call: Call) -> None:
    x = call.tensors["self"]
    call.launch("tensor_kernel_scan", "scan", [x], [call.out], flops=float(x.elements),
                shape=_walk(x, call.dims(len(x.shape))))  # fmt: skip


def _logsumexp(call: Call) -> None:
    """`maxes`, its infinities masked, `(x - maxes).exp_()`, a sum, `log_().add_(maxes)`."""
    x, out = call.tensors["self"], call.out
    walk = _walk(x, call.dims(len(x.shape)))
    maxes = call.scratch("maxes", out.shape, out.dtype)
    shifted = call.scratch("shifted", x.shape, x.dtype)
    call.launch("reduce_kernel (amax)", "reduce", [x], [maxes], index=0.0, shape=walk)
    call.launch("abs, eq, masked_fill", "pointwise", [maxes], [maxes], launches=3)
    call.launch("sub", "pointwise", [x, maxes], [shifted], broadcast=1.0)
    call.launch("exp_", "pointwise", [shifted], [shifted])
    call.launch("reduce_kernel (sum)", "reduce", [shifted], [out], index=0.0, shape=walk)
    call.launch("log_, add_", "pointwise", [out, maxes], [out], launches=2)


def _softmax(call: Call) -> None:
    """One kernel: rows in registers or shared memory are read once, others three times.

    Off the last axis it is the spatial kernel, which reads for the maximum, the sum and the result.
    """
    x = call.tensors["self"]
    dim = call.dims(len(x.shape))
    x = call.dense_input(x, "softmax needs a contiguous input")
    walk = _walk(x, dim)
    width = BYTES.get(x.dtype, 4)
    if not walk["inner"]:
        name, reads = "cunn_SpatialSoftMaxForward", [x, x, x]
    elif walk["length"] <= PERSISTENT_SOFTMAX:
        name, reads = "softmax_warp_forward", [x]
    elif walk["length"] * width <= SHARED_SOFTMAX_BYTES:
        name, reads = "cunn_SoftMaxForwardSmem", [x]
    else:
        name, reads = "cunn_SoftMaxForward", [x, x, x]
    call.launch(name, "softmax", reads, [call.out], flops=4.0 * x.elements, shape=walk)


def _nll_loss(call: Call) -> None:
    """One block of 32 threads, which goes through all rows one after another."""
    target = call.tensors["target"]
    steps = math.ceil(target.elements / NLL_LOSS_THREADS)
    call.launch("nll_loss_forward_reduce_cuda_kernel_2d", "gather", [target, target],
                list(call.outputs), serial_steps=float(steps))  # fmt: skip


# -- norms ---------------------------------------------------------------------------------


def _batch_norm(call: Call) -> None:
    """cuDNN with weights: one kernel, a block a channel, that walks its channel twice.

    Without weights PyTorch's own: statistics, then the transform.
    """
    x = call.tensors["input"]
    channels = float(x.shape[1]) if len(x.shape) > 1 else 1.0
    walk = {"rows": channels, "length": x.elements / channels, "inner": float(len(x.shape) > 2)}
    stats = list(call.outputs[1:])
    if not call.get("training", call.get("train", True)):
        _transform(call, x)
    elif "weight" in call.tensors:
        call.launch("bn_fw_tr_1C11 (cuDNN)", "batch_norm", [x, x], [call.out, *stats],
                    flops=6.0 * x.elements, shape=walk)  # fmt: skip
    else:
        call.launch("batch_norm_collect_statistics_kernel", "moments", [x], stats, shape=walk)
        _transform(call, x)


def _transform(call: Call, x: Operand) -> None:
    name = "batch_norm_transform_input_kernel"
    call.launch(name, "pointwise", [x], [call.out], broadcast=1.0)


def _group_norm(call: Call) -> None:
    """Moments of each group, folded scale and shift, then one pointwise pass."""
    x = call.tensors["input"]
    groups = float(call.get("N", x.shape[0])) * float(call.get("group", 1))
    stats = list(call.outputs[1:])
    call.launch("RowwiseMomentsCUDAKernel", "moments", [x], stats, flops=3.0 * x.elements,
                rows=groups, length=x.elements / groups, inner=1.0)  # fmt: skip
    folded = call.scratch("folded", (2, x.shape[0], x.shape[1]))
    call.launch("ComputeFusedParamsCUDAKernel", "pointwise", stats, [folded])
    call.launch("elementwise_kernel", "pointwise", [x, folded], [call.out],
                flops=2.0 * x.elements, broadcast=1.0)  # fmt: skip


def _layer_norm(call: Call) -> None:
    """One block a row, which walks it twice: few huge rows run on few blocks."""
    x = call.dense_input(call.tensors["input"], "layer norm needs a contiguous input")
    length = math.prod(int(n) for n in call.get("normalized_shape", [1]))
    call.launch("vectorized_layer_norm_kernel", "layer_norm", [x, x], list(call.outputs),
                flops=6.0 * x.elements, rows=x.elements / length, length=float(length),
                inner=1.0)  # fmt: skip


# -- pooling -------------------------------------------------------------------------------


def _pool(call: Call) -> None:
    """One thread a result, which walks its window; max-pooling also writes int64 indices."""
    x = call.dense_input(call.tensors["self"], "pooling needs a contiguous input")
    rank = 3 if "3d" in call.node.packet else 2 if "2d" in call.node.packet else 1
    kernel = call.ints("kernel_size", rank, 1)
    stride = call.ints("stride", rank, 0)
    stride = [s or k for s, k in zip(stride, kernel, strict=True)]
    window = float(math.prod(kernel))
    call.launch(f"{call.node.packet} kernel", "pool", [x], list(call.outputs),
                flops=window * call.out.elements, window=window, rank=float(rank),
                stride=float(math.prod(stride)), index=float(len(call.outputs) > 1),
                dilated=float(math.prod(call.ints("dilation", rank, 1)) > 1),
                results=float(call.out.elements))  # fmt: skip


def _adaptive_pool(call: Call) -> None:
    x = call.tensors["self"]
    window = x.elements / max(call.out.elements, 1)
    call.launch(f"{call.node.packet} kernel", "pool", [x], list(call.outputs), flops=x.elements,
                window=window, rank=2.0, stride=window, index=float(len(call.outputs) > 1),
                dilated=0.0, results=float(call.out.elements))  # fmt: skip


_ITERATOR = Entry(_pointwise, "cuda/Loops.cuh, TensorIterator: one kernel, each operand once")
_REDUCE = Entry(_reduce, "cuda/Reduce.cuh: one reduce kernel; max.dim also writes int64 indices")
_POOL_MAX = Entry(_pool, "cuda/DilatedMaxPool2d.cu, DilatedMaxPool3d.cu: values and int64 indices")
_POOL_AVG = Entry(_pool, "cuda/AveragePool2d.cu, AveragePool3d.cu: one thread a result")

POINTWISE = [
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "atan",
    "bernoulli",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "ceil",
    "celu",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "div",
    "elu",
    "eq",
    "erf",
    "exp",
    "floor",
    "ge",
    "gelu",
    "glu",
    "gt",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "le",
    "leaky_relu",
    "lerp",
    "log",
    "log1p",
    "log_sigmoid_forward",
    "logical_and",
    "logical_not",
    "logical_or",
    "lt",
    "maximum",
    "minimum",
    "mish",
    "mul",
    "ne",
    "neg",
    "pow",
    "reciprocal",
    "relu",
    "remainder",
    "round",
    "rsqrt",
    "rsub",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "softshrink",
    "sqrt",
    "sub",
    "tanh",
    "threshold",
    "tril",
    "triu",
    "where",
    "_to_copy",
    "normal",
    "uniform",
    "smooth_l1_loss_pointwise",
    "prelu",
    "_prelu_kernel",
    "huber_pointwise",
    "selu",
    "rand",
    "randn",
]

TABLE: dict[str, Entry] = {
    **dict.fromkeys(POINTWISE, _ITERATOR),
    "fill": Entry(_fill, "cuda/FillKernel.cu"),
    "zero": Entry(_fill, "cuda/FillKernel.cu"),
    "zeros": Entry(_fill, "TensorFactories.cpp: empty, then fill"),
    "zeros_like": Entry(_fill, "TensorFactories.cpp: empty, then fill"),
    "ones": Entry(_fill, "TensorFactories.cpp: empty, then fill"),
    "ones_like": Entry(_fill, "TensorFactories.cpp: empty, then fill"),
    "full": Entry(_fill, "TensorFactories.cpp: empty, then fill"),
    "full_like": Entry(_fill, "TensorFactories.cpp: empty, then fill"),
    "arange": Entry(_fill, "cuda/RangeFactories.cu"),
    "clone": Entry(_copy, "cuda/Copy.cu"),
    "copy": Entry(_copy, "cuda/Copy.cu"),
    "contiguous": Entry(_copy, "cuda/Copy.cu"),
    "masked_fill": Entry(_masked_fill, "TensorAdvancedIndexing.cpp masked_fill"),
    "cat": Entry(_cat, "cuda/Shape.cu parallel_cat"),
    "stack": Entry(_cat, "cuda/Shape.cu parallel_cat"),
    "constant_pad_nd": Entry(_pad, "PadNd.cpp: empty, fill_, copy_ into the interior"),
    "flip": Entry(_flip, "cuda/TensorTransformations.cu"),
    "roll": Entry(_flip, "cuda/TensorTransformations.cu"),
    "native_dropout": Entry(_dropout, "cuda/Dropout.cu: values and a bool mask"),
    "embedding": Entry(_embedding, "cuda/Indexing.cu index_select"),
    "index_select": Entry(_copy, "cuda/Indexing.cu index_select"),
    "index": Entry(_copy, "cuda/IndexKernel.cu"),
    "gather": Entry(_copy, "cuda/ScatterGatherKernel.cu"),
    **dict.fromkeys(
        [
            "sum",
            "mean",
            "prod",
            "amax",
            "amin",
            "argmax",
            "argmin",
            "any",
            "all",
            "var",
            "std",
            "linalg_vector_norm",
            "max",
            "min",
            "var_mean",
            "std_mean",
        ],
        _REDUCE,
    ),
    "norm": Entry(_reduce, "ReduceOps.cpp norm: linalg_vector_norm, one reduce kernel"),
    "max.other": _ITERATOR,
    "min.other": _ITERATOR,
    "cumsum": Entry(_scan, "cuda/ScanUtils.cuh"),
    "cumprod": Entry(_scan, "cuda/ScanUtils.cuh"),
    "logsumexp": Entry(_logsumexp, "ReduceOps.cpp logsumexp_out_impl"),
    "_softmax": Entry(_softmax, "cuda/SoftMax.cu host_softmax"),
    "_log_softmax": Entry(_softmax, "cuda/SoftMax.cu host_softmax"),
    "nll_loss_forward": Entry(_nll_loss, "cuda/NLLLoss2d.cu, Loss.cu: one small reduction"),
    "native_batch_norm": Entry(_batch_norm, "Normalization.cpp _select_batch_norm_backend"),
    "_native_batch_norm_legit": Entry(_batch_norm, "as native_batch_norm"),
    "_native_batch_norm_legit_functional": Entry(_batch_norm, "as native_batch_norm"),
    "native_group_norm": Entry(_group_norm, "cuda/group_norm_kernel.cu"),
    "native_layer_norm": Entry(_layer_norm, "cuda/layer_norm_kernel.cu"),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), _POOL_MAX),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _POOL_AVG),
    **dict.fromkeys(
        ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d"),
        Entry(_adaptive_pool, "cuda/AdaptiveAveragePooling.cu, AdaptiveMaxPooling2d.cu"),
    ),
}
