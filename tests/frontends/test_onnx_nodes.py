"""ONNX's own backend tests of single operators, against the graph evaluated in float64."""

from __future__ import annotations

import re

import pytest
from onnx_reference import node_cases, outcome

pytestmark = pytest.mark.torch

EXCLUDED: tuple[tuple[str, str], ...] = (
    ("bernoulli|training_dropout", "random numbers have no fixed value"),
    ("bitshift_(left|right)_int.*(overflow|shift_ge_width|negative_shift)", "integers do not wrap"),
    ("empty_set_bool", "the greatest of no elements is −∞, whatever the dtype"),
    ("bfloat16|_bf16|to_BFLOAT16", "the reference rounds every step to bfloat16"),
    ("to_FLOAT8|to_FLOAT4|to_INT4", "codes of infinities, NaN and overflow in narrow types"),
    ("nan_robust", "a row of scores that is masked out whole gives NaN, not 0"),
    ("test_dynamicquantizelinear(_expanded)?$", "a tie that float32 rounds the other way"),
    (
        "dropout_default_mask|optional_has_element_empty",
        "the result is a weight: nothing is computed",
    ),
)
"""(cases, why the evaluator cannot agree); what they test is lowered all the same."""

AGREE: dict[str, int] = {
    "Abs": 1, "Acos": 2, "Acosh": 2, "Add": 8, "AffineGrid": 4, "And": 8, "ArgMax": 16,
    "ArgMin": 16, "Asin": 2, "Asinh": 2, "Atan": 2, "Atanh": 2, "Attention": 143,
    "AveragePool": 16, "BatchNormalization": 4, "BitShift": 18, "BitwiseAnd": 4, "BitwiseNot": 3,
    "BitwiseOr": 4, "BitwiseXor": 4, "Cast": 50, "CastLike": 25, "CausalConvWithState": 24,
    "Ceil": 2, "Celu": 4, "CenterCropPad": 6, "Clip": 22, "Col2Im": 5, "Concat": 12, "Constant": 1,
    "Conv": 6, "ConvInteger": 2, "ConvTranspose": 11, "Cos": 2, "Cosh": 2, "CumProd": 9,
    "CumSum": 9, "DepthToSpace": 4, "DequantizeLinear": 12, "Div": 10, "Dropout": 4,
    "DynamicQuantizeLinear": 4, "Einsum": 5, "Elu": 6, "Equal": 8, "Erf": 1, "Exp": 2, "Expand": 2,
    "EyeLike": 3, "Flatten": 9, "FlexAttention": 22, "Floor": 2, "Gather": 4, "GatherElements": 3,
    "GatherND": 3, "Gelu": 8, "Gemm": 11, "GlobalAveragePool": 2, "GlobalMaxPool": 2, "Greater": 8,
    "GreaterOrEqual": 16, "GridSample": 15, "GroupNormalization": 4, "HardSigmoid": 6,
    "HardSwish": 2, "Hardmax": 7, "Identity": 3, "InstanceNormalization": 2, "IsInf": 4,
    "IsNaN": 2, "LRN": 2, "LayerNormalization": 57, "LeakyRelu": 6, "Less": 8, "LessOrEqual": 16,
    "Log": 2, "LogSoftmax": 21, "LpNormalization": 6, "LpPool": 8, "MatMul": 7, "MatMulInteger": 1,
    "Max": 14, "MaxPool": 17, "Mean": 3, "MeanVarianceNormalization": 3, "Min": 14, "Mish": 2,
    "Mod": 19, "Mul": 9, "Neg": 2, "NegativeLogLikelihoodLoss": 36, "Not": 3, "OneHot": 5, "Or": 8,
    "PRelu": 4, "Pad": 6, "Pow": 12, "QLinearConv": 1, "QLinearMatMul": 8, "QuantizeLinear": 10,
    "RMSNormalization": 38, "Reciprocal": 2, "ReduceL1": 18, "ReduceL2": 18, "ReduceLogSum": 10,
    "ReduceLogSumExp": 18, "ReduceMax": 10, "ReduceMean": 8, "ReduceMin": 10, "ReduceProd": 9,
    "ReduceSum": 12, "ReduceSumSquare": 18, "Relu": 2, "Reshape": 10, "Resize": 4,
    "ReverseSequence": 2, "RotaryEmbedding": 16, "Round": 1, "Selu": 6, "Shape": 11, "Shrink": 4,
    "Sigmoid": 2, "Sign": 1, "Sin": 2, "Sinh": 2, "Size": 2, "Slice": 8, "Softmax": 21,
    "SoftmaxCrossEntropyLoss": 68, "Softplus": 4, "Softsign": 4, "SpaceToDepth": 8, "Split": 16,
    "Sqrt": 2, "Squeeze": 2, "Sub": 9, "Sum": 3, "SwiGLU": 6, "Swish": 2, "Tan": 2, "Tanh": 2,
    "TensorScatter": 3, "ThresholdedRelu": 6, "Tile": 2, "Transpose": 7, "Trilu": 18,
    "Unsqueeze": 7, "Upsample": 1, "Where": 2, "Xor": 8,
}  # fmt: skip
"""Operator → backend cases that agree; the rest of its cases are barriers or excluded."""


@pytest.mark.parametrize("operator", AGREE)
def test_operator_agrees_with_onnx(operator: str) -> None:
    """Every case of the operator that is lowered without a barrier gives ONNX's own result."""
    excluded = re.compile("|".join(pattern for pattern, _ in EXCLUDED))
    cases = [case for case in node_cases()[operator] if not excluded.search(case.name)]
    outcomes = [outcome(case) for case in cases]
    assert not [o for o in outcomes if o not in ("agrees", "barrier", "refused")]
    assert outcomes.count("agrees") >= AGREE[operator]


def test_the_sweep_covers_most_of_onnx() -> None:
    """150 operators and 1,330 cases agree; the sweep fails where one of them no longer does."""
    assert len(AGREE) == 150
    assert sum(AGREE.values()) > 1330
    assert set(AGREE) <= set(node_cases())
