"""Decision records: what each option is priced from, and how far off the gains are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fuseledger.clock.library_features import sequence_terms
from fuseledger.clock.library_fit import PRIORS
from fuseledger.devices import load
from fuseledger.validate.corpus import Corpus
from fuseledger.validate.decisions import decision_priors, read_decisions
from fuseledger.validate.figures import choices, spearman
from fuseledger.validate.folds import by_problem
from fuseledger.validate.records import Option, Record
from fuseledger.validate.run import validate
from fuseledger.validate.score import pairs
from fuseledger.validate.split_records import priced_options

FAMILIES = """# Families

## chain3  (fuse, contrast: fusion, predict: yes)

- Unfused: three kernels. Kernels `3`; bytes `6*s*T*H`
- Fused: one kernel. Kernels `1`; bytes `2*s*T*H`

## mlp  (fuse, contrast: fusion, predict: yes)

- Unfused: 5 kernels. Kernels `5`; bytes `s*(3*H*I+3*T*H+3*T*I)+5*s*T*I`
- Fused: 4 kernels. Kernels `4`; bytes `s*(3*H*I+3*T*H+3*T*I)+3*s*T*I`
- FLOP (both): `6*T*H*I`
"""


def record(family: str, params: dict[str, Any], times: tuple[float, float], **given: Any) -> str:
    """One line of a corpus."""
    options = [{"name": n, "time_us": t} for n, t in zip(("unfused", "fused"), times, strict=True)]
    return json.dumps(
        {"id": f"{family}-{times[0]}", "kind": "fuse", "family": family, "contrast": "fusion",
         "params": params, "device": "h100-sxm", "options": options, "gain": times[0] / times[1],
         "timing": "l2-cold", "source_key": "test", **given}
    )  # fmt: skip


def read(folder: Path, *lines: str) -> Corpus:
    """A corpus of these lines."""
    (folder / "families.md").write_text(FAMILIES)
    (folder / "dev.jsonl").write_text("\n".join(lines) + "\n")
    return read_decisions(folder / "dev.jsonl")


def test_a_chain_takes_turns_in_two_buffers(tmp_path: Path):
    """Three kernels of 6·2·T·H bytes: each moves a third, and the third writes where the first did,
    whose result is dead."""
    params = {"tokens": 1024, "hidden": 4096, "dtype": "bfloat16"}
    rows = read(tmp_path, record("chain3", params, (30.0, 10.0))).rows
    unfused, fused = rows
    part = 1024 * 4096 * 2
    assert [k.read_bytes + k.write_bytes for k in unfused.kernels] == [2 * part] * 3
    assert [k.reads[0].storage for k in unfused.kernels] == ["input", "buffer 1", "buffer 0"]
    assert [k.writes[0].storage for k in unfused.kernels] == ["buffer 1", "buffer 0", "buffer 1"]
    assert [k.bytes for k in fused.kernels] == [2 * part]
    assert unfused.tables == ("decisions, true fusions",)


def test_gemms_are_the_same_on_both_sides(tmp_path: Path):
    """An MLP has three GEMMs, the last one behind the passes, which reads what they wrote; only 5
    and 3 times T·I are left for two passes and for one, which read both projections."""
    t, h, i = 512, 1024, 2048
    params = {"tokens": t, "hidden": h, "inter": i, "dtype": "bfloat16"}
    unfused, fused = read(tmp_path, record("mlp", params, (103.0, 100.0))).rows
    for row, passes, factor in ((unfused, 2, 5), (fused, 1, 3)):
        kinds = [k.kind == "gemm" for k in row.kernels]
        assert kinds == [True, True, *[False] * passes, True]
        gemms = [k for k in row.kernels if k.kind == "gemm"]
        assert sum(k.flops for k in gemms) == 6 * t * h * i
        streamed = [k for k in row.kernels if k.kind != "gemm"]
        assert sum(k.bytes for k in streamed) == factor * 2 * t * i
        read_ = [stream.storage for k in streamed for stream in k.reads]
        assert {"projection 0", "projection 1"} <= set(read_)
        assert gemms[2].reads[0].storage == streamed[-1].writes[0].storage
        assert {k.write_bytes for k in streamed} == {2 * t * i}
    assert unfused.tables == ("decisions, losses and ties",)


def test_products_of_one_byte_run_on_their_own_pipe(tmp_path: Path):
    """fp8 operands are priced by the fp8 peak, others by that of 16 bits."""
    params = {"tokens": 512, "hidden": 1024, "inter": 2048}
    for dtype, pipe in (("fp8", "fp8"), ("bfloat16", "half")):
        (row, _) = read(tmp_path, record("mlp", {**params, "dtype": dtype}, (2.0, 1.0))).rows
        assert {k.pipe for k in row.kernels if k.kind == "gemm"} == {pipe}


def test_a_backward_that_asks_for_its_gradient_waits_once(tmp_path: Path):
    """Where a record says whether the upstream gradient is one, the fused side found out by a wait
    of the host, which costs it three calls of 20 µs before any fit; the unfused side does not."""
    params = {"tokens": 8, "hidden": 8, "dtype": "float32", "upstream_grad_is_one": False}
    unfused, fused = read(tmp_path, record("chain3", params, (2.0, 1.0))).rows
    waits = [sum(k.shape.get("syncs", 0.0) for k in row.kernels) for row in (unfused, fused)]
    assert waits == [0.0, 1.0]
    (terms,) = sequence_terms(fused.kernels, fused.setting)
    assert [t.base_us for t in terms if t.role == "sync"] == [3 * 20.0]


def test_what_is_left_out_is_counted(tmp_path: Path):
    """A device, a family and a comparison of implementations are counted by their reason."""
    params = {"tokens": 8, "hidden": 8, "dtype": "bfloat16"}
    corpus = read(
        tmp_path, record("chain3", params, (2.0, 1.0), device="abacus"),
        record("other", params, (2.0, 1.0)),
        record("chain3", params, (2.0, 1.0), contrast="implementation"),
    )  # fmt: skip
    assert corpus.rows == []
    assert corpus.skipped == {
        "device abacus is not in the catalog": 1, "family other has no formulas": 1,
        "compares two implementations, no fusion": 1,
    }  # fmt: skip


def split(
    family: str, names: tuple[str, str], device: str, impl: str = "", **params: Any
) -> list[float]:
    """Prices of a split record's options."""
    record_ = Record(
        id="", family=family, device=device, params=params, gain=1.0, timing="cuda-graph",
        options=tuple(Option(name=name, time_us=1.0, impl=impl) for name in names),
    )  # fmt: skip
    return [each.time_us for each in priced_options(record_, load(device))]


def test_parts_summed_in_a_cluster_must_be_resident_at_once():
    """DeepGEMM on an H20: 64 tiles of 64×16 leave room for no second part among 78 SMs; 16 tiles
    for four."""
    names, impl = ("split=1", "split=auto"), "split-K over DSMEM"
    shape = {"k": 8192, "dtype": "bfloat16", "m": 128}
    whole, auto = split("gemm_split_k", names, "h20", impl, n=512, **shape)
    assert whole == auto
    whole, auto = split("gemm_split_k", names, "h20", impl, n=128, **shape)
    assert whole > 1.5 * auto


def test_a_named_factor_is_priced():
    """`split=3` is three parts, `split=auto` the best; fewer heads gain more."""
    shape = {
        "batch": 1, "q_len": 1, "kv_len": 65536, "kv_heads": 8, "q_heads": 32, "head_dim": 128,
        "dtype": "bfloat16",
    }  # fmt: skip
    one, three = split("decode_attention", ("split=1", "split=3"), "h200", **shape)
    assert one > 2.5 * three
    coarse, auto = split("decode_attention", ("split=3", "split=auto"), "h200", **shape)
    assert coarse == three
    assert auto < coarse


def test_priors_leave_room_for_implementations(tmp_path: Path):
    """A family's streams may differ by a factor of e^0.8; what all share keeps its prior."""
    params = {"tokens": 1024, "hidden": 4096, "dtype": "bfloat16"}
    rows = read(tmp_path, record("chain3", params, (30.0, 10.0))).rows
    priors = decision_priors(rows, PRIORS)
    assert priors["stream.pass@software-chain3-fused"].deviation == 0.8
    assert priors["launch"] == PRIORS["launch"]


def test_fitted_and_priced_rows_are_reported_together(tmp_path: Path):
    """Splits, which no fit sees, stand in the same report as what is fitted."""
    chain = {"tokens": 1024, "hidden": 4096, "dtype": "bfloat16"}
    gemm = {"m": 128, "n": 128, "k": 8192, "dtype": "bfloat16"}
    lines = [record("chain3", {**chain, "tokens": 256 * i}, (3.0 * i + 9, i + 4.0)) for i in range(1, 12)]  # noqa: E501  # fmt: skip
    read(tmp_path, *lines, record("gemm_split_k", gemm, (20.0, 10.0), device="h20"))
    report = validate(tmp_path / "dev.jsonl")
    found = {(r.corpus, r.class_): r.n for r in report.rows if r.device == "all" and r.mode == "fused"}  # noqa: E501  # fmt: skip
    assert found["decisions", "all"] == 12
    assert found["decisions, splits that pay", "gemm_split_k"] == 1
    assert report.fit is not None
    assert len(report.fit.problems) == 11


def test_gains_of_the_shared_half(corpus: Path):
    """True fusions out of fold: rank correlation at least 0.92, median error at most 0.10; splits
    that nobody fitted: four in five on the side that won."""
    rows = read_decisions(corpus / "decisions" / "dev.jsonl").rows
    fitted = [m for m in rows if m.priced_us is None]
    priced = [m for m in rows if m.priced_us is not None]
    measured = [*fitted, *priced]
    us = np.array(
        [
            *by_problem(fitted, decision_priors(rows, PRIORS)).times_us,
            *(m.priced_us for m in priced),
        ]
    )
    found = pairs(measured)
    times = np.array([m.time_us for m in measured])
    fused, plain = np.array(list(found)), np.array(list(found.values()))
    true, said = times[plain] / times[fused], us[plain] / us[fused]
    tables = np.array([measured[i].tables[0] for i in fused.tolist()])
    fusions = tables == "decisions, true fusions"
    assert spearman(said[fusions], true[fusions]) >= 0.92
    assert np.median(np.abs(np.log(said[fusions] / true[fusions]))) <= 0.10
    splits = np.array([measured[i].priced_us is not None for i in fused.tolist()])
    assert np.mean(choices(said[splits]) == choices(true[splits])) >= 0.8
