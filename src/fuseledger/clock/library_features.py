"""What a library kernel's time is made of, as terms that a fit can scale.

Each term has a base time, from bytes or FLOPs and the device's own figures, and named features;
its time is `base · exp(Σ coefficient · feature)`. A feature is an indicator or the logarithm of a
ratio, so a coefficient is the logarithm of a factor or an exponent, and can be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.clock.residency import dram_and_l2_bytes
from fuseledger.devices import Device

STREAM_SHARE = 0.89
"""Share of the datasheet bandwidth that streams start from: the catalog's median over 8 GPUs. The
copies measured on single devices differ more between them than library kernels do."""
BLOCK_BYTES_PER_CLOCK = 8.0
"""What one block of a row-by-row kernel pulls: a quarter of the 32 B per clock that an SM can."""
SPLIT_FROM, SPLIT_ELEMENTS = 512 * 256, 512 * 16
"""PyTorch's reduce kernel splits a row over several blocks where each of a block's 512 threads
would take 256 elements or more, and leaves them 16 each at least
(`aten/src/ATen/native/cuda/Reduce.cuh`, `setReduceConfig`)."""
SERIAL_STEP_US = 0.5
"""One dependent access to DRAM, in a kernel of one warp that waits for each."""
SYNC_CALLS = 3.0
"""Eager calls that pass while the GPU idles after the host has waited for it: the value's copy to
the host, the branch that it decides, and the launch behind that."""
WATTS_PER_TFLOP = 10.0
"""fp32 products take about so many watts a TFLOP/s: an H100 SXM, at 10.4 W a TFLOP/s of its peak,
holds its clock in them, an H100 PCIe, at 6.9, does not (37 of 51 TFLOP/s at 350 W)."""
TAP_INSTRUCTIONS = 40.0
"""Lane instructions of one element of a pooling window: bounds, a 64-bit address, the load, a
comparison with NaN in mind, the index (`DilatedMaxPool2d.cu`, `DilatedMaxPool3d.cu`)."""
SETUP_TAPS = 8.0
"""What a pooled result takes beside its window, in taps: its place in the tensor is found by
divisions. Both from the three pooling problems of the odd half of KernelBench: max-pooling over 8
and 27 elements takes 3.5 and 8.4 clocks of an SM a result, on three devices."""
GEMM_TILE = 128
"""Side of the usual cuBLAS tile."""
LANES_PER_LOAD = 4.0
"""FP32 lanes for each load/store unit of an SM on Hopper, where the share that fp32 products reach
is known best; 2 on the A100, 8 on Ada and GA10x."""

Features = dict[str, float]


class Setting(Struct, frozen=True, kw_only=True):
    """Where a sequence of kernels runs: the device, its host and its software."""

    device: Device
    host: str = ""
    """Name of the host whose constants count; empty for an unknown one."""
    software: str = ""
    """Release of the framework, such as `2.5`."""
    warm_l2: bool = True
    """Whether the same sequence ran just before."""
    host_floor_us: float = 20.0
    """What one call takes on an idle GPU: how fast this host is."""
    hidden_host_us: float = 0.0
    """Host work that the timing does not see."""
    mode: str = "eager"
    arguments: int = 0
    """Tensors handed to the call: inputs, parameters and buffers. A compiled call checks each."""


class Term(Struct, frozen=True):
    """One part of one kernel's time."""

    role: str
    """`stream`, `compute`, `layout`, `serial`, `sync` or `launch`; stream and compute overlap."""
    base_us: float
    features: Features


def over(top: float, value: float) -> float:
    """log(top / value) where value is below top, else 0."""
    return math.log(top / value) if 0 < value < top else 0.0


def saturating_blocks(device: Device) -> float:
    """Blocks of one wave that keep DRAM busy, at `BLOCK_BYTES_PER_CLOCK` each."""
    clock_ghz = (device.clock_mhz or 1500.0) / 1e3
    return device.require("dram_bandwidth_gbs") / (BLOCK_BYTES_PER_CLOCK * clock_ghz)


def kernel_terms(
    kernel: LibraryKernel, traffic: tuple[float, float], setting: Setting
) -> list[Term]:
    """The terms of one kernel; `traffic` is its bytes from DRAM and from L2."""
    device = setting.device
    dram, l2 = traffic
    stream_gbs = STREAM_SHARE * device.require("dram_bandwidth_gbs")
    l2_gbs = device.l2_bandwidth_gbs or 3.0 * stream_gbs
    stream = dram / stream_gbs / 1e3 + l2 / l2_gbs / 1e3
    kind = _class_of(kernel)
    tags = _setting_tags(setting, kind, three_d=kernel.shape.get("rank") == 3)
    launch = device.launch_us("queued") * kernel.launches
    terms = [Term("launch", launch, {"launch": 1.0, **_steps(kernel), **_only(tags, "launch")})]
    if stream > 0:
        made = {f"{kind}.stream": 1.0, **_STREAM.get(kind, _plain)(kernel, device)}
        terms.append(Term("stream", stream, {**made, **_only(tags, "stream")}))
    if kind == "conv" and not kernel.shape.get("channels_last"):
        turned = 2 * (kernel.shape["x_bytes"] + kernel.shape["y_bytes"])
        made = {"conv.layout": 1.0, **_layout(kernel)}
        terms.append(Term("layout", turned / stream_gbs / 1e3, made))
    if kernel.shape.get("serial_steps"):
        waited = kernel.shape["serial_steps"] * SERIAL_STEP_US
        terms.append(Term("serial", waited, {"serial": 1.0}))
    if kernel.shape.get("syncs"):
        idle = kernel.shape["syncs"] * SYNC_CALLS * setting.host_floor_us
        terms.append(Term("sync", idle, {"sync": 1.0}))
    if kernel.flops and kind in _COMPUTE:
        base = _operations(kernel) / _peak(kernel, device) * 1e6
        made = {f"{kind}.compute": 1.0, **_COMPUTE[kind](kernel, device)}
        terms.append(Term("compute", base, {**made, **_only(tags, "compute")}))
    return terms


def _steps(kernel: LibraryKernel) -> Features:
    """A recurrent layer's kernels wait for each other: none starts before the one before ended."""
    return {"rnn.step": 1.0} if kernel.kind == "rnn" else {}


def sequence_terms(kernels: Sequence[LibraryKernel], setting: Setting) -> list[list[Term]]:
    """The terms of every kernel of a sequence, with what L2 keeps between them."""
    l2 = float(setting.device.l2_bytes or 1)
    traffic = dram_and_l2_bytes(kernels, l2, warm=setting.warm_l2)
    return [kernel_terms(k, t, setting) for k, t in zip(kernels, traffic, strict=True)]


def host_parts(kernels: Sequence[LibraryKernel], setting: Setting) -> list[tuple[float, Features]]:
    """(units, features) of the host's time: a constant, and launches by what has to be set up.

    The first launch of a call passes through the framework's dispatcher; further launches of the
    same call do not, and are cheaper. So is an eager call whose operator ran before in the
    sequence: its path through framework and library lies in the host's caches, which the wait for
    the GPU between two timings left cold.
    """
    group = host_group(setting.mode)
    common: Features = {f"host.launch:{group}": 1.0}
    if setting.host:
        common |= {f"host.launch@{setting.host}": 1.0}
    # an eager call's constant is the host's floor, which was measured: nothing is fitted
    fixed: Features = {} if group == "eager" else {f"host.fixed:{group}": 1.0}
    if setting.host and fixed:
        fixed |= {f"host@{setting.host}": 1.0}
    counts: dict[tuple[str, bool], float] = {}
    before, met = "", set[str]()
    for kernel in kernels:
        first = float(kernel.op != before)
        operator = kernel.op.partition(" ")[0]
        again = group == "eager" and operator in met
        inner = STEP if kernel.kind == "rnn" else INNER
        for kind, count in (((kernel.kind, again), first), (inner, kernel.launches - first)):
            counts[kind] = counts.get(kind, 0.0) + count
        before = kernel.op
        met.add(operator)
    parts = [(FIXED, fixed)]
    if setting.arguments and group in ("compiled", "graph"):
        parts.append((float(setting.arguments), {**common, f"host.argument:{group}": 1.0}))
    for (kind, again), count in counts.items():
        if count:
            repeated: Features = {f"host.again:{group}": 1.0} if again else {}
            parts.append((count, {**common, f"host.{kind}:{group}": 1.0, **repeated}))
    return parts


FIXED = 0.0
"""Units of the part that is a constant."""
INNER, STEP = ("inner", False), ("step", False)
"""Launches of a call after its first; those of a recurrent layer, which cuDNN makes in a loop."""


def host_group(mode: str) -> str:
    """How kernels are dispatched in a mode: eager, compiled, or replayed from a graph."""
    if mode in ("eager", "fused"):
        return mode
    return "graph" if mode in GRAPH_MODES else "compiled"


GRAPH_MODES = frozenset({"compile-reduce-overhead", "compile-max-autotune", "cudagraphs-backend"})


def _only(tags: Mapping[str, str], role: str) -> Features:
    return {f"{role}{tag}": 1.0 for tag, roles in tags.items() if role in roles}


def _setting_tags(setting: Setting, kind: str, *, three_d: bool) -> dict[str, str]:
    """Deviations of a device, a software release and a mode from what is common to all."""
    family = kind if kind in ("gemm", "conv", "depthwise", "pool") else "pass"
    tags = {f".{family}@{setting.device.name}": "stream compute"}
    tags[f"@{setting.device.name}"] = "launch"
    if setting.software:
        tags[f".{family}@software-{setting.software}"] = "stream compute"
        if kind == "conv" and three_d:
            tags[f".conv3@software-{setting.software}"] = "compute"
    if "max-autotune" in setting.mode:
        tags[f".{family}@autotuned"] = "compute"
    if host_group(setting.mode) == "graph":
        tags["@graph"] = "launch"
    return tags


def _class_of(kernel: LibraryKernel) -> str:
    return "depthwise" if kernel.kind == "conv" and kernel.shape["depthwise"] and kernel.pipe == "lanes" else kernel.kind  # noqa: E501  # fmt: skip


def _operations(kernel: LibraryKernel) -> float:
    """FLOPs, or what takes as long: an instruction is issued in the time of an FMA's two FLOPs."""
    if kernel.kind == "pool":
        return 2 * TAP_INSTRUCTIONS * (kernel.flops + SETUP_TAPS * kernel.shape["results"])
    return kernel.flops


def _peak(kernel: LibraryKernel, device: Device) -> float:
    """FLOP/s of the units that a kernel computes on.

    Convolutions in TF32 run kernels of `mma.sync` on Hopper too: profiles there show cuDNN's
    `sm80_xmma_fprop_implicit_gemm_tf32f32`, where cuBLAS has kernels of `wgmma`.
    """
    if kernel.pipe == "lanes":
        return _issue_rate(device)
    if kernel.pipe in ("half", "fp8"):
        return device.peak_for("fp16" if kernel.pipe == "half" else "fp8_e4m3", matrix=True)
    peak = device.peak_for("fp32", matrix=True, tf32=kernel.pipe == "tf32")
    if kernel.kind == "conv" and kernel.pipe == "tf32":
        return peak * (device.synchronous_mma_share or 1.0)
    return peak


def _issue_rate(device: Device) -> float:
    """FLOP/s if every instruction that an SM can issue were an FMA.

    Kernels that walk windows are bound by instructions, few of which are FMAs: an A100, with
    lanes for half of what it can issue, is not half as fast in them.
    """
    schedulers, warp = device.warp_schedulers_per_sm, device.warp_size
    sms, clock_mhz = device.sm_count, device.clock_mhz
    if schedulers is None or warp is None or sms is None or clock_mhz is None:
        return device.peak_for("fp32", matrix=False)
    return 2e6 * schedulers * warp * sms * clock_mhz


# -- streams -------------------------------------------------------------------------------

FeatureRule = Callable[[LibraryKernel, Device], Features]


def _plain(kernel: LibraryKernel, device: Device) -> Features:
    return {}


def _flagged(*flags: str) -> FeatureRule:
    """Indicators that the kernel's shape carries under these names."""

    def rule(kernel: LibraryKernel, device: Device) -> Features:
        return {f"{kernel.kind}.{flag}": 1.0 for flag in flags if kernel.shape.get(flag)}

    return rule


def _rows(kernel: LibraryKernel, device: Device) -> Features:
    """Reductions, norms, softmax: rows against SMs, short rows, walks across memory."""
    shape, kind = kernel.shape, kernel.kind
    made = {f"{kind}.{flag}": 1.0 for flag in ("index",) if shape.get(flag)}
    if not shape["inner"]:
        made[f"{kind}.outer"] = 1.0
        made[f"{kind}.outer_fill"] = over(float(device.sm_count or 100) * 1024, shape["rows"])
    else:
        blocks = shape["rows"] * (_split(shape["length"]) if kind == "reduce" else 1.0)
        made[f"{kind}.fill"] = over(saturating_blocks(device), blocks)
        made[f"{kind}.short"] = over(512, shape["length"])
    if kind not in ("reduce", "moments"):  # which walk a row once
        made[f"{kind}.long"] = _long(shape["length"])
    return {name: value for name, value in made.items() if value}


def _split(length: float) -> float:
    """Blocks that may share a row of a reduction."""
    return length // SPLIT_ELEMENTS if length >= SPLIT_FROM else 1.0


def _long(length: float) -> float:
    """How much longer a row is than what a block keeps on chip."""
    return min(3.0, over(max(length, 1.0), 16384))


def _layout(kernel: LibraryKernel) -> Features:
    """cuDNN turns row-major operands to channels last and back, unless it has a kernel without."""
    s = kernel.shape
    made = {
        "conv.layout.pointwise": float(s["window"] == 1),
        "conv.layout.rank1": float(s["rank"] == 1), "conv.layout.rank3": float(s["rank"] == 3),
        "conv.layout.transposed": s["transposed"], "conv.layout.grouped": float(s["groups"] > 1),
        "conv.layout.few_in": over(32, s["channels_in"]),
    }  # fmt: skip
    return {name: value for name, value in made.items() if value}


def _fused(kernel: LibraryKernel, device: Device) -> Features:
    made = {f"fused.{flag}": 1.0 for flag in ("transposes", "scans") if kernel.shape.get(flag)}
    if kernel.shape["window"] > 1:
        made["fused.window"] = 1.0
    if not kernel.shape["reduces"]:
        return made
    made["fused.reduces"] = 1.0
    if not kernel.shape["inner"]:
        made["fused.outer"] = 1.0
    if kernel.shape["inner"] and not kernel.shape["split"]:
        made["fused.fill"] = over(saturating_blocks(device), kernel.shape["rows"])
    made["fused.long"] = 0.0 if kernel.shape["split"] else _long(kernel.shape["length"])
    return {name: value for name, value in made.items() if value}


_STREAM: dict[str, FeatureRule] = {
    "pointwise": _flagged("strided", "broadcast"),
    "copy": _flagged("strided", "cat"),
    "reduce": _rows, "scan": _rows, "moments": _rows, "batch_norm": _rows, "layer_norm": _rows,
    "softmax": _rows, "fused": _fused,
}  # fmt: skip


# -- arithmetic ----------------------------------------------------------------------------


def _gemm(kernel: LibraryKernel, device: Device) -> Features:
    """Tile and wave quantisation, edges narrower than a tile, short k, batches."""
    s = kernel.shape
    sms = float(device.sm_count or 100)
    tiles = s["batch"] * math.ceil(s["m"] / GEMM_TILE) * math.ceil(s["n"] / GEMM_TILE)
    waves = tiles / sms
    made = {
        "gemm.wave": math.log(math.ceil(waves) / waves) if waves >= 1 else 0.0,
        "gemm.fill": over(1.0, waves),
        "gemm.split_k": over(1.0, waves) if s["k"] > 4096 else 0.0,
        "gemm.narrow": over(GEMM_TILE, min(s["m"], s["n"])),
        "gemm.short_k": over(512, s["k"]),
        "gemm.batched": float(s["batch"] > 1),
        "gemm.transposed": s["transposed"],
        f"gemm.{kernel.pipe}": 1.0,
        "gemm.power": _short_of_power(device) if kernel.pipe == "fp32" else 0.0,
        "gemm.loads": _short_of_loads(device) if kernel.pipe == "fp32" else 0.0,
    }
    return {name: value for name, value in made.items() if value}


def _short_of_power(device: Device) -> float:
    """How far the board's power is below what fp32 products at the boost clock would take."""
    if device.board_power_w is None:
        return 0.0
    tflops = device.peak_for("fp32", matrix=True) / 1e12
    return over(WATTS_PER_TFLOP, device.board_power_w / tflops)


def _short_of_loads(device: Device) -> float:
    """How many more lanes each load/store unit has to feed than on Hopper; negative for fewer.

    The inner loop of an fp32 product loads its operands from shared memory, and these loads take
    turns in the units: NVIDIA's own profile of such a kernel on GA104 (cuBLAS's
    `ampere_sgemm_128x32_nn`, forums.developer.nvidia.com/t/261150) finds them at 87 %.
    """
    units, sms, clock_mhz = device.load_store_units_per_sm, device.sm_count, device.clock_mhz
    if units is None or sms is None or clock_mhz is None:
        return 0.0
    lanes = device.peak_for("fp32", matrix=True) / (2e6 * sms * clock_mhz)
    return math.log(lanes / units / LANES_PER_LOAD)


def _conv(kernel: LibraryKernel, device: Device) -> Features:
    """The convolution's efficiency surface."""
    s = kernel.shape
    sms = float(device.sm_count or 100)
    rows = s["batch"] * s["spatial"]
    tiles = s["groups"] * math.ceil(rows / 128) * math.ceil(s["channels_out"] / 128)
    waves = tiles / sms
    three = float(s["rank"] == 3)
    made = {
        "conv.few_in": over(64, s["channels_in"]),
        "conv.few_out": over(128, s["channels_out"]),
        "conv.wave": math.log(math.ceil(waves) / waves) if waves >= 1 else 0.0,
        "conv.fill": over(1.0, waves),
        "conv.few_in3": over(64, s["channels_in"]) * three,
        "conv.few_out3": over(128, s["channels_out"]) * three,
        "conv.rank1": float(s["rank"] == 1),
        "conv.rank3": three,
        "conv.pointwise": float(s["window"] == 1),
        "conv.window": max(0.0, math.log(s["window"] / 9)) if not three else 0.0,
        "conv.window3": max(0.0, math.log(s["window"] / 27)) if three else 0.0,
        "conv.transposed": s["transposed"],
        "conv.transposed3": s["transposed"] * three,
        "conv.stride": math.log(s["stride"]) * (1 - s["transposed"]),
        "conv.transposed_stride": math.log(s["stride"]) * s["transposed"],
        "conv.dilated": float(s["dilation"] > 1),
        "conv.grouped": float(s["groups"] > 1),
        "conv.odd": 1.0 - s["even"],
        "conv.depthwise": s["depthwise"],
        "conv.channels_last": s.get("channels_last", 0.0),
        **dict.fromkeys(_cells(s, device), 1.0),
    }
    return {name: value for name, value in made.items() if value}


def _cells(shape: Mapping[str, float], device: Device) -> Iterator[str]:
    """Cells of the efficiency surface, coarse to fine: what cuDNN picks its kernel by.

    Channels go in powers of two. A cell that no measured convolution lies in adds nothing to the
    smooth part of the surface.
    """
    flags = {
        "t": shape["transposed"], "g": shape["groups"] > 1, "s": shape["stride"] > 1,
        "d": shape["dilation"] > 1,
    }  # fmt: skip
    marks = "".join(mark for mark, on in flags.items() if on)
    channels = (round(math.log2(max(1.0, shape[c]))) for c in ("channels_in", "channels_out"))
    i, o = (2**exponent for exponent in channels)
    yield f"conv.cell:{shape['rank']:.0f}d{'t' if shape['transposed'] else ''}-{i}"
    fine = f"conv.cell:{shape['rank']:.0f}d{marks}-{i}-{o}-{shape['window']:.0f}"
    yield fine
    yield f"{fine}@{device.name}"


def _depthwise(kernel: LibraryKernel, device: Device) -> Features:
    s = kernel.shape
    window, stride = math.log(s["window"] / 9), math.log(s["stride"])
    made = {
        "depthwise.window": window, "depthwise.stride": stride,
        "depthwise.rolled": 1.0 - s["unrolled"],
    }  # fmt: skip
    return {name: value for name, value in made.items() if value}


def _attention(kernel: LibraryKernel, device: Device) -> Features:
    """Heads wider than 128 accumulate outside registers."""
    wide = over(kernel.shape["width"], 128.0)
    made = {f"attention.{kernel.pipe}": 1.0, "attention.wide": wide}
    return {name: value for name, value in made.items() if value}


_COMPUTE: dict[str, FeatureRule] = {
    "gemm": _gemm, "conv": _conv, "pool": _flagged("index"), "depthwise": _depthwise,
    "attention": _attention, "rnn": _plain,
}  # fmt: skip
