"""A folder of KernelBench graphs and times: `times.csv` beside `<sizes>/level<n>/NNN_name.json`."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from fuseledger.clock.library import sequence_class
from fuseledger.clock.library_features import Setting
from fuseledger.devices import Device
from fuseledger.errors import SourceError
from fuseledger.frontends.aten_graph import AtenGraph
from fuseledger.validate.corpus import Corpus, Measured, csv_rows, geometric_mean, time_above_0
from fuseledger.validate.plans import EAGER_MODES, MODES, ByMode, Plans, PlanSource

GPUS: dict[str, str] = {
    "NVIDIA L40S": "l40s", "NVIDIA L4": "l4", "NVIDIA A10G": "a10g", "Tesla T4": "t4",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80", "NVIDIA A100-SXM4-40GB": "a100-sxm-40",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80", "NVIDIA A100-PCIE-40GB": "a100-pcie-40",
    "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H200": "h200",
    "NVIDIA B200": "b200", "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 3090": "rtx-3090", "NVIDIA GeForce RTX 5090": "rtx-5090",
}  # fmt: skip
"""What the driver calls a GPU → its name in the catalog."""

COLD_RUNS: dict[str, float] = {"H100_Modal": 100.0}
"""Runs timed with a 256 MiB fill before the start event: L2 is cold, and so much host work in µs
passes while the fill runs (the corpus's own README)."""

HOST_FLOORS: dict[str, float] = {
    "L40S_matx3": 11.2, "L40S_modal": 25.8, "A100-80GB_modal": 27.7, "A100_modal": 27.6,
    "H100_together": 12.5, "L4_modal": 24.0, "A10G_modal": 21.2, "T4_modal": 27.3,
    "B200_together": 29.9, "H100_Modal": 25.0, "H100_PCIe_LambdaLabs": 20.0,
}  # fmt: skip
"""Host → µs of one eager call: the smallest mean time of level 1 at v0 sizes, as the table of
device constants beside this corpus lists it; the last two, which have no such run, are the median
of Modal's hosts and of all."""

FIELDS = ("sizes", "level", "problem_id", "name", "gpu", "host", "torch", "mode", "mean_ms")


class Run(Struct, frozen=True, order=True):
    """What a measured time belongs to."""

    sizes: str
    level: str
    problem: str
    gpu: str
    host: str
    mode: str
    torch: str
    """Release, such as `2.5`; empty where the source does not say."""


def read_kernelbench(folder: Path, plans: PlanSource = "standin") -> Corpus:
    """Every row of `times.csv` with its kernels; repeated runs become their geometric mean.

    `plans` says whose plan the compiled modes run. Raises CorpusError naming the file and the
    field, MissingExtra where TorchInductor is asked and torch or Triton is not installed.
    """
    corpus = Corpus()
    times: dict[Run, list[float]] = {}
    names: dict[Run, str] = {}
    for place, row in csv_rows(folder / "times.csv", FIELDS):
        torch = row["torch"].removesuffix("?") or "2.5.0"
        run = Run(
            row["sizes"], row["level"], row["problem_id"], row["gpu"], row["host"], row["mode"],
            ".".join(torch.split(".")[:2]),
        )  # fmt: skip
        times.setdefault(run, []).append(time_above_0(place, "mean_ms", row["mean_ms"]))
        names[run] = row["name"]

    def graph_of(run: Run) -> AtenGraph:
        return _graph(folder, run)

    collect(corpus, times, names, graph_of, plans)
    return corpus


def collect(
    corpus: Corpus, times: Mapping[Run, Sequence[float]], names: Mapping[Run, str],
    graph_of: Callable[[Run], AtenGraph], plans: PlanSource = "standin",
) -> None:  # fmt: skip
    """Add a row for every run, times in ms; what has no device, mode or graph is counted."""
    devices: dict[str, Device | None] = {}
    graphs: dict[tuple[str, str, str], AtenGraph | str] = {}
    with Plans(plans, corpus) as planned:
        for run, measured in times.items():
            if run.mode not in MODES:
                corpus.skip(f"mode {run.mode} is not priced", len(measured))
                continue
            device = devices.setdefault(run.gpu, _device(run.gpu))
            if device is None:
                corpus.skip(f"device {run.gpu} is not in the catalog", len(measured))
                continue
            place = (run.sizes, run.level, run.problem)
            if place not in graphs:
                graphs[place] = _read(graph_of, run)
            graph = graphs[place]
            if isinstance(graph, str):
                corpus.skip(graph, len(measured))
                continue
            kernels = planned.of(place, graph, device)
            time_us = 1e3 * geometric_mean(measured)
            corpus.rows.append(_row(run, names[run], device, graph, kernels, time_us))
    corpus.notes.append(planned.note())


def _row(
    run: Run, name: str, device: Device, graph: AtenGraph, plans: ByMode, time_us: float
) -> Measured:
    host = run.host
    setting = Setting(
        device=device, host=host, software=run.torch, warm_l2=host not in COLD_RUNS,
        host_floor_us=HOST_FLOORS.get(host, 20.0),
        hidden_host_us=COLD_RUNS.get(host, 0.0), mode=run.mode,
        arguments=len(graph.inputs) + len(graph.weights),
    )  # fmt: skip
    label = f"kernelbench {run.sizes.partition('_')[0]}"
    number = f"{run.level}/{run.problem}"
    return Measured(
        corpus=f"{label} L{run.level}", problem=number, name=name, setting=setting,
        run=f"{run.sizes} {number} {run.gpu} {host} {run.torch}",
        class_=sequence_class(plans["eager"]), kernels=plans[run.mode], time_us=time_us,
        fused=run.mode not in EAGER_MODES,
        tables=(f"{label} L1+L2",) if run.level in ("1", "2") else (),
    )  # fmt: skip


def _read(graph_of: Callable[[Run], AtenGraph], run: Run) -> AtenGraph | str:
    """The graph of a run, or why there is none."""
    try:
        return graph_of(run)
    except SourceError as error:
        return str(error)


def _device(gpu: str) -> Device | None:
    from fuseledger.devices import load

    name = GPUS.get(gpu)
    return load(name) if name else None


def _graph(folder: Path, run: Run) -> AtenGraph:
    """The graph of a run. Raises SourceError where there is none, or it cannot be read."""
    from fuseledger.frontends.aten_json import read

    for sizes in dict.fromkeys((run.sizes, run.sizes.partition("_")[0])):
        # `v0.1_modal` holds replaced graphs only: the rest are as before
        place = folder / sizes / f"level{run.level}"
        found = sorted(place.glob(f"{glob.escape(run.problem.zfill(3))}_*.json"))
        if found:
            return read(found[0])
    raise SourceError(f"no graph of {run.sizes} level {run.level} problem {run.problem}")
