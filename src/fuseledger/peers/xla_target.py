"""A device of the catalog as XLA describes a GPU: the text of a `GpuTargetConfigProto`.

XLA's cost models read it where a compiler with a GPU would ask the driver. Its own descriptions of
the same GPUs (`xla/backends/gpu/target_config/specs/*.txtpb`) hold the same figures.
"""

from __future__ import annotations

from fuseledger.devices import Device

FMA_OPS = 2
"""Operations of a fused multiply-add."""
ACCELERATED = (9, 10)
"""Major capabilities whose own features XLA compiles for (`sm_90a`, `sm_100a`)."""

_TEXT = """\
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  threads_per_block_limit: {threads_per_block}
  threads_per_warp: {warp}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {shared_per_block}
  shared_memory_per_core: {shared_per_sm}
  threads_per_core_limit: {threads_per_sm}
  core_count: {sms}
  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  registers_per_core_limit: {registers}
  registers_per_block_limit: {registers}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{title}"
"""
"""The limits written as figures are those of every CUDA device (CUDA C++ Programming Guide, table
of technical specifications); cuDNN is the release that XLA's own descriptions name."""


def capability(device: Device) -> tuple[int, int]:
    """Major and minor compute capability; `sm_100` is (10, 0)."""
    digits = device.arch.removeprefix("sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def target_config(device: Device) -> str:
    """The target's description; raises DeviceError where the catalog lacks a figure."""
    major, minor = capability(device)
    sms, clock_ghz = int(device.require("sm_count")), device.require("clock_mhz") / 1e3
    warp = int(device.require("warp_size"))
    lanes = device.require("peak_tflops.fma_fp32") * 1e3 / (FMA_OPS * sms * clock_ghz)
    per_block = int(device.require("shared_memory_per_block_bytes"))
    return _TEXT.format(
        major=major, minor=minor, title=device.title, sms=sms, clock=f"{clock_ghz:g}",
        threads_per_block=int(device.require("threads_per_block")),
        features="ACCELERATED_FEATURES" if major in ACCELERATED else "NONE",
        warp=warp, shared_per_block=per_block,
        shared_per_sm=device.shared_memory_per_sm_bytes or per_block,
        threads_per_sm=int(device.require("threads_per_sm")),
        fpus=warp * round(lanes / warp),
        bandwidth=int(device.require("dram_bandwidth_gbs") * 1e9),
        l2=int(device.require("l2_bytes")), memory=int(device.require("dram_bytes")),
        registers=int(device.require("registers_per_sm")),
    )  # fmt: skip
