"""SOURCE dispatch: which reader a source goes to, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from fuseledger.errors import SourceError
from fuseledger.frontends.expression import parse
from fuseledger.frontends.source import load


def _reader(
    monkeypatch: pytest.MonkeyPatch, module: str, function: str
) -> list[tuple[object, ...]]:
    """Stand in for a reader; the calls that it gets."""
    calls: list[tuple[object, ...]] = []
    stand_in = ModuleType(f"fuseledger.frontends.{module}")

    def record(*args: object, **kwargs: object) -> object:
        calls.append((*args, *kwargs.values()))
        return parse("relu(x[2])")

    setattr(stand_in, function, record)
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    return calls


@pytest.mark.parametrize(
    ("name", "module"), [("m.onnx", "onnx"), ("M.PT2", "aten_pt2"), ("m.json", "aten_json")]
)
def test_a_file_goes_to_the_reader_of_its_suffix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, module: str
) -> None:
    """.onnx, .pt2 and .json files are read by their own frontends, whatever the case."""
    path = tmp_path / name
    path.write_bytes(b"")
    calls = _reader(monkeypatch, module, "load")
    load(str(path))
    assert calls[0][0] == path


def test_sizes_are_passed_to_onnx_and_expressions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """dims reach the readers of symbolic sizes."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    calls = _reader(monkeypatch, "onnx", "load")
    load(str(path), dims={"batch": 4})
    assert calls == [(path, {"batch": 4})]
    assert load("relu(x[batch])", dims={"batch": 4}).tensors["x"].shape == (4,)


def test_a_factory_goes_to_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """file.py:factory is a module of PyTorch, wherever the file is."""
    path = tmp_path / "my model.py"
    path.write_text("")
    calls = _reader(monkeypatch, "torch", "load_factory")
    load(f"{path}:factory")
    assert calls == [(f"{path}:factory",)]


def test_anything_else_is_an_expression() -> None:
    """An expression is recognised, in the dtype that is asked for."""
    graph = load("gemm(2,3,4) + bias", dtype="bf16")
    assert [op.function for op in graph.ops] == ["gemm", "bias"]
    assert graph.tensors["A"].dtype == "bf16"
    assert len(load("x[4]/y[4]").ops) == 1
    assert len(load("n = 4.0; relu(x[n]) / 2.5").ops) == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.onnx", "missing.onnx: no such file"),
        ("some dir/missing.pt2", "some dir/missing.pt2: no such file"),
        ("missing.py:factory", "missing.py: no such file"),
        ("missing.py", "missing.py: no such file"),
        ("package.module:factory", "package.module is no Python file; write it as file.py:factory"),
        ("model.safetensors", "model.safetensors: no such file; a SOURCE is"),
        ("./models/mine", "./models/mine: no such file; a SOURCE is"),
        ("gelux(x[2])", "unknown function 'gelux'"),
        ("", "it is empty"),
        ("x" * 5000, "unknown name"),
        ("a\0b", "unexpected"),
    ],
)
def test_what_does_not_exist_is_named(source: str, message: str) -> None:
    """A source that is neither a file nor an expression is refused in one clear line."""
    with pytest.raises(SourceError) as caught:
        load(source)
    assert message in str(caught.value).split("\n")[0]


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    """A directory, an unknown suffix and a Python file without a factory say what is accepted."""
    weights, module = tmp_path / "model.safetensors", tmp_path / "model.py"
    weights.write_bytes(b"")
    module.write_text("")
    with pytest.raises(SourceError, match="is a directory; a SOURCE is"):
        load(str(tmp_path))
    with pytest.raises(SourceError, match=r"cannot read a '.safetensors' file; a SOURCE is"):
        load(str(weights))
    with pytest.raises(SourceError, match=r"as in .*model.py:factory"):
        load(str(module))
    with pytest.raises(SourceError, match=r"as in .*model.py:factory"):
        load(f"{module}:")
    with pytest.raises(SourceError, match="drop batch"):
        load(f"{module}:factory", dims={"batch": 2})
