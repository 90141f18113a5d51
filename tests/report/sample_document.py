"""A plan's document written by hand, so that reports are tested apart from any planner."""

from __future__ import annotations

from typing import Any

import msgspec

from fuseledger.report.document import PlanDocument

DEVICE = {"name": "h100-sxm", "title": "NVIDIA H100 SXM5 80GB", "arch": "sm_90"}


def account(value: float, unit: str, words: str, **given: Any) -> dict[str, Any]:
    """An account, modelled and without limit or veto unless given."""
    return {"value": value, "unit": unit, "derivation": words, "provenance": "modelled",
            "limit": None, "veto": None, **given}  # fmt: skip


def kernel(number: int, ops: list[str], label: str, **given: Any) -> dict[str, Any]:
    """A kernel of 1,024 tiles; `given` replaces whole fields."""
    return {
        "name": f"k{number}", "ops": ops, "label": label,
        "schedule": {
            "axes": [
                {"name": "m", "size": 4096, "treatment": "grid", "tile": 128},
                {"name": "n", "size": 4096, "treatment": "grid", "tile": 128},
                {"name": "k", "size": 512, "treatment": "split", "tile": 4},
                {"name": "j", "size": 64, "treatment": "whole", "tile": 64},
            ],
            "blocks": 1024, "warps": 8, "stages": 3, "walks": 2,
        },
        "accounts": {
            "traffic": account(100_700_000, "bytes", "read A 33.6 MB + B 33.6 MB, write C 33.6 MB"),
            "launches": account(1, "launches", "1 × 2.44 µs queued"),
            "registers": account(168, "registers per thread", "128 KB; 16 B a thread spill",
                                 limit=255),
            "capacity": account(49152, "bytes of shared memory per block",
                                "operands 16 KB × 3 stages", limit=232448),
            "parallelism": account(1024, "blocks", "32·32 blocks on 132 SMs", limit=132),
            "epilogue": account(0, "bytes", "no new work"),
        },
        "work": {"flops": {"matrix:fp16": 1.7e10}, "special_ops": 0.0, "recomputed": 0.25,
                 "l2_bytes": 400_000_000},
        "realisation": {"kind": "generated", "call": None, "core": None, "peak_share": None,
                        "reason": ""},
        "time_us": 52.44,
        "time": {
            "launch_us": 2.44,
            "terms": [{"name": "dram", "time_us": 33.5}, {"name": "matrix", "time_us": 49.2}],
            "latency_us": 0.8, "combine_us": 0.0, "spill_us": 0.0, "bound": "matrix",
        },
        **given,
    }  # fmt: skip


def op(name: str, function: str, reads: list[str], writes: list[str]) -> dict[str, Any]:
    """A loop over m and n."""
    return {"name": name, "function": function, "label": None, "kind": "loop",
            "axes": {"m": 4096, "n": 4096}, "reduces": [], "reads": reads, "writes": writes,
            "flops": 16777216, "special_ops": 0}  # fmt: skip


def verdict(tensor: str, ends: tuple[str, str], kernels: list[str], **given: Any) -> dict[str, Any]:
    """A cut that capacity decided; `given` replaces whole fields."""
    return {
        "edge": {"tensor": tensor, "producer": ends[0], "consumers": [ends[1]]},
        "kernels": kernels, "choice": "cut", "account": "capacity",
        "reason": "together: C needs 16·4096·4 B = 256 KB a block; 190 KB of registers are left",
        "runner_up": {"bytes_delta": -67_100_000, "time_delta_us": 12.5},
        "flips": ["fits while the extent of 4096 is at most 3040"],
        "rule": given.get("choice", "cut"), **given,
    }  # fmt: skip


def sample() -> dict[str, Any]:
    """Three kernels, a veto, a barrier, two notes, and a name with signs that mean something."""
    vetoed = kernel(2, ["layer [1]", "sort"], "layer_norm+sort")
    vetoed["accounts"]["capacity"]["veto"] = "C needs 256 KB a block"
    return {
        "schema": "fuseledger/plan@1", "version": "0.1.0", "source": "model.onnx",
        "graph": {
            "name": "model",
            "ops": [
                op("gemm", "gemm", ["A", "B"], ["C"]), op("layer [1]", "layer_norm", ["C"], ["D"]),
                op("sort", "aten.sort", ["D"], ["E"]), op("gelu", "gelu", ["E"], ["F"]),
            ],
            "tensors": [
                {"name": name, "shape": [4096, 4096], "dtype": "fp16", "bytes": 33554432,
                 "role": "input" if name in "AB" else "output" if name == "F" else "intermediate"}
                for name in "ABCDEF"
            ],
            "floor_bytes": 100_663_296, "barriers": {"aten.sort": 1},
            "notes": ["dropped 2 running statistics", "a name | with [signs] \x1b[31m and control"],
        },
        "device": DEVICE,
        "options": {"optimise": "time", "launch": "queued", "tf32": False},
        "plan": {
            "kernels": [
                kernel(1, ["gemm"], "gemm"), vetoed,
                kernel(3, ["gelu"], "+".join(["conv", "batch_norm", "relu"] * 6)),
            ],
            "totals": {"kernels": 3, "bytes": 302_100_000, "launches": 3, "time_us": 157.32},
            "status": "optimal for this model and these candidates",
        },
        "baseline": {"kernels": 4, "bytes": 3_230_000_000, "launches": 4, "time_us": 2000.0},
        "saved": {
            "cut": "this plan", "against": "one kernel an op", "saved_us": 1842.68,
            "saved_by_account": {"launches": 2.44, "traffic": 1840.24},
            "sentence": "this plan saves 1,842.68 µs against one kernel an op: "
            "traffic 1,840.24 + launches 2.44",
        },
        "cuts": [], "differences": [], "shared": [],
        "verdicts": [
            verdict("C", ("gemm", "layer [1]"), ["k1", "k2"]),
            verdict("D", ("layer [1]", "sort"), ["k2"], choice="fused", account="traffic",
                    reason="D (33.6 MB) stays on chip: saves 67.1 MB and a launch, 24.8 µs",
                    flips=[]),
            verdict("E", ("sort", "gelu"), ["k2", "k3"], account="legality",
                    reason="aten.sort is a barrier: nothing fuses with it",
                    runner_up={"bytes_delta": None, "time_delta_us": None}, flips=[]),
        ],
        "seconds": {"load": 0.1, "plan": 0.25},
    }  # fmt: skip


def document(**given: Any) -> PlanDocument:
    """The sample as a checked document; `given` replaces whole fields."""
    return msgspec.convert({**sample(), **given}, PlanDocument)


def repeated(layers: int) -> PlanDocument:
    """The sample's gemm and a cut behind it, once a layer, each layer with its own names."""
    made = sample()
    kernels = [kernel(i, [f"gemm_{i}"], "gemm") for i in range(1, layers + 1)]
    made["graph"]["ops"] = [op(f"gemm_{i}", "gemm", ["A"], ["C"]) for i in range(1, layers + 1)]
    made["plan"]["kernels"] = kernels
    made["plan"]["totals"]["kernels"] = layers
    made["verdicts"] = [
        verdict(f"C{i}", (f"gemm_{i}", f"gemm_{i + 1}"), [f"k{i}", f"k{i + 1}"])
        for i in range(1, layers)
    ]
    return msgspec.convert(made, PlanDocument)
