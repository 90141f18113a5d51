"""Times of library kernels, with an error bar from the out-of-fold validation of their class.

A fit is a JSON file beside this module, in `fits/`: coefficients by name, the rows that they were
fitted on, and each class's error on rows that no fit had seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from fuseledger.clock.library_features import Setting
from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.clock.tables import FITS, read_table


class ClassError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """|log(predicted / measured)| of a class out of fold: its median and 90th percentile."""

    n: int
    median: float
    p90: float


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Coefficients, what they were fitted on, and how far off they are."""

    schema: str = "fuseledger/library-fit@1"
    fitted_on: str
    """In words."""
    problems: tuple[str, ...]
    """Names of the problems whose times the coefficients have seen."""
    coefficients: dict[str, float]
    """Feature → logarithm of a factor, or an exponent; see `library_features`."""
    deviations: dict[str, float] = {}
    """Feature → how far off its coefficient may be: what the rows leave open."""
    errors: dict[str, ClassError]
    """`class:mode` → its error; `all` for the whole."""


class KernelTime(Struct, frozen=True):
    """One kernel's share, in µs."""

    name: str
    op: str
    kind: str
    time_us: float


class LibraryTime(Struct, frozen=True):
    """Time of a sequence of library kernels in µs."""

    total_us: float
    low_us: float
    """Nine in ten measured times of the class lay between `low_us` and `high_us`."""
    high_us: float
    host_us: float
    gpu_us: float
    kernels: tuple[KernelTime, ...]

    @property
    def bound(self) -> str:
        """`host` where dispatch takes longer than the GPU, else the class of most time."""
        if self.host_us > self.gpu_us or not self.kernels:
            return "host"
        by_kind: dict[str, float] = {}
        for kernel in self.kernels:
            by_kind[kernel.kind] = by_kind.get(kernel.kind, 0.0) + kernel.time_us
        return max(by_kind, key=lambda kind: by_kind[kind])


@cache
def load_fit(name: str = "kernelbench") -> Fit:
    """A fit by name or path. Raises InputError naming the file and what is wrong with it."""
    path = Path(name) if name.endswith(".json") else FITS / f"{name}.json"
    return read_table(path, Fit, "a fit of the library clock")


def sequence_class(kernels: Sequence[LibraryKernel]) -> str:
    """What decides most of a sequence's time: its rarest and heaviest kind of kernel."""
    kinds = {kernel.kind for kernel in kernels}
    for kind, name in CLASSES.items():
        if kind in kinds:
            return name
    return "pass"


CLASSES: dict[str, str] = {
    "rnn": "rnn", "conv": "conv", "attention": "attention", "gemm": "gemm", "pool": "pool",
    "scan": "scan", "batch_norm": "norm", "layer_norm": "norm", "moments": "norm",
    "softmax": "reduce", "reduce": "reduce",
}  # fmt: skip
"""Kind of kernel → class of a sequence that holds one; the first that applies."""


def library_time(
    kernels: Sequence[LibraryKernel], setting: Setting, fit: Fit | None = None
) -> LibraryTime:
    """Time of kernels launched one after another: `max(host, Σ kernels)`, smooth."""
    import numpy as np

    from fuseledger.clock.library_fit import PRIORS, Row, design_of, predict, prior_of

    fit = fit or load_fit()
    design = design_of([Row(setting, kernels)])
    theta = np.array(
        [fit.coefficients.get(name, prior_of(name, PRIORS).mean) for name in design.names]
    )
    made = predict(design, theta)
    total = float(made.total_us[0])
    error = error_of(fit.errors, sequence_class(kernels), setting.mode)
    times = (
        KernelTime(kernel.name, kernel.op, kernel.kind, float(us))
        for kernel, us in zip(kernels, made.kernel_us, strict=True)
    )
    return LibraryTime(
        total, total * math.exp(-error.p90), total * math.exp(error.p90),
        float(made.host_us[0]), float(made.gpu_us[0]), tuple(times),
    )  # fmt: skip


def error_of(errors: Mapping[str, ClassError], class_: str, mode: str) -> ClassError:
    """The error of a class in a mode; of all classes where that one was not measured."""
    for key in (f"{class_}:{mode}", f"all:{mode}", "all"):
        if key in errors:
            return errors[key]
    return ClassError(0, math.log(2), math.log(4))
