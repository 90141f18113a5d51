"""Bad and odd ONNX files through the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_bad_input import headline, refused

from fuseledger.cli.main import run

pytestmark = pytest.mark.torch
onnx: Any = pytest.importorskip("onnx")


def saved(folder: Path, text: str, opset: int = 21) -> str:
    """A file of a model in ONNX's textual form, unchecked."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


X4 = "g (float[4] x) => (float[4] y)"
IMAGE = "g (float[1,3,2,2] x, float[4,3,3,3] w) => (float[1,4,n,n] y)"
REFUSED: dict[str, tuple[str, str]] = {
    "cycle": (f"{X4} {{ a = Relu (b) b = Relu (a) y = Add (x, b) }}", "depends on its own result"),
    "axis": (f"{X4} {{ y = Softmax <axis=7> (x) }}", "node y (Softmax) of [4]: "),
    "shapes": (
        "g (float[2,3] x, float[4,5] w) => (float[2,5] y) { y = MatMul (x, w) }",
        "node y (MatMul) of [2, 3], [4, 5]: Incompatible dimensions",
    ),
    "window": (f"{IMAGE} {{ y = Conv (x, w) }}", "windows of [3, 3] are larger than the input"),
    "pool": (
        "g (float[1,3,2,2] x) => (float[1,3,n,n] y) { y = MaxPool <kernel_shape=[3,3]> (x) }",
        "windows of [3, 3] are larger than the input",
    ),
    "no attribute": ("g (float[1,3,8,8] x) => (float y) { y = MaxPool (x) }", "has no attribute"),
    "no input": (f"{X4} {{ y = Add (x) }}", "node y (Add) has 1 inputs, and needs 2 inputs"),
    "empty": ("g (float[4] x) => (float[4] x) { }", "graph has no operators"),
    "dynamic": ("g (float[batch,4] x) => (float[batch,4] y) { y = Relu (x) }", "--dim batch=VALUE"),
    "negative": ("g (float[-3,4] x) => (float[-3,4] y) { y = Relu (x) }", "--dim x.0=VALUE"),
    "enormous": (
        "g (float[100000000,1] x, float[1,100000000] z) => (float[p,q] y) { y = Add (x, z) }",
        "y of shape [100000000, 100000000] has more than 281,474,976,710,656 elements",
    ),
    "two inputs": ("g (float x, float x) => (float y) { y = Relu (x) }", "2 inputs are named x"),
    "output": (
        "g (float[2,3] x, float[3,4] w) => (float[2,5] y) { y = MatMul (x, w) }",
        "output y is declared as [2, 5], but the rest of the model makes it [2, 4]",
    ),
    "output's rank": (
        "g (float[3,4] x) => (float[n,4,1] y) { y = Relu (x) }",
        "output y is declared as [?, 4, 1], but the rest of the model makes it [3, 4]",
    ),
    "between": (
        f"{X4} <float[5] a> {{ a = Relu (x) y = Relu (a) }}",
        "value a is declared as [5], but the rest of the model makes it [4]",
    ),
    "input": (
        "g (float[2] x, float[3] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }",
        "input w is declared as [3], but the rest of the model makes it [2]",
    ),
    "strings": ("g (string[2] x) => (string[2] y) { y = Identity (x) }", "elements of type STRING"),
}  # fmt: skip
"""Mistake → (model, what its line says)."""


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_broken_model_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, mistake: str
) -> None:
    """Each mistake names the file and the node, value or flag."""
    text, words = REFUSED[mistake]
    line = refused(capsys, "plan", saved(tmp_path, text))
    assert "model.onnx: " in line
    assert words in line


def test_a_symbolic_size_is_no_claim(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exporters reuse names: y has 2·3 rows, though the file calls them n. (12 + 24) · 4 bytes."""
    text = "g (float[n,4] x) => (float[n,4] y) { y = Concat <axis=0> (x, x) }"
    assert "144 B" in headline(capsys, "plan", saved(tmp_path, text), "--dim", "n=3")


@pytest.mark.parametrize(
    ("dim", "words"),
    [
        ("zz=3", "no symbolic dimension is named zz: its symbolic dimensions are batch"),
        ("batch=" + "9" * 30, "a dimension is at least 1 and at most 281,474,976,710,656"),
        ("batch=281474976710656", "x of shape [281474976710656, 4] has more than"),
    ],
)
def test_a_wrong_dimension_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, dim: str, words: str
) -> None:
    """`--dim` of a name that is not there, or of a size that no memory holds."""
    path = saved(tmp_path, "g (float[batch,4] x) => (float[batch,4] y) { y = Relu (x) }")
    assert words in refused(capsys, "plan", path, "--dim", dim)


def test_a_truncated_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A download that ended early."""
    path = Path(saved(tmp_path, f"{X4} {{ y = Relu (x) }}"))
    path.write_bytes(path.read_bytes()[:40])
    assert "not an ONNX file, or cut short" in refused(capsys, "plan", str(path))


def test_a_model_over_2_gib_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The remedy is external data; nothing of the file is read."""
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 3 * 2**30)
    assert "save the weights as external data" in refused(capsys, "plan", str(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dims": [-8, 4]}, "tensor w has shape [-8, 4]"),
        ({"data_type": 99}, "tensor w has elements of type number 99"),
        ({"raw_data": b"123"}, "tensor w is damaged"),
        ({"external": "../../etc/passwd"}, "outside the model's folder"),
        ({"external": "/etc/passwd"}, "outside the model's folder"),
    ],
)
def test_a_damaged_weight_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Shapes, types, data and places of weights that cannot be."""
    model = onnx.load(saved(tmp_path, "g (float[2,8] x) => (float[2,4] y) { y = MatMul (x, w) }"))
    place = changes.pop("external", None)
    weight = onnx.TensorProto(**{"name": "w", "data_type": 1, "dims": [8, 4], **changes})
    if place is not None:
        weight.data_location = 1
        weight.external_data.add(key="location", value=place)
    model.graph.initializer.append(weight)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert words in refused(capsys, "plan", str(path))


def test_missing_external_data_is_no_obstacle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A weight whose file is not there counts 8·4·4 of (2·8 + 8·4 + 2·4)·4 = 224 bytes."""
    model = onnx.load(saved(tmp_path, "g (float[2,8] x) => (float[2,4] y) { y = MatMul (x, w) }"))
    weight = onnx.TensorProto(name="w", data_type=1, dims=[8, 4], data_location=1)
    weight.external_data.add(key="location", value="weights.bin")
    model.graph.initializer.append(weight)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert "224 B (floor 224)" in headline(capsys, "plan", str(tmp_path / "model.onnx"))


ODD: dict[str, tuple[str, str]] = {
    "scalar": ("g (float x) => (float y) { y = Relu (x) }", "1 kernel, one an op: 8 B"),
    "no rows": ("g (float[0,4] x) => (float[0,4] y) { y = Relu (x) }", "1 kernel, one an op: 0 B"),
    "no columns": (
        "g (float[3,0] x, float[0,5] w) => (float[3,5] y) { y = MatMul (x, w) }",
        "1 kernel, one an op: 60 B",
    ),
    "no batch": (
        "g (float[0,3,8,8] x, float[4,3,3,3] w) => (float[0,4,6,6] y) { y = Conv (x, w) }",
        "1 kernel, one an op: 432 B",
    ),
    "softmax of nothing": (
        "g (float[2,0] x) => (float[2,0] y) { y = Softmax (x) }", "1 kernel instead of 2: 0 B"
    ),
    "views alone": (
        "g (float[3,4] x) => (float[4,3] y) { y = Transpose (x) }", "no kernel: nothing is computed"
    ),
}  # fmt: skip
"""Graph → (model, how its plan's headline begins)."""


@pytest.mark.parametrize("graph", ODD)
def test_scalars_and_empty_tensors_are_planned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, graph: str
) -> None:
    """Zero-size and scalar tensors, and graphs without work, are handled by every report."""
    text, words = ODD[graph]
    path = saved(tmp_path, text)
    assert headline(capsys, "plan", path).startswith(words)
    for form in ("json", "md", "html"):
        assert run(["plan", path, "--format", form]) == 0
    if "no kernel" not in words:
        assert run(["explain", path, "--kernel", "1"]) == 0
    assert run(["compare", path, "--peers", "eager"]) == 0
