"""Fit of the library clock: penalised least squares on logarithms of whole measured times.

A row's prediction is `max(host, Σ kernels)`, smooth; a kernel is its launch and the greater
of stream and arithmetic, smooth. Its gradient by coefficient is exact, so a few
Gauss-Newton steps with reweighting (least absolute deviations beyond `CLIP`) settle it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from msgspec import Struct

from fuseledger.clock.library_features import Setting, Term, host_parts, sequence_terms
from fuseledger.clock.library_kernel import LibraryKernel

SHARPNESS = 4.0
"""Exponent of the smooth maximum of stream and arithmetic, and of host and GPU."""
CLIP = 0.03
"""|log error| under which residuals count squared: about the noise of repeated runs on other
machines."""
STEPS = 14

HOST_FIXED_US, HOST_LAUNCH_US = 15.0, 5.0
"""Where the host's constants start from; together the floor of one eager call, 11–30 µs."""

REFERENCE_FLOOR_US = 20.0
"""Floor of one eager call on the host that those constants are for; others scale with theirs."""

Array = Any
np: Any = numpy
"""NumPy's own overloads leave results of `Any` arrays unknown."""


class Row(Struct, frozen=True):
    """One sequence of kernels in one setting."""

    setting: Setting
    kernels: Sequence[LibraryKernel]


class Prior(Struct, frozen=True):
    """Where a coefficient starts, and how far it may stray: mean and standard deviation."""

    mean: float
    deviation: float


class Entries(Struct, frozen=True):
    """A sparse matrix: a term carries about eight of some two hundred features."""

    row: Array
    column: Array
    value: Array
    rows: int

    def times(self, vector: Array) -> Array:
        """The product with a vector of one number a column."""
        return np.bincount(self.row, self.value * vector[self.column], self.rows)

    def summed(self, weights: Array, group: Array, shape: tuple[int, int]) -> Array:
        """Dense: rows of the matrix scaled by `weights` and added up by `group`."""
        place = group[self.row] * shape[1] + self.column
        flat = np.bincount(place, self.value * weights[self.row], shape[0] * shape[1])
        return flat.reshape(shape)


class Design(Struct):
    """Rows as arrays: terms with their features, and which kernel and row each belongs to."""

    names: list[str]
    base: Array
    features: Entries
    kernel_of_term: Array
    overlaps: Array
    """Whether a term is stream or compute, which overlap within their kernel."""
    row_of_kernel: Array
    host_base: Array
    """The constant, and launches of a kind × the cost of one."""
    host_features: Entries
    host_row: Array
    hidden: Array

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.hidden)


def design_of(rows: Sequence[Row], names: Sequence[str] | None = None) -> Design:
    """Arrays of rows; features outside `names`, where it is given, are left out."""
    listed = list(names) if names is not None else []
    index = {name: i for i, name in enumerate(listed)}
    grow = names is None
    entries: list[tuple[int, int, float]] = []
    hosts: list[tuple[int, int, float]] = []
    base: list[float] = []
    overlaps: list[bool] = []
    kernel_of: list[int] = []
    row_of: list[int] = []
    host_base: list[float] = []
    host_row: list[int] = []

    def put(place: int, features: Mapping[str, float], into: list[tuple[int, int, float]]) -> None:
        for name, value in features.items():
            if name not in index:
                if not grow:
                    continue
                index[name] = len(listed)
                listed.append(name)
            into.append((place, index[name], value))

    made: dict[tuple[int, str, str, bool, str, float], list[list[Term]]] = {}
    for r, row in enumerate(rows):
        s = row.setting
        key = (id(row.kernels), s.device.name, s.software, s.warm_l2, s.mode, s.host_floor_us)
        if key not in made:
            made[key] = sequence_terms(row.kernels, s)
        for terms in made[key]:
            for term in terms:
                put(len(base), term.features, entries)
                base.append(max(term.base_us, 1e-6))
                overlaps.append(term.role in ("stream", "compute"))
                kernel_of.append(len(row_of))
            row_of.append(r)
        for units, features in host_parts(row.kernels, s):
            put(len(host_base), features, hosts)
            base_us = HOST_LAUNCH_US * units if units else HOST_FIXED_US
            host_base.append(base_us * s.host_floor_us / REFERENCE_FLOOR_US)
            host_row.append(r)
    return Design(
        names=listed, base=np.array(base), features=_entries(entries, len(base)),
        kernel_of_term=np.array(kernel_of, dtype=int), overlaps=np.array(overlaps, dtype=bool),
        row_of_kernel=np.array(row_of, dtype=int), host_base=np.array(host_base),
        host_features=_entries(hosts, len(host_base)),
        host_row=np.array(host_row, dtype=int),
        hidden=np.array([row.setting.hidden_host_us for row in rows]),
    )  # fmt: skip


def _entries(entries: Sequence[tuple[int, int, float]], rows: int) -> Entries:
    row, column, value = zip(*entries, strict=True) if entries else ((), (), ())
    return Entries(
        np.array(row, dtype=int), np.array(column, dtype=int), np.array(value, dtype=float), rows
    )


class Predicted(Struct, frozen=True):
    """Times in µs of rows and of their kernels, and the gradient of the rows' logarithms."""

    total_us: Array
    host_us: Array
    gpu_us: Array
    kernel_us: Array
    term_us: Array
    gradient: Array | None


def predict(design: Design, theta: Array, *, gradient: bool = False) -> Predicted:
    """Times of every row under coefficients."""
    t = design.base * np.exp(np.clip(design.features.times(theta), -8, 8))
    kernels = len(design.row_of_kernel)
    both = design.overlaps
    powered = np.bincount(design.kernel_of_term[both], t[both] ** SHARPNESS, kernels)
    overlapped = powered ** (1 / SHARPNESS)
    alone = np.bincount(design.kernel_of_term[~both], t[~both], kernels)
    kernel_us = overlapped + alone
    gpu = np.bincount(design.row_of_kernel, kernel_us, design.rows)
    parts = design.host_base * np.exp(np.clip(design.host_features.times(theta), -8, 8))
    host = np.maximum(np.bincount(design.host_row, parts, design.rows) - design.hidden, 1.0)
    total = (gpu**SHARPNESS + host**SHARPNESS) ** (1 / SHARPNESS)
    made: Array | None = None
    if gradient:
        weight = t.copy()
        k = design.kernel_of_term[both]
        weight[both] = t[both] ** SHARPNESS * np.where(powered[k] > 0, powered[k], 1.0) ** (1 / SHARPNESS - 1)  # noqa: E501  # fmt: skip
        of_row = design.row_of_kernel[design.kernel_of_term]
        share = (gpu / total) ** SHARPNESS / np.where(gpu > 0, gpu, 1.0)
        shape = (design.rows, len(theta))
        made = design.features.summed(weight * share[of_row], of_row, shape)
        host_share = np.where(host > 1.0, (host / total) ** SHARPNESS / host, 0.0)
        of_part = design.host_row
        made += design.host_features.summed(parts * host_share[of_part], of_part, shape)
    return Predicted(total, host, gpu, kernel_us, t, made)


def fit(
    design: Design, measured_us: Array, prior: Mapping[str, Prior], weights: Array | None = None
) -> Array:
    """Coefficients of the design's features, from measured times in µs."""
    mean: Array = np.array([prior_of(name, prior).mean for name in design.names])
    precision: Array = np.array([prior_of(name, prior).deviation ** -2 for name in design.names])
    theta: Array = mean.copy()
    log_measured = np.log(measured_us)
    importance: Array = np.ones(design.rows) if weights is None else weights

    def loss(at: Array, made: Predicted) -> float:
        residual = np.abs(log_measured - np.log(made.total_us))
        robust: Array = np.where(residual < CLIP, residual**2 / CLIP / 2, residual - CLIP / 2)
        return float(importance @ robust / CLIP + 0.5 * precision @ (at - mean) ** 2)

    now = predict(design, theta, gradient=True)
    best = loss(theta, now)
    for _ in range(STEPS):
        residual = log_measured - np.log(now.total_us)
        w = importance / CLIP / np.maximum(np.abs(residual), CLIP)
        jacobian = now.gradient
        normal = (jacobian * w[:, None]).T @ jacobian + np.diag(precision)
        step: Array = np.linalg.solve(normal, (jacobian * w[:, None]).T @ residual - precision * (theta - mean))  # noqa: E501  # fmt: skip
        for _halving in range(6):
            trial = predict(design, theta + step, gradient=True)
            cost = loss(theta + step, trial)
            if cost < best:
                break
            step = step / 2
        else:
            break
        theta, now = theta + step, trial
        if best - cost < 1e-3 * best:
            break
        best = cost
    return theta


def deviations(
    design: Design, measured_us: Array, theta: Array, prior: Mapping[str, Prior],
    weights: Array | None = None,
) -> Array:  # fmt: skip
    """Standard deviation of each coefficient after a fit: what the rows leave open.

    Laplace's approximation: the loss is taken as a parabola at its minimum, its curvature by the
    weights of the last step; the diagonal of the inverse holds the others open too.
    """
    precision: Array = np.array([prior_of(name, prior).deviation ** -2 for name in design.names])
    importance: Array = np.ones(design.rows) if weights is None else weights
    made = predict(design, theta, gradient=True)
    residual = np.abs(np.log(measured_us) - np.log(made.total_us))
    w = importance / CLIP / np.maximum(residual, CLIP)
    normal = (made.gradient * w[:, None]).T @ made.gradient + np.diag(precision)
    return np.sqrt(np.diag(np.linalg.inv(normal)))


def prior_of(name: str, priors: Mapping[str, Prior]) -> Prior:
    """The prior of a coefficient: its own, else that of a deviation, a class or a shape feature."""
    if name in priors:
        return priors[name]
    if name.startswith("conv.cell:"):
        return priors["conv.cell@" if "@" in name else "conv.cell"]
    if name.startswith("host") and "@" in name:
        return priors["host@"]
    if "@" in name:
        return priors["@"]
    if name.startswith("host."):
        return priors["host"]
    if name.endswith((".stream", ".compute")):
        return priors["."]
    return priors["*"]


PRIORS: dict[str, Prior] = {
    "*": Prior(0.0, 0.3),
    "@": Prior(0.0, 0.15),
    ".": Prior(0.0, 0.4),
    "host": Prior(0.0, 0.5), "host@": Prior(0.0, 0.1),
    "host.launch:eager": Prior(0.0, 0.2), "host.pointwise:eager": Prior(0.0, 0.2),
    "host.conv:eager": Prior(1.2, 0.5),
    "host.batch_norm:eager": Prior(1.2, 0.5), "host.inner:eager": Prior(0.0, 0.3),
    "conv.compute": Prior(0.25, 0.5), "gemm.compute": Prior(0.25, 0.3),
    "pool.compute": Prior(0.0, 0.3), "depthwise.compute": Prior(1.5, 1.0),
    "attention.compute": Prior(0.7, 0.5), "rnn.compute": Prior(2.0, 1.0),
    "gemm.wave": Prior(1.0, 0.3), "gemm.fill": Prior(0.8, 0.3), "gemm.split_k": Prior(-0.6, 0.3),
    "gemm.power": Prior(0.5, 0.2), "gemm.loads": Prior(0.3, 0.15),
    "moments.fill": Prior(0.7, 0.4), "batch_norm.fill": Prior(0.7, 0.4),
    "layer_norm.fill": Prior(0.7, 0.4), "layer_norm.short": Prior(0.9, 0.3),
    "attention.wide": Prior(0.7, 0.5), "conv.layout": Prior(0.0, 0.3),
    "conv.cell": Prior(0.0, 0.4), "conv.cell@": Prior(0.0, 0.2),
    "conv.layout.pointwise": Prior(-3.0, 1.0), "conv.depthwise": Prior(1.0, 1.0),
    "softmax.fill": Prior(0.7, 0.4),
    "reduce.fill": Prior(0.0, 0.3), "reduce.outer_fill": Prior(0.0, 0.1),
    "softmax.outer_fill": Prior(0.0, 0.1), "batch_norm.outer_fill": Prior(0.0, 0.1),
    "compute.depthwise@compiled": Prior(1.0, 1.0), "launch": Prior(0.0, 0.15),
    "host.fixed:compiled": Prior(1.0, 0.5), "host.fixed:graph": Prior(1.4, 0.5),
    "host.launch:graph": Prior(-2.0, 1.0), "sync": Prior(0.0, 0.5),
}  # fmt: skip
"""Before any fit: what the mechanisms say. A coefficient is the logarithm of a factor on the time,
so 0.7 is half the peak; a `fill` of 1 is a machine used only as far as there are rows."""
