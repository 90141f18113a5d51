"""ONNX files that are refused: one clear line each."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from fuseledger.errors import FuseledgerError, SourceError
from fuseledger.frontends.onnx import from_model, load
from fuseledger.graph.validate import validate

pytestmark = pytest.mark.torch


def parsed(text: str, opset: int = 21) -> Any:
    """A model from ONNX's textual form, unchecked."""
    import onnx

    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def refused(text: str, **options: Any) -> str:
    """The message with which a model is refused."""
    with pytest.raises(SourceError) as caught:
        from_model(parsed(text), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


RELU = "g (float[4] x) => (float[4] y) { y = Relu (x) }"


@pytest.mark.parametrize(
    "content",
    [b"", b"not a model at all\n" * 40, b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"\x00" * 64],
    ids=["empty", "text", "png", "zeros"],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    """Text, images and empty files are named as no ONNX file."""
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"bad\.onnx: not an ONNX file, or cut short"):
        load(path)


def test_a_model_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Whatever the length at which a file is cut, the error is a SourceError."""
    whole = parsed(RELU).SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(1, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"cut\.onnx"):
            load(path)


def test_a_damaged_model_never_gives_a_traceback(tmp_path: Path) -> None:
    """Each byte of a small model set to 255, 128 or 10: a graph or one printable line."""
    text = "g (float[2,3] x) => (float[2,3] y) { a = Softmax <axis=1> (x) y = Transpose (a) }"
    whole = parsed(text).SerializeToString()
    path = tmp_path / "damaged.onnx"
    messages: list[str] = []
    for position in range(len(whole)):
        for byte in (255, 128, 10):
            path.write_bytes(whole[:position] + bytes([byte]) + whole[position + 1 :])
            try:
                load(path)
            except FuseledgerError as error:
                messages.append(str(error))
    assert len(messages) > len(whole)
    assert all(message.isprintable() for message in messages)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """A path that is no file is named."""
    with pytest.raises(SourceError, match=r"none\.onnx: No such file"):
        load(tmp_path / "none.onnx")
    with pytest.raises(SourceError, match="not a file"):
        load(tmp_path)


def test_a_file_over_2_gib_is_refused_unread(tmp_path: Path) -> None:
    """The size is looked at before anything is read: the answer takes no time."""
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 3 * 2**30)
    start = time.perf_counter()
    with pytest.raises(SourceError, match="save the weights as external data"):
        load(path)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "place", ["../../etc/passwd", "/etc/passwd", "C:\\x", "a/../../b", "..\\b"]
)
def test_external_data_outside_the_folder_is_refused(place: str) -> None:
    """The tensor is named; its data is never opened."""
    with pytest.raises(SourceError, match=r"tensor w .*outside the model's folder"):
        from_model(_external(place))


def test_missing_external_data_is_left_unread() -> None:
    """Weights in a file that is not there are priced like any others."""
    graph = validate(from_model(_external("weights.bin")))
    assert graph.tensors["w"].shape == (8, 4)
    assert graph.tensors["w"].role == "weight"


def _external(place: str) -> Any:
    import onnx

    model = parsed("g (float[2,8] x) => (float[2,4] y) { y = MatMul (x, w) }")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[8, 4], data_location=1)
    tensor.external_data.add(key="location", value=place)
    model.graph.initializer.append(tensor)
    return model


X4 = "g (float[4] x) => (float[4] y)"
BROKEN: dict[str, tuple[str, str]] = {
    "cycle": (f"{X4} {{ a = Relu (b) b = Relu (a) y = Add (x, b) }}", "node [ab] .*own result"),
    "undefined": (f"{X4} {{ y = Relu (z) }}", "reads z, which nothing makes"),
    "no output": (f"{X4} {{ z = Relu (x) }}", "output y is made by no node"),
    "made twice": (f"{X4} {{ y = Relu (x) y = Exp (x) }}", "makes y, which exists"),
    "input made": ("g (float[4] x) => (float[4] x) { x = Relu (x) }", "makes x, which exists"),
    "two inputs": ("g (float x, float x) => (float y) { y = Relu (x) }", "2 inputs are named x"),
    "no nodes": ("g (float[4] x) => (float[4] x) { }", "graph has no operators"),
    "matmul": (
        "g (float[2,3] x, float[4,5] w) => (float[2,5] y) { y = MatMul (x, w) }",
        r"node y \(MatMul\) of \[2, 3\], \[4, 5\]: ",
    ),
    "add": (
        "g (float[3] x, float[4] w) => (float[4] y) { y = Add (x, w) }",
        r"node y \(Add\) of \[3\], \[4\]: ",
    ),
    "axis": (f"{X4} {{ y = Softmax <axis=7> (x) }}", r"node y \(Softmax\) of \[4\]: "),
    "strings": (
        "g (string[2] x) => (string[2] y) { y = Identity (x) }",
        "input x holds elements of type STRING",
    ),
    "sequence": (
        "g (seq(float[2]) x) => (float[2] y) { y = ConcatFromSequence <axis=0> (x) }",
        "input x is no tensor",
    ),
    "data-dependent": (
        "g (float[6] x) => (int64[1,n] y) { y = NonZero (x) }",
        r"output y \(NonZero\) .*--dim y\.0=VALUE",
    ),
}
"""Mistake → (model, what its message says)."""


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_broken_graph_is_refused(mistake: str) -> None:
    """Each mistake names its node or value."""
    text, message = BROKEN[mistake]
    assert re.search(message, refused(text))


def test_functions_that_call_themselves_are_refused() -> None:
    """Recursion between model-local functions is found before they are inlined."""
    model = parsed(RELU)
    model.opset_import.add(domain="own", version=1)
    for name, calls in (("f", "g"), ("g", "f")):
        function = model.functions.add(name=name, domain="own", input=["a"], output=["b"])
        function.opset_import.add(domain="own", version=1)
        function.node.add(op_type=calls, domain="own", input=["a"], output=["b"])
    model.graph.node[0].op_type, model.graph.node[0].domain = "f", "own"
    with pytest.raises(SourceError, match="calls itself"):
        from_model(model)


def test_functions_that_explode_are_refused() -> None:
    """Thirty functions that each call the next twice are a billion nodes: counted, not made."""
    model = parsed(RELU)
    model.opset_import.add(domain="own", version=1)
    for i in range(30):
        function = model.functions.add(name=f"f{i}", domain="own", input=["a"], output=["c"])
        function.opset_import.add(domain="own", version=1)
        domain, callee = ("own", f"f{i + 1}") if i < 29 else ("", "Relu")
        function.node.add(op_type=callee, domain=domain, input=["a"], output=["b"])
        function.node.add(op_type=callee, domain=domain, input=["b"], output=["c"])
    model.graph.node[0].op_type, model.graph.node[0].domain = "f0", "own"
    with pytest.raises(SourceError, match="more than 1,000,000 nodes"):
        from_model(model)


DYNAMIC = "g (float[batch,?,8] x) => (float[batch,?,8] y) { y = Relu (x) }"


def test_open_dimensions_are_named_with_the_remedy() -> None:
    """Named and unnamed dimensions, each with the flag that sets it."""
    message = refused(DYNAMIC)
    assert "--dim batch=VALUE" in message
    assert "--dim x.1=VALUE" in message


def test_unknown_dimensions_are_refused_with_those_that_exist() -> None:
    """A misspelt name is answered with the model's own."""
    message = refused(DYNAMIC, dims={"bach": 2, "x.1": 3})
    assert "no symbolic dimension is named bach" in message
    assert "batch" in message


def test_a_dimension_is_at_least_1() -> None:
    """A size of 0 or less is refused."""
    assert "at least 1" in refused(DYNAMIC, dims={"batch": 0})


def test_damaged_weights_are_refused() -> None:
    """A tensor whose data is shorter than its shape says is named."""
    import onnx

    model = parsed("g (float[4] x) => (float[4] y) { y = Add (x, w) }")
    model.graph.initializer.append(
        onnx.TensorProto(name="w", data_type=1, dims=[4], raw_data=b"\x00" * 7)
    )
    with pytest.raises(SourceError, match="tensor w is damaged"):
        from_model(model)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `onnx` the message is the exact pip command."""
    import sys

    from fuseledger.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r'pip install "fuseledger\[onnx\]"'):
        load("any.onnx")
