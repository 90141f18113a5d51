"""TorchInductor's plan for a CUDA device, asked for in a process of its own; no GPU is needed.

The worker replaces parts of torch for good, so nothing of it may run in the caller's process. A
failure of any kind is a plan without kernels that says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from fuseledger.devices import Device
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.process import Worker, installed, no_cuda, plan_of, untested

NAME = "inductor"
KNOWN_VERSIONS = ("2.13", "2.14")
"""Releases of torch whose internals the worker was tested against."""
TIME_LIMIT_S = 120.0
TEMPLATES_NAME = "inductor-templates"
LIBRARY_ONLY = "max-autotune templates, whose choice among themselves is timed on the GPU"
UNTIMED = "timing of templates: the first Triton tiling is taken wherever there is one"
LEFT_OUT = (
    "shape padding of GEMMs (pad_mm), which times both forms on the GPU",
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
    templates: bool = False,
    launches: bool = False,
    worker: Worker | None = None,
) -> PeerPlan:
    """TorchInductor's plan of a SOURCE for a device, kernels in launch order.

    `dtype` and `dims` are those of `frontends.source.load`. By default products are library calls;
    with `templates` they are Triton templates into which their neighbours may be fused. With
    `launches` its generated kernels say how they are launched, for compiling them. A `worker`
    answers several sources for one device. Raises MissingExtra where torch or Triton is not
    installed.
    """
    torch_version = installed("torch", "torch")
    installed("triton", "triton")
    plan = PeerPlan(
        name=TEMPLATES_NAME if templates else NAME, version=torch_version, status="unavailable",
        reason=no_cuda(device),
    )  # fmt: skip
    if plan.reason is not None:
        return plan
    spec: Json = {
        "source": source, "dtype": dtype, "dims": dict(dims or {}),
        "device": device_properties(device), "templates": templates, "launches": launches,
    }  # fmt: skip
    with nullcontext(worker) if worker else inductor_worker() as asked:
        answer = asked.ask(spec, time_limit_s)
    left_out = (UNTIMED if templates else LIBRARY_ONLY, *LEFT_OUT)
    return plan_of(answer, plan, left_out, untested("torch", torch_version, KNOWN_VERSIONS))


def inductor_worker() -> Worker:
    """A process that answers for TorchInductor."""
    return Worker("fuseledger.peers.inductor_worker")


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
