"""How far the schedule clock is off: the error bars that `fuseledger plan` prints.

    python benchmarks/plan_errors.py KERNELBENCH DECISIONS.jsonl [-o FILE] [--rows FILE]

FILE is `src/fuseledger/clock/fits/plan_errors.json`. The clock of `plan` is fitted on none of these
times but for the shares of the peak that convolutions sustain, which the library clock's fit
holds: each KernelBench problem is priced by a fit without its fold. It is held against

- eager PyTorch, by the time of one kernel an op (`baseline` of a plan);
- TorchInductor, by the time of its own plan, priced kernel by kernel as `compare` prices peers;
- options of the decision corpus whose kernels are known, as the plans that they are.

`plan` prices the GPU's time: rows are left out where the host, by the library clock, takes more
than half as long as the GPU, and records whose source says that the host is in their times.
`--rows` writes every row with both times.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from fuseledger.clock import convolution
from fuseledger.clock.error_bars import ErrorBar, ErrorBars, Kind, Side, dtype_of, kind_of
from fuseledger.clock.library import Fit, library_time, load_fit
from fuseledger.clock.library_fit import PRIORS, design_of, fit
from fuseledger.devices import Device, load, names
from fuseledger.errors import FuseledgerError
from fuseledger.frontends.source import load as load_source
from fuseledger.graph.graph import Graph
from fuseledger.peers.inductor import device_properties, inductor_plan, inductor_worker
from fuseledger.peers.kept import kept_plan, peer_folder
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.priced import price
from fuseledger.peers.process import Worker
from fuseledger.peers.program import Program, read_program
from fuseledger.planner.plan import Planned, PlanOptions, plan_of_groups
from fuseledger.validate.corpus import Measured
from fuseledger.validate.decisions import ALIASES
from fuseledger.validate.folds import fold_of, rows_of, weights_of
from fuseledger.validate.kernelbench import read_kernelbench
from fuseledger.validate.records import Record
from fuseledger.validate.split_records import FAMILIES, priced_options

HOST_SHARE = 0.5
"""Of the GPU's time: where the host takes more, the row says little of the GPU."""
LEAST_GRAPHS = 3
"""Kinds with fewer graphs have no bar."""
SOURCES: dict[str, str] = {
    "swiglu_mlp": "x = t[{tokens},{hidden}]; g = linear(x, {inter}); u = linear(x, {inter}); "
    "m = silu(g) * u; linear(m, {hidden})",
    "geglu_mlp": "x = t[{tokens},{hidden}]; g = linear(x, {inter}); u = linear(x, {inter}); "
    "m = gelu_tanh(g) * u; linear(m, {hidden})",
    "gemm_bias": "gemm({m},{n},{k}) + bias",
    "linear_gelu_tanh": "gemm({m},{n},{k}) + bias + gelu_tanh",
    "rms_norm": "x[{tokens},{hidden}] | rms_norm",
    "softmax": "x[{tokens},{hidden}] | softmax",
    "layer_norm": "x[{tokens},{hidden}] | layer_norm",
    "rope": "c = cos[{tokens},{head_dim}]; s = sin[{tokens},{head_dim}]; "
    "rope(q[{q_heads},{tokens},{head_dim}], c, s); rope(k[{kv_heads},{tokens},{head_dim}], c, s)",
}
"""Family of records → its chain as a SOURCE over the record's parameters."""
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "fp8": "fp8"}
ONE_AN_OP = frozenset({"swiglu_mlp", "geglu_mlp", "gemm_bias"})
"""Families whose unfused option launches one kernel for each of our ops."""
BOTH_FUSED = frozenset({"softmax", "layer_norm"})
"""Families both of whose options are one kernel."""


class Row(Struct, frozen=True, kw_only=True):
    """One measured time and what the schedule clock says of the same kernels."""

    kind: Kind
    dtype: str
    side: Side
    graph: str
    device: str
    against: str
    measured_us: float
    predicted_us: float


def kernelbench(folder: Path) -> Iterator[Row]:
    """Eager and compiled rows of levels 1 and 2 of a folder of graphs, whose host keeps up.

    Level 3 holds whole models, each of several kinds, which TorchInductor plans for minutes.
    """
    rows = [
        m
        for m in read_kernelbench(folder).rows
        if m.problem[0] in "12"
        and m.setting.mode in ("eager", "compile-default")
        and not _host_bound(m)
    ]
    rows.sort(key=_place)
    fits = fits_without(folder)
    for name, of_device in groupby(rows, key=lambda m: m.setting.device.name):
        device = load(name)
        with inductor_worker() as worker:
            for _, same in groupby(of_device, key=_place):
                group = list(same)
                path = _path(folder, group[0])
                unseen = fits[fold_of(group[0].problem)]
                convolution.load_fit = lambda unseen=unseen: unseen
                try:
                    yield from _of_graph(path, device, worker, group)
                except FuseledgerError as error:
                    print(f"{path.name} on {name}: {error}")


def fits_without(folder: Path) -> dict[int, Fit]:
    """Fold → the library clock's coefficients from the problems of all other folds."""
    rows = read_kernelbench(folder).rows
    design = design_of(rows_of(rows))
    times, folds = np.array([m.time_us for m in rows]), np.array([fold_of(m.problem) for m in rows])
    made: dict[int, Fit] = {}
    for fold in sorted(set(folds.tolist())):
        theta = fit(design, times, PRIORS, weights_of(rows) * (folds != fold))
        made[fold] = replace(
            load_fit(), coefficients=dict(zip(design.names, theta.tolist(), strict=True))
        )
    return made


def _host_bound(m: Measured) -> bool:
    time = library_time(m.kernels, m.setting)
    return time.host_us > HOST_SHARE * time.gpu_us


def _place(m: Measured) -> tuple[str, str, str]:
    return m.setting.device.name, m.run.split()[0], m.problem


def _path(folder: Path, m: Measured) -> Path:
    level, _, problem = m.problem.partition("/")
    sizes = m.run.split()[0]
    for each in (sizes, sizes.partition("_")[0]):
        found = sorted((folder / each / f"level{level}").glob(f"{problem.zfill(3)}_*.json"))
        if found:
            return found[0]
    raise AssertionError(f"{m.run}: priced without a graph")


def _of_graph(path: Path, device: Device, worker: Worker, rows: list[Measured]) -> Iterator[Row]:
    program = read_program(str(path))
    graph = program.graph
    planned = one_an_op(graph, device, PlanOptions(tf32=_convolves(graph)))
    compiled: float | None = None
    for m in rows:
        eager = m.setting.mode == "eager"
        if not eager and compiled is None:
            plan = _inductor(path, program, device, worker)
            if plan.status != "planned":
                print(f"{path.name} on {device.name}: {plan.status}: {plan.reason}")
                return
            compiled = price(program, plan, planned).time_us
        us = planned.baseline.time_us if eager else compiled
        assert us is not None
        yield Row(
            kind=kind_of(graph), dtype=dtype_of(graph), graph=f"{path.parts[-3]}/{m.problem}",
            side="one kernel an op" if eager else "plan", device=device.name,
            against="eager PyTorch" if eager else "TorchInductor",
            measured_us=m.time_us, predicted_us=us,
        )  # fmt: skip


def _inductor(path: Path, program: Program, device: Device, worker: Worker) -> PeerPlan:
    assert program.aten is not None
    question = (replace(program.aten, source=""), device_properties(device))
    return kept_plan(
        peer_folder(), "torch", question, lambda: inductor_plan(str(path), device, worker=worker)
    )


def one_an_op(graph: Graph, device: Device, options: PlanOptions) -> Planned:
    """The plan with one kernel an op."""
    return plan_of_groups(graph, device, [(i,) for i in range(len(graph.ops))], options)


def _convolves(graph: Graph) -> bool:
    """Whether convolutions do most of the products: PyTorch runs those in TF32, others not."""
    work = {True: 0, False: 0}
    for op in graph.ops:
        if op.is_contraction:
            windowed = any(len(index.terms) > 1 for read in op.reads for index in read.index)
            work[windowed] += op.flops
    return work[True] > work[False]


def decisions(path: Path) -> Iterator[Row]:
    """Options of fuse-or-split records, by families whose kernels are known."""
    known = set(names())
    for line in path.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        family = record["family"]
        name = ALIASES.get(record["device"], record["device"])
        if name not in known or record.get("timing") == "host-visible":
            continue
        device = load(name)
        if family in FAMILIES:
            yield from _split(record, device)
        elif family in SOURCES:
            yield from _fused(record, device)


def _fused(record: dict[str, Any], device: Device) -> Iterator[Row]:
    params, family = record["params"], record["family"]
    dtype = DTYPES[params["dtype"]]
    graph = load_source(SOURCES[family].format(**params), dtype=dtype)
    unfused = one_an_op(graph, device, PlanOptions())
    groups = _groups(graph)
    times = {"plan": plan_of_groups(graph, device, groups).totals.time_us}
    if family in ONE_AN_OP:
        times["one kernel an op"] = unfused.totals.time_us
    sides: tuple[Side, Side] = ("one kernel an op", "plan")
    if family in BOTH_FUSED:
        sides = ("plan", "plan")
    for side, option in zip(sides, record["options"], strict=False):
        if side in times:
            yield Row(
                kind=kind_of(graph), dtype=dtype_of(graph), side=side, device=device.name,
                graph=f"{family} {json.dumps(params)}", against="fuse-or-split options",
                measured_us=float(option["time_us"]), predicted_us=times[side],
            )  # fmt: skip


def _groups(graph: Graph) -> list[tuple[int, ...]]:
    """What the fused options launch: products alone, all between two of them as one kernel.

    A bias is its product's epilogue, and so is what follows it.
    """
    groups: list[list[int]] = []
    last_alone = False
    for i, op in enumerate(graph.ops):
        alone = op.is_contraction and not any("bias" in each.function for each in graph.ops)
        if groups and not alone and not last_alone:
            groups[-1].append(i)
        else:
            groups.append([i])
        last_alone = alone
    return [tuple(group) for group in groups]


def _split(record: dict[str, Any], device: Device) -> Iterator[Row]:
    params = record["params"]
    dtype = DTYPES[str(params.get("kv_dtype", params["dtype"]))]
    attends = record["family"] == "decode_attention"
    classes = {"fp16": "16-bit", "bf16": "16-bit", "fp8": "fp8", "fp32": "fp32"}
    priced = priced_options(msgspec.convert(record, Record), device)
    for option, measured in zip(priced, record["options"], strict=False):
        yield Row(
            kind="attention" if attends else "product", dtype=classes[dtype], side="plan",
            graph=f"{record['family']} {json.dumps(params)}", device=device.name,
            against="fuse-or-split options", measured_us=float(measured["time_us"]),
            predicted_us=option.time_us,
        )  # fmt: skip


def error_bars(rows: list[Row]) -> list[ErrorBar]:
    """Median and 90th percentile of |log error| by kind, dtype and side."""
    groups: dict[tuple[Kind, str, Side], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.dtype, row.side), []).append(row)
    made: list[ErrorBar] = []
    for (kind, dtype, side), group in sorted(groups.items()):
        graphs = len({row.graph for row in group})
        if graphs < LEAST_GRAPHS:
            continue
        logs = np.array([math.log(row.measured_us / row.predicted_us) for row in group])
        made.append(
            ErrorBar(
                kind=kind, dtype=dtype, side=side, graphs=graphs,
                median=round(float(np.median(np.abs(logs))), 4),
                p90=round(float(np.quantile(np.abs(logs), 0.9)), 4),
                shift=round(float(np.median(logs)), 4),
                devices=tuple(sorted({row.device for row in group})),
                against=tuple(sorted({row.against for row in group})),
            )
        )  # fmt: skip
    return made


def main() -> None:
    """Run the benchmark; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernelbench", type=Path)
    parser.add_argument("decisions", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    rows = [*decisions(given.decisions), *kernelbench(given.kernelbench)]
    bars = error_bars(rows)
    print("| kind | dtype | side | graphs | half within | nine in ten within |", end="")
    print(" measured / predicted | devices |")
    print("|---|---|---|---|---|---|---|---|")
    for bar in bars:
        half, most = math.expm1(bar.median), math.expm1(bar.p90)
        print(
            f"| {bar.kind} | {bar.dtype} | {bar.side} | {bar.graphs} | {half:.0%} | {most:.0%} "
            f"| {math.exp(bar.shift):.2f} | {', '.join(bar.devices)} |"
        )
    if given.rows:
        given.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if given.output:
        made_by = "benchmarks/plan_errors.py over KernelBench graphs and the decision corpus"
        packed = msgspec.json.encode(ErrorBars(made_by=made_by, rows=tuple(bars)))
        given.output.write_text(msgspec.json.format(packed, indent=1).decode() + "\n")


if __name__ == "__main__":
    main()
