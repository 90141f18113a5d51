"""TorchInductor's plan for a CUDA device, asked for in a process of its own; no GPU is needed.

The worker replaces parts of torch for good, so nothing of it may run in the caller's process. A
failure of any kind is a plan without kernels that says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from fuseledger.devices import Device
from fuseledger.errors import MissingExtra
from fuseledger.peers.peer import PeerKernel, PeerPlan

NAME = "inductor"
KNOWN_VERSIONS = ("2.13",)
"""Releases of torch whose internals the worker was tested against."""
TIME_LIMIT_S = 120.0
LEFT_OUT = (
    "shape padding of GEMMs (pad_mm), which times both forms on the GPU",
    "max-autotune templates, whose choice among themselves is timed on the GPU",
    "the pattern for e8m0 scales (MX formats), registered for CUDA examples alone",
    "Dynamo's own passes: the source is read as ATen calls",
)
"""Parts of TorchInductor's pipeline that need a GPU, or a form of the source that is not read."""

Json = dict[str, Any]


def inductor_plan(
    source: str,
    device: Device,
    *,
    dtype: str = "fp16",
    dims: Mapping[str, int] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> PeerPlan:
    """TorchInductor's default plan of a SOURCE for a device, kernels in launch order.

    `dtype` and `dims` are those of `frontends.source.load`. Raises MissingExtra where torch or
    Triton is not installed.
    """
    torch_version = _installed("torch", "torch")
    _installed("triton", "triton")
    refusal = _refusal(device)
    if refusal is not None:
        return _none("unavailable", torch_version, refusal)
    spec: Json = {
        "source": source, "dtype": dtype, "dims": dict(dims or {}),
        "device": device_properties(device),
    }  # fmt: skip
    command = [sys.executable, "-m", "fuseledger.peers.inductor_worker"]
    try:
        done = subprocess.run(
            command, input=json.dumps(spec), capture_output=True, text=True, timeout=time_limit_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _none("timeout", torch_version, f"no plan within {time_limit_s:g} s")
    try:
        answer = cast("Json", json.loads(done.stdout))
    except json.JSONDecodeError:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        said = last[0][:300] if last else "it said nothing"
        return _none("failed", torch_version, f"the worker ended with {done.returncode}: {said}")
    if "error" in answer:
        return _none("failed", torch_version, f"{answer['error']}{_doubt(torch_version)}")
    return PeerPlan(
        name=NAME, version=torch_version, status="planned",
        kernels=tuple(_kernel(entry) for entry in answer["kernels"]),
        seconds=float(answer["seconds"]), left_out=LEFT_OUT,
        notes=(*answer["notes"], *filter(None, [_doubt(torch_version).removeprefix("; ")])),
    )  # fmt: skip


def device_properties(device: Device) -> Json:
    """What TorchInductor asks of a CUDA device, from the catalog's figures."""
    capability = device.arch.removeprefix("sm_").rstrip("af")
    per_block = device.require("shared_memory_per_block_bytes")
    return {
        "name": device.title,
        "major": int(capability[:-1]),
        "minor": int(capability[-1]),
        "multi_processor_count": device.require("sm_count"),
        "total_memory": device.require("dram_bytes"),
        "L2_cache_size": device.require("l2_bytes"),
        "regs_per_multiprocessor": device.require("registers_per_sm"),
        "max_threads_per_multi_processor": device.require("threads_per_sm"),
        "shared_memory_per_block_optin": per_block,
        "shared_memory_per_multiprocessor": device.shared_memory_per_sm_bytes or per_block,
    }


def is_known(torch_version: str) -> bool:
    """Whether the worker was tested against this release of torch."""
    return ".".join(torch_version.split(".")[:2]) in KNOWN_VERSIONS


def _doubt(torch_version: str) -> str:
    if is_known(torch_version):
        return ""
    known = ", ".join(KNOWN_VERSIONS)
    return f"; torch {torch_version} is untested here, known to work: {known}"


def _refusal(device: Device) -> str | None:
    if device.arch.startswith("sm_"):
        return None
    return f"device {device.name} ({device.arch}) is no CUDA target; name an NVIDIA GPU"


def _none(status: Any, torch_version: str, reason: str) -> PeerPlan:
    return PeerPlan(name=NAME, version=torch_version, status=status, reason=reason)


def _installed(package: str, extra: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise MissingExtra(extra, package) from None


def _kernel(entry: Json) -> PeerKernel:
    return PeerKernel(
        name=entry["name"], kind=entry["kind"], aten=tuple(entry["aten"]),
        origins=tuple(entry["origins"]), reads=entry["reads"], writes=entry["writes"],
        source=entry["source"],
    )  # fmt: skip
