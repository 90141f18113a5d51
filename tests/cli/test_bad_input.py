"""Bad input through the command line: one line on stderr, exit code 2, nothing on stdout."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fuseledger.cli.main import run
from fuseledger.devices import load

CHAIN = "gemm(64,64,64) + bias"


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line with which a command is refused."""
    code = run(list(args))
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said
    (line,) = said.err.splitlines()
    assert line.startswith("fuseledger: ")
    assert "Error(" not in line
    assert line.isprintable()
    return line


def headline(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The first line of a report that succeeds and leaves stderr empty."""
    assert run(list(args)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()[0]


# -- the command itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("plan", CHAIN, "--device", ""), "unknown device ''"),
        (("plan", CHAIN, "--device", "H100 SXM"), "unknown device 'H100 SXM'"),
        (("plan", CHAIN, "--dtype", "FP16"), "unknown dtype 'FP16'; known are fp64"),
        (("plan", CHAIN, "--cut", "1,2"), "cut 1,2: lengths must be at least 1 and add up to the"),
        (("plan", CHAIN, "--cuts", "1,1/3"), "cut 3: lengths must be"),
        (("plan", CHAIN, "--cut", ""), "expected lengths of consecutive ops"),
        (("plan", CHAIN, "--dim", "batch=²"), "expected NAME=VALUE"),
        (("plan", CHAIN, "--time-limit", "nan"), "'nan' is not a valid number of seconds"),
        (("plan", CHAIN, "--time-limit", "-1"), "-1.0 is not in the range"),
        (("explain", CHAIN, "--kernel", "x"), "'x' is not a valid whole number"),
        (("explain", CHAIN, "--kernel", "9" * 18), "the plan of gemm(64,64,64) + bias has one"),
        (("plan", "nope:make"), "nope is no Python file; write it as file.py:factory"),
        (("plan", "onnx:resnet51"), "no such model in the onnx package; it ships bvlc_alexnet"),
        (("plan", CHAIN, "-o", "/dev/full"), "/dev/full: cannot be written: no space left"),
        (("decide", "gemm", "8x8x8", "-o", "/no/such/d.md"), "no folder /no/such"),
        (("textbook", "chain", "-o", "/no/such/t.md"), "no folder /no/such"),
        (("textbook", "chain", "--size", "99999999x99999999x9"), "and must be at most"),
        (("devices", "-o", "/no/such/d.txt"), "no folder /no/such"),
        (("validate", "/no/such/corpus"), "no such file or folder"),
        (("validate", ".", "-o", "/no/such/v.md"), "no folder /no/such"),
        (("compile", CHAIN, "--format", "md"), "'md' is not one of 'text', 'json'"),
        (("emit", CHAIN), "name the folder to write: -o DIR"),
        (("compare", CHAIN, "--peers", ""), "'': one or more of eager"),
    ],
)
def test_a_wrong_option_is_one_line(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str
) -> None:
    """Each wrong value is named with what is expected of it."""
    if "resnet51" in args[1]:
        pytest.importorskip("onnx")
    assert words in refused(capsys, *args)


@pytest.mark.parametrize("command", [[], ["decide"]])
def test_a_command_without_arguments_shows_its_help(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Help that nobody asked for goes to stderr, as it is, with exit code 2."""
    assert run(command) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Usage: fuseledger")


# -- files of any kind -------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["onnx", "pt2", "json", "py", "safetensors"])
def test_a_folder_is_no_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    """A folder is refused whatever it is called."""
    folder = tmp_path / f"model.{suffix}"
    folder.mkdir()
    assert "is a directory; a SOURCE is" in refused(capsys, "plan", str(folder))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.onnx", "not an ONNX file, or cut short"),
        ("m.pt2", "no .pt2 archive, or a damaged one"),
        ("m.json", "not JSON"),
        ("m.bin", "cannot read a '.bin' file"),
    ],
)
def test_an_empty_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, words: str
) -> None:
    """Nothing is read from a file of no bytes."""
    if name == "m.onnx":
        pytest.importorskip("onnx")
    (tmp_path / name).touch()
    assert words in refused(capsys, "plan", str(tmp_path / name))


def test_names_may_be_of_any_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file, a folder and tensors named beyond ASCII are read like any others."""
    folder = tmp_path / "模 型"
    folder.mkdir()
    document = _json()
    for entry in (document["inputs"][0], document["nodes"][0]["inputs"][0]):
        entry["id"] = entry["name"] = "вход 🙂"
    (folder / "ü.json").write_text(json.dumps(document, ensure_ascii=False))
    assert headline(capsys, "plan", str(folder / "ü.json")).startswith("1 kernel")


def test_a_name_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A file name of other bytes than UTF-8 reaches us as halves of characters."""
    line = refused(capsys, "plan", os.fsdecode(b"mod\xe8le.onnx"))
    assert "a name that is no UTF-8 text; rename the file" in line


# -- ATen JSON ---------------------------------------------------------------------------------


def _json(**changes: object) -> dict[str, Any]:
    x = {"id": "x", "name": "x", "shape": [2, 3], "dtype": "float32"}
    node = {
        "id": "relu", "op": "aten.relu.default", "inputs": [{"arg": "self", **x}], "attrs": {},
        "outputs": [{**x, "id": "relu"}],
    }  # fmt: skip
    document = {
        "name": "one", "inputs": [dict(x)], "params": [], "constants": [], "nodes": [node],
        "outputs": ["relu"],
    }  # fmt: skip
    return {**document, **changes}


X = {"id": "x", "name": "x", "shape": [2, 3], "dtype": "float32"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("null", "the file is no object"),
        ("[]", "the file is no object"),
        ("{}", "the file has no field 'name'"),
        ("[" * 50_000, "nested too deeply"),
        (_json(nodes=3), "nodes of the file is not a list"),
        (_json(nodes=[None]), "nodes of the file holds what is no object"),
        (_json(inputs={"a": 1}), "inputs of the file is not a list"),
        (_json(nodes=[], outputs=[]), "returns no tensor"),
        (_json(outputs=["gone"]), "output gone is made by no node"),
        (_json(inputs=[{**X, "shape": None}]), "shape of tensor x is not a list"),
        (_json(inputs=[{**X, "shape": [-2, 3]}]), "tensor x has no fixed shape: [-2, 3]"),
        (_json(inputs=[{**X, "shape": [2.5, 3]}]), "tensor x has no fixed shape: [2.5, 3]"),
        (_json(inputs=[{**X, "shape": [2**50]}]), "tensor x of shape [1125899906842624] has more"),
        (_json(inputs=[{**X, "dtype": "float33"}]), "tensor x has unknown dtype float33"),
        (_json(inputs=[{**X, "id": "\ud800"}]), "damaged: a name in it is no Unicode text"),
        (_json(inputs=[X, X]), "two tensors are named x"),
        (_json(nodes=_json()["nodes"] * 2), "two nodes are named relu"),
        (_json(nodes=[{**_json()["nodes"][0], "op": 5}]), "op of node relu is not a text"),
        (_json(nodes=[{**_json()["nodes"][0], "attrs": []}]), "attrs of node relu is not an obj"),
        (_json(inputs=[]), "node relu reads unknown x"),
    ],
)  # fmt: skip
def test_a_broken_aten_graph_names_the_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: object, words: str
) -> None:
    """JSON of the wrong shape is told by field, tensor or node."""
    path = tmp_path / "graph.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    line = refused(capsys, "plan", str(path))
    assert "graph.json" in line
    assert words in line


def test_an_unknown_operator_is_a_barrier_and_the_plan_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its name is shown once, with its count; control characters in it reach no terminal."""
    node = _json()["nodes"][0]
    first = {**node, "op": "own.fold\x1b[31m.default"}
    again = {**first, "id": "more", "inputs": [{"arg": "self", "id": "relu"}]}
    again["outputs"] = [{**X, "id": "more"}]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(_json(nodes=[first, again], outputs=["more"])))
    assert run(["plan", str(path)]) == 0
    out = capsys.readouterr().out
    assert "barriers  2 own.fold�[31m" in out
    assert "\x1b" not in out


def test_a_source_of_fixed_sizes_takes_no_dim(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--dim` on a graph without symbolic sizes says that they are fixed."""
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(_json()))
    line = refused(capsys, "plan", str(path), "--dim", "batch=4")
    assert "sizes are fixed by its example inputs; drop batch" in line


# -- .pt2 archives -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"readme.txt": "hello"}, "holds no models/*.json"),
        ({"archive/data.pkl": pickle.dumps({"a": 1}), "archive/version": "3"}, "holds no models/"),
        ({"m/models/model.json": "{}"}, "it has no 'graph_module'"),
        ({"m/models/model.json": "null"}, "not a torch.export graph"),
        ({"m/models/model.json": b"\xff\xfe\x00"}, "its graph is no JSON"),
        ({"m/models/model.json": "[" * 50_000}, "nested too deeply"),
    ],
)
def test_a_zip_of_something_else_is_no_archive(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, files: dict[str, str | bytes], words: str
) -> None:
    """Archives without a torch.export graph say what they lack; pickles in them stay unread."""
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    line = refused(capsys, "plan", str(path))
    assert "model.pt2" in line
    assert words in line


def test_a_bare_pickle_is_no_archive(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A pickle by the name of an archive is refused, and never run."""
    path = tmp_path / "model.pt2"
    path.write_bytes(b"cos\nmkdir\n(S'" + os.fsencode(tmp_path / "ran") + b"'\ntR.")
    assert "no .pt2 archive" in refused(capsys, "plan", str(path))
    assert not (tmp_path / "ran").exists()


# -- device files ------------------------------------------------------------------------------


def _device_file(**changes: str | None) -> str:
    """A device file with the figures of a catalog device; a change replaces a field's value."""
    device = load("a10g")
    lines = [f'name = "mine"\ntitle = "Mine"\nvendor = "{device.vendor}"\narch = "{device.arch}"\n']
    for field, figure in device.figures.flat().items():
        value = changes.get(field, repr(figure.value).lower())
        if value is not None:
            lines.append(f'[{field}]\nvalue = {value}\nsource = "mine"\n')
    return "".join(lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dram_bandwidth_gbs": "nan"}, "dram_bandwidth_gbs.value: expected `float` > 0.0"),
        ({"dram_bandwidth_gbs": "-1.0"}, "dram_bandwidth_gbs.value: expected `float` > 0.0"),
        ({"dram_bandwidth_gbs": "inf"}, "dram_bandwidth_gbs.value: expected `float` < 1e+18"),
        ({"sm_count": "-80"}, "sm_count.value: expected `int` >= 1"),
        ({"sm_count": "0"}, "sm_count.value: expected `int` >= 1"),
        ({"sm_count": '"80"'}, "sm_count.value: expected `int`, got `str`"),
    ],
)
def test_a_figure_that_cannot_be_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, str | None], words: str
) -> None:
    """NaN, negative and infinite figures of a device file are named by field."""
    path = tmp_path / "mine.toml"
    path.write_text(_device_file())
    assert headline(capsys, "plan", CHAIN, "--device", str(path)).endswith("on mine")
    path.write_text(_device_file(**changes))
    assert f"mine.toml: {words}" in refused(capsys, "plan", CHAIN, "--device", str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "name: missing"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"name = ", "not valid TOML"),
        (_device_file().encode() + b"[sm_cuont]\nvalue = 3\n", "sm_cuont: unknown field (nearest"),
    ],
)
def test_a_device_file_is_validated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, words: str
) -> None:
    """Empty, binary, broken and misspelt device files are one line."""
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    assert words in refused(capsys, "plan", CHAIN, "--device", str(path))


def test_a_folder_is_no_device_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A folder named like a device file is refused."""
    (tmp_path / "mine.toml").mkdir()
    line = refused(capsys, "plan", CHAIN, "--device", str(tmp_path / "mine.toml"))
    assert "not a file" in line


# -- modules -----------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def make(): raise ValueError('no such size\\nsee the manual')", "ValueError: no such"),
        ("def make(): return nn.Linear(2, 2)", "the factory returned Linear; it must return"),
        ("def make(): return nn.Linear(2, 2), (), {}, 5", "returned 4 values; it must return"),
        ("def make(): return nn.Linear(2, 2), (1,), 5", "keyword inputs are no dict"),
        ("def make(): return nn.Linear(2, 2), (torch.ones(3),)", "torch.export refuses it"),
        ("raise SystemExit(4)", "cannot be run: SystemExit: 4"),
    ],
)
def test_a_factory_that_fails_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str, words: str
) -> None:
    """What a factory raises or wrongly returns is one line that names file and factory."""
    pytest.importorskip("torch")
    path = tmp_path / "model.py"
    path.write_text(f"import torch\nfrom torch import nn\n{body}\n")
    line = refused(capsys, "plan", f"{path}:make", "--quiet")
    assert f"{path}:make" in line
    assert words in line
