"""The ATen JSON corpus: real graphs of one operator, of chains and of whole models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fuseledger.errors import ShapeError, SourceError
from fuseledger.frontends import aten_json
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate

KEPT_WHOLE = {"kb.lstm", "kb.gru"}
"""Recurrent layers that the corpus keeps as single calls: barriers."""


def _loaded(corpus: Path, pattern: str, form: str = "eager") -> Graph:
    (path,) = corpus.glob(f"kernelbench/v0/{pattern}")
    return validate(aten_json.load(path, form=form))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("form", ["eager", "export"])
def test_corpus_lowers_without_barriers(corpus: Path, form: str) -> None:
    """Every graph of the corpus is valid, and only recurrent layers kept whole are barriers."""
    barriers: Counter[str] = Counter()
    paths = sorted(corpus.glob("kernelbench/*/level*/*.json"))
    for path in paths:
        graph = validate(aten_json.load(path, form=form))  # pyright: ignore[reportArgumentType]
        assert graph.ops, path
        barriers.update(graph.barriers)
    assert len(paths) >= 200
    assert set(barriers) <= KEPT_WHOLE


def test_both_forms_have_one_floor(corpus: Path) -> None:
    """The eager and the export form of a module read and write the same external tensors."""
    differing = []
    paths = sorted(corpus.glob("kernelbench/v0/level[12]/*.json"))
    for path in paths:
        eager, export = (aten_json.load(path, form=form) for form in ("eager", "export"))
        if eager.floor_bytes != export.floor_bytes:
            differing.append(path.stem)
    assert not differing


def test_linear_layers_are_gemm_and_bias(corpus: Path) -> None:
    """An MLP is gemm, bias, relu, gemm, bias, relu, gemm, bias; transposed weights are views."""
    graph = _loaded(corpus, "level3/001_*.json")
    assert [op.function for op in graph.ops] == ["gemm", "bias", "relu"] * 2 + ["gemm", "bias"]
    assert "network.0.weight" in graph.tensors


def test_causal_attention_of_a_small_gpt(corpus: Path) -> None:
    """A mask built by comparing a constant is a weight, and heads are axes of one gemm."""
    graph = _loaded(corpus, "level3/043_*.json")
    assert [op.title for op in graph.ops] == [
        "gemm", "bias", "gemm", "mul", "masked_fill", "softmax.statistic", "softmax.apply", "gemm",
        "gemm", "bias",
    ]  # fmt: skip
    assert graph.tensors["eq"].role == "weight"


def test_training_batch_norm_takes_batch_statistics(corpus: Path) -> None:
    """Batch norm in training is a statistic and an apply; running statistics are left out."""
    graph = _loaded(corpus, "level1/033_*.json")
    assert [op.function for op in graph.ops] == ["batch_norm.statistic", "batch_norm.apply"]
    assert not any("running" in name for name in graph.tensors)
    assert graph.notes == ("in-place updates of bn.num_batches_tracked are left out",)


def test_unread_pool_indices_vanish(corpus: Path) -> None:
    """A max pool whose indices nobody reads is one op with one result."""
    graph = _loaded(corpus, "level1/041_*.json")
    assert [(op.function, len(op.writes)) for op in graph.ops] == [("max_pool", 1)]


def test_eager_dropout_draws_random_numbers(corpus: Path) -> None:
    """`empty_like` and `bernoulli_` become one op that draws and reads nothing."""
    graph = _loaded(corpus, "level2/083_*.json")
    (draw,) = (op for op in graph.ops if op.function == "bernoulli")
    assert not draw.reads


def test_missing_and_broken_files_are_one_line(tmp_path: Path) -> None:
    """A missing file, broken JSON and a foreign JSON are SourceErrors that name the file."""
    broken, foreign = tmp_path / "broken.json", tmp_path / "foreign.json"
    broken.write_text('{"name": ')
    foreign.write_text('{"name": "x", "nodes": 3}')
    for path in (tmp_path / "absent.json", broken, foreign):
        with pytest.raises(SourceError) as caught:
            aten_json.load(path)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)


def _document(**changes: object) -> str:
    x = {"id": "x", "name": "x", "shape": [2, 3], "dtype": "float32"}
    node = {
        "id": "relu",
        "op": "aten.relu.default",
        "inputs": [{"arg": "self", **x}],
        "attrs": {},
        "outputs": [{**x, "id": "relu"}],
    }
    document = {
        "name": "one",
        "inputs": [x],
        "params": [],
        "constants": [],
        "nodes": [node],
        "outputs": ["relu"],
    }
    return json.dumps({**document, **changes})


def test_broken_graphs_name_the_node(tmp_path: Path) -> None:
    """An unknown output, a read of nothing and a wrong recorded shape are named."""
    path = tmp_path / "one.json"
    path.write_text(_document())
    assert [op.function for op in aten_json.load(path).ops] == ["relu"]
    path.write_text(_document(outputs=["gone"]))
    with pytest.raises(SourceError, match="output gone is made by no node"):
        aten_json.load(path)
    path.write_text(_document(inputs=[]))
    with pytest.raises(SourceError, match="node relu reads unknown x"):
        aten_json.load(path)
    node = json.loads(_document())["nodes"][0]
    node["outputs"][0]["shape"] = [3, 2]
    path.write_text(_document(nodes=[node]))
    with pytest.raises(ShapeError, match=r"node relu \(aten.relu.default\) gives \[2, 3\]"):
        aten_json.load(path)


def test_arguments_that_do_not_fit_name_the_node(tmp_path: Path) -> None:
    """Attributes and shapes that make no sense are one line that names node and operator."""
    path = tmp_path / "one.json"
    document = json.loads(_document())
    (node,) = document["nodes"]
    for op, attrs in (("softmax.int", {"dim": "last"}), ("select.int", {"dim": 0})):
        node.update(op=f"aten.{op}", attrs=attrs)
        path.write_text(json.dumps(document))
        with pytest.raises(SourceError, match=r"node relu .* has arguments that do not fit"):
            aten_json.load(path)
    node.update(
        op="aten.mm.default",
        attrs={},
        inputs=[{**node["inputs"][0], "arg": a} for a in ("self", "mat2")],
    )
    path.write_text(json.dumps(document))
    with pytest.raises(ShapeError, match="node relu"):
        aten_json.load(path)


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    """Neither the JSON form nor a `.pt2` archive imports torch."""
    path = tmp_path / "one.json"
    path.write_text(_document())
    program = (
        "import sys\n"
        "from fuseledger.frontends import aten_json, aten_pt2\n"
        "assert aten_json.load(sys.argv[1]).ops\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
