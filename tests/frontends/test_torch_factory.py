"""Factories, `.pt2` archives, full-size models on fake tensors, and what goes wrong with them."""

# ruff: noqa: E402 -- torch is optional

from __future__ import annotations

import resource
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

from fuseledger.errors import SourceError
from fuseledger.frontends import aten_pt2
from fuseledger.frontends import torch as frontend
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate

pytestmark = pytest.mark.torch

MODELS = Path(__file__).resolve().parents[2] / "examples/models.py"


def _model(name: str) -> Graph:
    pytest.importorskip("transformers")
    return validate(frontend.load_factory(f"{MODELS}:{name}"))


FULL_SIZE = {
    # floor in MB: parameters and activations at two bytes, by hand for the first two
    "llama3_8b_block": (22, {}),
    "llama3_8b_block_decode": (24, {}),
    "qwen3_8b_block": (26, {}),
    "mixtral_8x7b_block": (
        43,
        {
            "aten.topk": 1,
            "aten.sort": 1,
            "aten.histc": 1,
            "aten._grouped_mm": 2,
            "aten.index_put_": 1,
        },
    ),
    "bert_base": (299, {}),
    "gpt2": (245, {}),
    "vit_b16": (297, {}),
    "convnext_tiny": (219, {}),
    "resnet50": (175, {}),
    "unet_block": (122, {}),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_model_loads(name: str) -> None:
    """The published size lowers to a valid graph with this many ops and these barriers."""
    if name == "unet_block":
        pytest.importorskip("diffusers")
    graph = _model(name)
    assert (len(graph.ops), graph.barriers) == FULL_SIZE[name]


def test_llama_block_floor_is_its_weights_and_activations() -> None:
    """218,112,000 bf16 weights, two activations of 2048 by 4096, and the rotary tables."""
    graph = _model("llama3_8b_block")
    weights = 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336 + 2 * 4096
    tables = 2 * 2048 * 128
    assert graph.floor_bytes == 2 * (weights + 2 * 2048 * 4096 + tables)


TIMM = {
    # parameters, as timm's own table of results counts them (millions, two decimals)
    "swin_tiny": (28.29, 348),
    "efficientnet_b0": (5.29, 271),
    "mixer_b16": (59.88, 199),
}


@pytest.mark.parametrize("name", TIMM)
def test_model_of_timm_loads(name: str) -> None:
    """A published timm model lowers without a barrier, with the parameters that it is known for."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    graph = validate(frontend.load_factory(f"{MODELS}:{name}"))
    millions, ops = TIMM[name]
    weights = [tensor for tensor in graph.tensors.values() if tensor.role == "weight"]
    assert sum(tensor.elements for tensor in weights) == pytest.approx(millions * 1e6, rel=2e-2)
    assert (len(graph.ops), graph.barriers) == (ops, {})


PEAK = """
import resource, sys
import transformers.models.llama.modeling_llama
from fuseledger.frontends.torch import load_factory
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
graph = load_factory(sys.argv[1])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(after - before, sum(t.bytes for t in graph.tensors.values() if t.role == "weight"))
"""


def test_a_70b_block_allocates_nothing() -> None:
    """One Llama-3-70B layer, 855,654,400 weights, adds less than 200 MB to a process's peak."""
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, f"{MODELS}:llama3_70b_block"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    added_kb, weights = map(int, done.stdout.split())
    matrices = 8192 * (8192 + 1024 + 1024 + 8192) + 3 * 8192 * 28672
    assert weights >= 2 * (matrices + 2 * 8192)
    assert added_kb < 200_000


def test_32_layers_allocate_nothing() -> None:
    """Llama-3-8B, 16 GB of weights, loads within 1 GB of memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = _model("llama3_8b")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kB
    weights = sum(t.bytes for t in graph.tensors.values() if t.role == "weight")
    assert weights > 16e9
    assert len(graph.ops) == 708


def _file(folder: Path, body: str) -> str:
    path = folder / "model.py"
    path.write_text(f"import torch\nfrom torch import nn\n{body}\n")
    return f"{path}:make"


MISTAKES = {
    "no factory": ("", "defines no make"),
    "not callable": ("make = 3", "holds no function make"),
    "broken file": ("def make(:", "cannot be run: SyntaxError"),
    "missing import": ("import no_such_module_xyz", "cannot be run: ModuleNotFoundError"),
    "raises": ("def make(): raise ValueError('boom')", "the factory raised: ValueError: boom"),
    "exits": ("def make(): raise SystemExit(3)", "the factory raised: SystemExit: 3"),
    "wrong result": ("def make(): return 3", "the factory returned int"),
    "module alone": ("def make(): return nn.Linear(2, 2)", "the factory returned Linear"),
    "no module": (
        "def make(): return torch.relu, (torch.ones(2),)",
        "first result is of type builtin",
    ),
    "no inputs": ("def make(): return nn.Linear(2, 2), 5", "example inputs are no tuple"),
    "bad shape": (
        "def make(): return nn.Linear(2, 2), (torch.ones(3, 3),)",
        "torch.export refuses it: RuntimeError",
    ),
    "wrong count": (
        "def make(): return nn.Linear(2, 2), (torch.ones(2), 1, 2)",
        "torch.export refuses it: TypeError",
    ),
    "no result": (
        "class M(nn.Module):\n def forward(self, x): return None\n"
        "def make(): return M(), (torch.ones(3),)",
        "returns no tensor",
    ),
    "unknown result": (
        "class Cache: pass\n"
        "class M(nn.Module):\n def forward(self, x): return x + 1, Cache()\n"
        "def make(): return M(), (torch.ones(3),)",
        "let forward return tensors alone (of a model of transformers: use_cache=False)",
    ),
    "control flow": (
        "class M(nn.Module):\n def forward(self, x): return x if x.sum() > 0 else -x\n"
        "def make(): return M(), (torch.ones(3),)",
        "Could not guard on data-dependent expression: forward branches on values of a tensor",
    ),
    "data dependent": (
        "class M(nn.Module):\n def forward(self, x): return x[x > 0]\n"
        "def make(): return M(), (torch.ones(3),)",
        "index makes as many elements as the values of its inputs say, [u0]: no plan covers it",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_a_factory_is_one_line(mistake: str, tmp_path: Path) -> None:
    """A mistake in the user's file is one line that names file, factory and what is wrong."""
    body, said = MISTAKES[mistake]
    source = _file(tmp_path, body)
    with pytest.raises(SourceError) as caught:
        frontend.load_factory(source)
    message = str(caught.value)
    assert said in message
    assert message.startswith(source)
    assert "\n" not in message


@pytest.mark.parametrize(
    "source", ["absent.py:make", "model.py", "model.py:", ":make", "a.py:not a name"]
)
def test_malformed_sources_are_refused(source: str) -> None:
    """A file that is not there and a SOURCE without file or factory are SourceErrors."""
    with pytest.raises(SourceError) as caught:
        frontend.load_factory(source)
    assert source in str(caught.value)


def test_a_barrier_has_a_name_that_every_run_gives_it(tmp_path: Path) -> None:
    """What torch.vmap leaves in a graph are plain functions, whose `str` is an address; a
    higher-order operator is none of `aten`."""
    body = (
        "class M(nn.Module):\n def forward(self, x):\n"
        "  y = torch.cond(x.sum() > 0, lambda x: x.relu(), lambda x: x.sin(), (x,))\n"
        "  return torch.vmap(lambda row: row.softmax(0))(y)\n"
        "def make(): return M(), (torch.ones(3, 4),)"
    )
    graph = frontend.load_factory(_file(tmp_path, body))
    assert graph.barriers == {"cond": 1, "_add_batch_dim": 1, "_remove_batch_dim": 1}


def test_factory_may_convert_its_module(tmp_path: Path) -> None:
    """`.half()` in a factory works, though fake parameters cannot be converted."""
    source = _file(
        tmp_path, "def make(): return nn.Linear(8, 4).half(), (torch.ones(2, 8, dtype=torch.half),)"
    )
    graph = frontend.load_factory(source)
    assert {tensor.dtype for tensor in graph.tensors.values()} == {"fp16"}


def test_factory_may_give_keywords_and_a_plain_tensor(tmp_path: Path) -> None:
    """Inputs may be a lone tensor, and a third result holds keyword arguments."""
    body = "class M(nn.Module):\n def forward(self, x, *, y): return x + y\n"
    make = "def make(): return M(), torch.ones(3), {'y': torch.ones(3)}"
    graph = frontend.load_factory(_file(tmp_path, body + make))
    assert sorted(t.name for t in graph.tensors.values() if t.role == "input") == ["x", "y"]


class Small(nn.Module):
    """Linear under autocast's wrapper, a split, and batch norm in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Any) -> Any:
        """Two results."""
        y = self.linear(x)
        with torch.autocast("cpu", enabled=False):
            y = y * 2 + torch.ones(6)
        left, right = self.norm(y).split(3, 1)
        return torch.cat([left, right]).relu_(), left.max(1).values


MODES = {
    "train": ["conv", "bias", "batch_norm.statistic", "batch_norm.apply", "dropout", "relu"],
    "eval": ["conv", "bias", "batch_norm.affine", "relu"],
}


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_of_a_module_is_kept(tmp_path: Path, mode: str) -> None:
    """Training takes batch statistics and draws; inference reads running ones and does not draw."""
    layers = "nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(inplace=True)"
    make = f"def make(): return nn.Sequential({layers}).{mode}(), (torch.ones(2, 3, 4, 4),)"
    graph = validate(frontend.load_factory(_file(tmp_path, make)))
    assert [op.function for op in graph.ops] == MODES[mode]
    assert ("1.running_mean" in graph.tensors) == (mode == "eval")


def test_a_written_input_is_functional(tmp_path: Path) -> None:
    """An input that the module writes is read once, as it was; the note names the write."""
    body = "class M(nn.Module):\n def forward(self, x):\n  x.add_(1)\n  return x * 2\n"
    graph = validate(
        frontend.load_factory(_file(tmp_path, f"{body}def make(): return M(), (torch.ones(3),)"))
    )
    assert [op.function for op in graph.ops] == ["add", "mul"]
    assert graph.notes == ("in-place updates of x are left out",)
    given = {"x": np.array([1.0, 2.0, 3.0])}
    assert evaluate(graph, given)[graph.results[0].name].tolist() == [4.0, 6.0, 8.0]


def test_pt2_archive_gives_the_module_s_graph(tmp_path: Path) -> None:
    """Reading the archive's JSON and exporting the module give one graph."""
    module, inputs = Small(), (torch.ones(2, 4),)
    torch.export.save(torch.export.export(module, inputs), tmp_path / "small.pt2")
    read = validate(aten_pt2.load(tmp_path / "small.pt2"))
    made = validate(frontend.from_module(module, inputs))
    assert [op.title for op in read.ops] == [op.title for op in made.ops]
    assert read.tensors.keys() == made.tensors.keys()
    assert (
        read.notes == made.notes == ("in-place updates of norm.num_batches_tracked are left out",)
    )


def test_pt2_runs_no_code(tmp_path: Path) -> None:
    """A pickle planted in the archive is never opened."""
    path = tmp_path / "small.pt2"
    torch.export.save(torch.export.export(Small(), (torch.ones(2, 4),)), path)
    planted = tmp_path / "planted.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(planted, "w") as new:
        for name in old.namelist():
            is_pickle = name.endswith(".pt") or "/weights/" in name
            new.writestr(name, b"cos\nsystem\n(S'false'\ntR." if is_pickle else old.read(name))
    assert aten_pt2.load(planted).ops


def test_damaged_archives_are_one_line(tmp_path: Path) -> None:
    """Missing, truncated, foreign and empty archives are SourceErrors that name the file."""
    whole = tmp_path / "whole.pt2"
    torch.export.save(torch.export.export(Small(), (torch.ones(2, 4),)), whole)
    content = whole.read_bytes()
    cases = {"cut": content[: len(content) // 2], "empty": b"", "text": b"not an archive"}
    for name, data in cases.items():
        (tmp_path / f"{name}.pt2").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "foreign.pt2", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with zipfile.ZipFile(tmp_path / "hollow.pt2", "w") as archive:
        archive.writestr("m/models/model.json", "{}")
    for name in (*cases, "foreign", "hollow", "absent"):
        with pytest.raises(SourceError) as caught:
            aten_pt2.load(tmp_path / f"{name}.pt2")
        assert f"{name}.pt2" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_dynamic_archives_are_refused(tmp_path: Path) -> None:
    """A graph exported with dynamic shapes is refused with the remedy."""
    path = tmp_path / "dynamic.pt2"
    shapes = {"x": {0: torch.export.Dim("batch", min=2)}}
    program = torch.export.export(Small(), (torch.ones(3, 4),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    with pytest.raises(SourceError, match="export with fixed shapes"):
        aten_pt2.load(path)
