"""What each mechanism of the library clock is worth: drop it, refit in folds, report the loss.

`python benchmarks/clock_ablation.py FOLDER` with a KernelBench folder, as `fuseledger validate`
takes it; prints a Markdown table of median absolute percentage errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from clock_rows import MODES, cell, first_levels, percent_off
from fuseledger.clock import library_features, library_fit
from fuseledger.clock.library_features import FeatureRule, Features, Setting
from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.devices import Device
from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import by_problem

Patch = Callable[[], None]


def no_residency() -> None:
    """Every byte goes to DRAM."""
    library_features.dram_and_l2_bytes = lambda kernels, l2, *, warm: [
        (float(k.bytes), 0.0) for k in kernels
    ]


def no_conv_surface() -> None:
    """One efficiency for all convolutions."""

    def flat(kernel: LibraryKernel, device: Device) -> Features:
        return {}

    library_features._COMPUTE["conv"] = flat


def no_cells() -> None:
    """Only the smooth part of the convolutions' surface."""
    library_features._cells = lambda shape, device: iter(())


def no_layout() -> None:
    """Row-major convolutions turn nothing, and copies to channels last are streams like others."""
    terms = library_features.kernel_terms
    library_features.kernel_terms = lambda *given: [t for t in terms(*given) if t.role != "layout"]
    library_features._STREAM["fused"] = _without(("fused.transposes",), library_features._fused)


def _without(features: Collection[str], rule: FeatureRule) -> FeatureRule:
    def ruled(kernel: LibraryKernel, device: Device) -> Features:
        return {name: value for name, value in rule(kernel, device).items() if name not in features}

    return ruled


def no_arguments() -> None:
    """A compiled call costs the same however many tensors it is handed."""
    parts = library_features.host_parts
    library_fit.host_parts = lambda kernels, setting: parts(kernels, replace(setting, arguments=0))


QUANTISATION = frozenset({"gemm.wave", "gemm.fill", "gemm.split_k", "gemm.narrow", "gemm.short_k"})


def no_quantisation() -> None:
    """GEMMs whose tiles and waves are never short of work."""
    library_features._COMPUTE["gemm"] = _without(QUANTISATION, library_features._gemm)


def no_walks() -> None:
    """Reductions and norms like any pass: no fill, no direction."""
    for kind in ("reduce", "scan", "moments", "batch_norm", "layer_norm", "softmax"):
        library_features._STREAM.pop(kind)


def one_launch_cost() -> None:
    """The host spends the same on every launch."""

    def alike(kernels: Sequence[LibraryKernel], setting: Setting) -> list[tuple[float, Features]]:
        fixed, each = library_features.host_parts([], setting), sum(k.launches for k in kernels)
        group = library_features.host_group(setting.mode)
        return [*fixed, (float(each), {f"host.launch:{group}": 1.0})]

    library_fit.host_parts = alike


ABLATIONS: dict[str, Patch | None] = {
    "everything": None, "without L2 residency": no_residency,
    "without the convolution surface": no_conv_surface,
    "without its cells": no_cells, "without layouts of convolutions": no_layout,
    "without the host's cost of arguments": no_arguments,
    "without GEMM quantisation and edges": no_quantisation,
    "without walks of reductions and norms": no_walks,
    "one host cost a launch": one_launch_cost,
}  # fmt: skip


def main(folder: str) -> None:
    """Print the table."""
    rows = first_levels(Path(folder))
    print(
        "| | v0.1 eager | v0.1 compiled | v0 eager | v0 compiled |",
        "|---|---|---|---|---|",
        sep="\n",
    )
    saved = {m: dict(vars(m)) for m in (library_features, library_fit)}
    tables = dict(library_features._COMPUTE), dict(library_features._STREAM)
    for name, patch in ABLATIONS.items():
        if patch is not None:
            patch()
        print(f"| {name} | " + " | ".join(_errors(rows)) + " |", flush=True)
        for module, content in saved.items():
            vars(module).update(content)
        library_features._COMPUTE.update(tables[0])
        library_features._STREAM.update(tables[1])


def _errors(rows: Sequence[Measured]) -> list[str]:
    predicted = by_problem(rows).times_us
    cells = [cell(rows, sizes, mode) for sizes in ("v0.1", "v0") for mode in MODES]
    return [f"{percent_off(predicted, rows, of):.1f} %" for of in cells]


if __name__ == "__main__":
    main(sys.argv[1])
