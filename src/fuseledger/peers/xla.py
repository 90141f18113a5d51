"""XLA's plan for a CUDA device, compiled ahead of time in a process of its own; no GPU is needed.

Our graph is given to JAX as a JAX user would have written it. A failure of any kind is a plan
without kernels that says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from fuseledger.devices import Device
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.process import Worker, installed, no_cuda, plan_of, untested
from fuseledger.peers.xla_target import target_config

NAME = "xla"
KNOWN_VERSIONS = ("0.10",)
"""Releases of jax whose internals the worker was tested against."""
PACKAGES = ("jax", "jaxlib", "jax-cuda13-pjrt", "jax-cuda13-plugin", "protobuf")
TIME_LIMIT_S = 120.0
LEFT_OUT = (
    "autotuning, which times cuBLAS and cuDNN against Triton, and tilings, on the GPU: products "
    "are Triton fusions of a default tiling wherever XLA can make them so",
    "what runs inside a library call or a thunk (workspaces, memsets before atomic sums)",
)
"""Parts of XLA's pipeline that need a GPU, or that the optimised HLO does not show."""
ENVIRONMENT = {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "JAX_PLATFORMS": "",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""No driver is looked for, and nothing is timed."""

Json = dict[str, Any]


def xla_plan(
    source: str,
    device: Device,
    *,
    dtype: str = "fp16",
    dims: Mapping[str, int] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    worker: Worker | None = None,
) -> PeerPlan:
    """XLA's plan of a SOURCE for a device, kernels in launch order.

    `dtype` and `dims` are those of `frontends.source.load`. A `worker` answers several sources.
    Raises MissingExtra where JAX or its CUDA plugin is not installed.
    """
    versions = {package: installed(package, "xla") for package in PACKAGES}
    plan = PeerPlan(
        name=NAME, version=versions["jax"], status="unavailable", reason=no_cuda(device),
        origins_are="ops",
    )  # fmt: skip
    if plan.reason is not None:
        return plan
    spec: Json = {
        "source": source, "dtype": dtype, "dims": dict(dims or {}),
        "target": target_config(device),
    }  # fmt: skip
    with nullcontext(worker) if worker else xla_worker() as asked:
        answer = asked.ask(spec, time_limit_s)
    return plan_of(answer, plan, LEFT_OUT, untested("jax", versions["jax"], KNOWN_VERSIONS))


def xla_worker() -> Worker:
    """A process that answers for XLA."""
    return Worker("fuseledger.peers.xla_worker", ENVIRONMENT)
