"""How fast a convolution runs in the library: the library clock's efficiency surface.

The schedule clock prices a shape many times and asks for its rate once.
"""

from __future__ import annotations

import math

from msgspec import Struct

from fuseledger.clock.library import load_fit
from fuseledger.clock.library_features import Setting, Term, kernel_terms
from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.devices import Device
from fuseledger.ledger.convolution import Convolution

WAVES = frozenset(("conv.wave", "conv.fill"))
"""Features of the library's own grid."""


class ConvolutionRate(Struct, frozen=True):
    """What the matrix units sustain on a shape, and what stands beside it."""

    share: float
    """Of the pipe's dense peak, while every SM is busy."""
    idle: float
    """Factor of the library's time where its last wave leaves SMs idle."""
    layout_us: float
    """Passes that turn row-major operands to channels last and back: cuDNN's convolutions on matrix
    units compute channels last, and so does TorchInductor's template
    (`torch/_inductor/kernel/conv.py`)."""


def convolution_rate(shape: Convolution, device: Device) -> ConvolutionRate:
    """The rate of a shape by the shipped fit of the library clock.

    The fit's convolutions ran in TF32; other dtypes are taken to sustain the same share of theirs.
    """
    kernel = LibraryKernel(
        name="convolution", op="convolution", kind="conv", reads=(), writes=(), flops=1.0,
        pipe="tf32", shape=_sizes(shape),
    )  # fmt: skip
    terms = {t.role: t for t in kernel_terms(kernel, (0.0, 0.0), Setting(device=device))}
    compute = terms["compute"]
    found = _log_factors(compute)
    dense_us = 1e6 / device.peak_for("fp32", matrix=True, tf32=True)
    idle = math.exp(sum(us for name, us in found.items() if name in WAVES))
    busy = math.exp(sum(us for name, us in found.items() if name not in WAVES))
    layout = terms.get("layout")
    layout_us = 0.0
    if layout is not None:
        layout_us = layout.base_us * math.exp(sum(_log_factors(layout).values()))
    share = dense_us / (compute.base_us * busy)
    return ConvolutionRate(min(1.0, share), max(1.0, idle), layout_us)


def _log_factors(term: Term) -> dict[str, float]:
    """Feature → logarithm of its factor; one that the fit has not met has none."""
    known = load_fit().coefficients
    return {name: known.get(name, 0.0) * value for name, value in term.features.items()}


def _sizes(shape: Convolution) -> dict[str, float]:
    """The sizes as the library clock names them."""
    channels_in, channels_out = shape.channels_in, shape.channels_out
    return {
        "batch": shape.batch, "channels_in": channels_in, "channels_out": channels_out,
        "groups": shape.groups, "rank": shape.rank, "window": shape.window,
        "spatial": shape.spatial, "stride": shape.stride, "dilation": shape.dilation,
        "transposed": float(shape.transposed), "depthwise": float(shape.depthwise),
        "x_bytes": shape.x_bytes, "y_bytes": shape.y_bytes,
        "even": float(channels_in % 4 == 0 and channels_out % 4 == 0),
        "channels_last": float(shape.channels_last), "unrolled": 1.0,
    }  # fmt: skip
