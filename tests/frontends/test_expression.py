"""Expressions: what the syntax means, without running it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseledger.errors import SourceError
from fuseledger.frontends.expression import parse
from fuseledger.frontends.expression_functions import FUNCTIONS, reference
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate

DOCS = Path(__file__).resolve().parents[2] / "docs" / "expressions.md"


def _functions(text: str) -> list[str]:
    return [op.function for op in validate(parse(text)).ops]


def _external(graph: Graph) -> dict[str, tuple[tuple[int, ...], str, str]]:
    return {t.name: (t.shape, t.dtype, t.role) for t in graph.tensors.values() if t.is_external}


def test_gemm_takes_m_n_k_and_makes_its_operands() -> None:
    """gemm(M, N, K) reads an input A[M,K] and a weight B[K,N]."""
    assert _external(parse("gemm(2,3,4)")) == {
        "A": ((2, 4), "fp16", "input"),
        "B": ((4, 3), "fp16", "weight"),
    }


def test_the_textbook_chain_moves_the_textbook_bytes() -> None:
    """4096³ with bias, GELU and residual has a floor of 134,225,920 bytes, as in the exercise."""
    graph = parse("gemm(4096,4096,4096) + bias + gelu + residual")
    assert [op.function for op in graph.ops] == ["gemm", "bias", "gelu", "residual"]
    assert graph.floor_bytes == 134_225_920


def test_a_declared_name_wins_over_a_stage() -> None:
    """`+ bias` adds the tensor where the text has declared one."""
    assert _functions("bias[8]; relu(x[4,8]) + bias") == ["relu", "add"]
    assert _functions("relu(x[4,8]) + bias") == ["relu", "bias"]


def test_a_call_after_plus_is_a_stage_only_without_a_tensor() -> None:
    """`+ gelu(y)` adds; `+ leaky_relu(0.2)` applies."""
    assert _functions("x[4] + gelu(y[4])") == ["gelu", "add"]
    assert _functions("x[4] + leaky_relu(0.2)") == ["leaky_relu"]


def test_a_pipe_feeds_the_first_function_of_a_sum() -> None:
    """`x | gelu + bias` is gelu(x) + bias."""
    assert _functions("x[4] | gelu + bias") == ["gelu", "bias"]


@pytest.mark.parametrize(
    ("text", "name", "role"),
    [
        ("x[2,3] @ w[3,4]", "w", "weight"),
        ("x[2,3] @ input w[3,4]", "w", "input"),
        ("x[2,5,3] @ v[2,3,4]", "v", "input"),
        ("conv(x[1,2,5], k[4,2,3])", "k", "weight"),
        ("embedding(ids[4], t[9,8])", "t", "weight"),
        ("x[2,3] * weight g[3]", "g", "weight"),
    ],
)
def test_roles_follow_from_the_place(text: str, name: str, role: str) -> None:
    """A matrix right of @, a filter and a table are weights; a written role wins."""
    assert parse(text).tensors[name].role == role


def test_dtypes_are_written_inherited_and_widened() -> None:
    """A tensor has its own dtype or the expression's; narrow products accumulate wider."""
    graph = parse("x[2,3] fp8 @ w[3,4] float8_e4m3fn", dtype="bf16")
    assert {t.dtype for t in graph.tensors.values() if t.is_external} == {"fp8_e4m3"}
    assert graph.tensors["out"].dtype == "bf16"
    assert parse("relu(x[3])", dtype="bf16").tensors["out"].dtype == "bf16"
    assert parse("x[3] int8 @ y[3,2] int8").tensors["out"].dtype == "int32"
    assert parse("x[3] > 0").tensors["out"].dtype == "bool"
    assert parse("embedding(ids[3], t[9,4])").tensors["ids"].dtype == "int64"


def test_statements_bind_names_and_the_rest_leaves() -> None:
    """Unbound expressions, and the names of a last assignment, are the results."""
    text = "n = 4; h = relu(x[n, 2*n])\na, b = split(h, 2)  # halves\na * b, sum(h)"
    graph = validate(parse(text))
    assert [result.name for result in graph.results] == ["out", "out_1"]
    assert graph.tensors["h"].shape == (4, 8)
    assert [r.name for r in parse("h = relu(x[3]); y = h * h").results] == ["y"]
    assert [r.name for r in parse("q, s = quantise(x[3,4])").results] == ["q", "s"]


@pytest.mark.parametrize(
    "text",
    [
        "x[4,8]\n| gelu\n| softmax",
        "x[4,8] |\n gelu | softmax",
        "softmax(\n  gelu(x[4,\n 8]),\n)",
        "\n\nx[4,8] | gelu | softmax;\n",
    ],
)
def test_line_breaks_inside_an_expression_separate_nothing(text: str) -> None:
    """Brackets and operators continue a line."""
    assert _functions(text) == ["gelu", "softmax.statistic", "softmax.apply"]


def test_dims_set_sizes_before_the_text_does() -> None:
    """A size of the caller is used instead of the text's own."""
    graph = parse("batch = 8; relu(x[batch, 4])", dims={"batch": 32})
    assert graph.tensors["x"].shape == (32, 4)
    with pytest.raises(SourceError, match="no size is called 'seq'"):
        parse("relu(x[4])", dims={"seq": 3})


def test_long_sums_and_deep_parentheses_need_no_stack() -> None:
    """Two thousand terms, and two thousand parentheses, are read."""
    assert len(parse("x[2]" + " + x" * 2000).ops) == 2000
    assert len(parse("(" * 2000 + "relu(x[2])" + ")" * 2000).ops) == 1


ERRORS = {
    "": (1, "empty"),
    "  # nothing": (1, "empty"),
    "gemm(4,4,4) + gelux": (15, "unknown function 'gelux'; did you mean 'gelu'"),
    "softmx(x[8])": (1, "did you mean 'softmax'"),
    "relu(x[8]) + yy": (14, "unknown name 'yy'; a tensor is declared with its sizes"),
    "relu": (1, "is a function; write relu"),
    "relu(x[0,3])": (8, "a size must be at least 1"),
    "relu(x[-2])": (8, "a size must be at least 1"),
    "relu(x[2.5])": (8, "a whole number"),
    "relu(x[1e30])": (8, "at most"),
    "relu(x[1e9, 1e9])": (6, "elements"),
    "relu(x[n])": (8, "unknown size 'n'"),
    "relu(x[1,1,1,1,1,1,1,1,1])": (6, "9 dimensions"),
    "x[8,16] @ y[4,5]": (9, "[8,16] @ [4,5]: the inner sizes 16 and 4 differ"),
    "x[2,8,16] @ y[3,16,5]": (11, "do not broadcast"),
    "x[8,16] + y[3,16]": (9, "shapes [8, 16] and [3, 16] do not broadcast"),
    "softmax(x[8,16], axis=2)": (23, "[8,16] has no axis 2; use -2 to 1"),
    "sum(x[8,16], [0,-2])": (14, "named twice"),
    "sum(x[], 0)": (10, "it has no axes"),
    "relu(x[8] bf17)": (11, "unknown dtype 'bf17'; did you mean 'bf16'"),
    "relu(foo x[8])": (6, "unknown role 'foo'"),
    "relu(x[8]": (5, "'(' is never closed"),
    "relu(x[8]))": (11, "')' closes nothing"),
    "relu(x[8)": (9, "'[' is closed by ')'"),
    "x[8] $ 2": (6, "unexpected '$'"),
    "x[8] +": (7, "something is missing at the end"),
    "x[8] y[8]": (7, "unexpected '['"),
    "relu(" * 200 + "x[2]" + ")" * 200: (701, "nested deeper than"),
    "softmax(x[8], ax=1)": (15, "no parameter 'ax'; it is softmax(x, axis=-1)"),
    "softmax(x[8], 0, 1)": (18, "too many arguments"),
    "softmax()": (1, "x is missing"),
    "softmax(x[8], axis=0, axis=0)": (23, "given twice"),
    "rms_norm(x[8], affine=2)": (23, "true or false"),
    "x[8] | gemm(1,2,3)": (8, "takes no tensor on its left"),
    "x[8] | 3": (8, "after | comes a function"),
    "quantise(x[8,8]) * 2": (18, "2 results; name them"),
    "quantise(x[8,8], bf16)": (1, "quantise knows"),
    "quantise(x[8,8], per=column)": (22, "per must be row or tensor"),
    "x[8,8] @ 3": (10, "not the number 3"),
    "1/0 * x[3]": (2, "division by zero"),
    "9**9**9 * x[3]": (2, "too large"),
    "(-2)**0.5 * x[3]": (5, "not real"),
    "x[8]": (1, "nothing is computed"),
    "transpose(x[8,4])": (1, "nothing is computed"),
    "3": (1, "a number is no result"),
    "relu(x[8]); relu(x[9])": (18, "already declared as [8] fp16"),
    "h = relu(x[8]); h[8] * 2": (17, "defined above"),
    "a, b = relu(x[8])": (1, "2 names for 1 results"),
    "2 = relu(x[8])": (1, "only a name"),
    "split(x[7], 2)": (1, "does not split"),
    "reshape(x[4,6], 5, 5)": (1, "[4,6] does not hold [5,5]"),
    "transpose(x[4,6], 0, 0)": (1, "no order"),
    "slice(x[4], 3, 9)": (1, "nothing of axis 0"),
    "concat(x[4], y[4,4])": (1, "differ in rank"),
    "concat(x[4,3], y[4,4])": (1, "[4, 4] beside [4, 3]"),
    "einsum('mk,kn', x[3,4], y[5,6])": (1, "'k' is 4 and 5 in shapes [3,4] and [5,6]"),
    "einsum('mk', x[3,4], y[5,6])": (1, "1 operands, and 2 are given"),
    "einsum('mm', x[3,3])": (1, "different letters"),
    "einsum('mk->q', x[3,3])": (1, "in no operand"),
    "einsum(x[3,3])": (8, "text in quotes"),
    "einsum('')": (1, "operands is missing"),
    "conv(x[1,3,8,8], w[4,2,3,3])": (1, "weight [4,2,3,3] does not fit [1,3,8,8]"),
    "conv(x[1,3,8,8], w[4,3,9,9])": (1, "larger than"),
    "conv(x[3,8], w[4,3])": (1, "conv needs"),
    "max_pool(x[1,1,4,4], [2,2,2])": (1, "3 values for 2 spatial axes"),
    "max_pool(x[1,1,4,4], 2, stride=0)": (1, "stride must be at least 1"),
    "attention(q[2,4,8,16], k[2,3,8,16], v[2,3,8,16])": (1, "heads do not agree"),
    "attention(q[2,4,8,16], k[2,4,8,8], v[2,4,8,8])": (1, "do not agree"),
    "rope(x[4,7])": (1, "even size"),
    "group_norm(x[2,6,4], 4)": (1, "do not split into 4 groups"),
    "layer_norm(x[8], dims=2)": (1, "dims is 2"),
    "swiglu(x[3,7])": (1, "halves the last axis"),
    "embedding(ids[4] fp32, t[3,4])": (1, "indices must be integers"),
    "topk(x[8], 9)": (1, "fewer than 9"),
    "dropout(x[8], 1)": (1, "p is 1"),
    "'text'": (1, "not a tensor"),
    "[1,2] | relu": (1, "not a tensor"),
}


@pytest.mark.parametrize("text", ERRORS)
def test_a_mistake_names_its_place(text: str) -> None:
    """One line with the column and the remedy, then the source with a caret below it."""
    column, message = ERRORS[text]
    with pytest.raises(SourceError) as caught:
        parse(text)
    first, *shown = str(caught.value).split("\n")
    assert first.startswith(f"expression: column {column}: ")
    assert message in first
    if shown:
        source, caret = shown
        assert caret.strip() == "^"
        under = source[caret.index("^") :][:1] or " "
        assert under == (text + " ")[column - 1]


def test_the_documented_mistake_reads_as_documented() -> None:
    """The caret of docs/expressions.md is the one that is shown."""
    with pytest.raises(SourceError) as caught:
        parse("gemm(4096,4096,4096) + gelux")
    assert "\n".join(f"    {line}" for line in str(caught.value).split("\n")) in DOCS.read_text()


def test_a_mistake_in_a_later_line_names_the_line() -> None:
    """Several lines: the message has the line, and only that line is shown."""
    with pytest.raises(SourceError, match=r"line 2, column 5: .*\n  y = relx\(h\)\n      \^") as e:
        parse("h = relu(x[8])\ny = relx(h)\ny")
    assert str(e.value).count("\n") == 2


def test_an_unknown_default_dtype_is_refused() -> None:
    """--dtype is checked as a written dtype is."""
    with pytest.raises(SourceError, match="unknown dtype 'fp17'"):
        parse("relu(x[8])", dtype="fp17")


def test_the_documentation_lists_every_function() -> None:
    """docs/expressions.md holds the table that the code makes."""
    text = DOCS.read_text(encoding="utf-8")
    assert reference() in text, (
        "replace the table by fuseledger.frontends.expression_functions.reference()"
    )


def test_the_documented_statements_can_be_read() -> None:
    """Every indented example of docs/expressions.md is an expression, or shows a mistake."""
    text = DOCS.read_text(encoding="utf-8").split("## Mistakes")[0]
    blocks = re.findall(r"(?:^    .*\n)+", text, flags=re.MULTILINE)
    assert len(blocks) >= 3
    for block in blocks:
        if "fuseledger plan" in block:
            parse(block.split('"')[1])
        elif "|" in block and "=" not in block:
            for line in block.splitlines():
                parse(line)
        else:
            parse(block)


def test_aliases_name_one_function_each() -> None:
    """No alias shadows a function or another alias."""
    words = [word for row in FUNCTIONS.values() for word in (row.name, *row.aliases)]
    assert len(words) == len(set(words))


PIECES = """x[2,3] y[3] w[3,4] x relu gelu softmax bias quantise( split( gemm(2,3,4) einsum( sum(
conv( 'ij->i' axis= true none fp8 0 1 2.5 1e9 h a # $ ( ) [ ] , ; + - * / @ | = < ** =="""
WORDS = st.sampled_from([*PIECES.split(), "\n"])


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is written gives a valid graph or a SourceError, never another exception."""
    try:
        graph = parse(text)
    except SourceError:
        return
    validate(graph)


def test_reading_needs_no_array_library() -> None:
    """The frontend and a parse import neither NumPy nor torch."""
    program = (
        "import sys; from fuseledger.frontends.expression import parse; parse('relu(x[4])');"
        "sys.exit(bool({'numpy', 'torch', 'onnx'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
