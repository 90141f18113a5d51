"""A CUDA device for TorchInductor where there is none: stand-ins for what it asks of the hardware.

Everything here replaces attributes of torch and Triton in the running process, for good. It is
imported by `inductor_worker`, which runs in a process of its own, and by nothing else.
"""

# torch and Triton are untyped here, and what is replaced is mostly private:
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from msgspec import Struct


class DeviceProperties(Struct, frozen=True, kw_only=True):
    """What `torch.cuda.get_device_properties` gives, by its names."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    regs_per_multiprocessor: int
    max_threads_per_multi_processor: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block: int = 49152
    """The limit that every CUDA device keeps for a block that does not opt in."""
    max_threads_per_block: int = 1024
    warp_size: int = 32
    clock_rate: int = 0
    """In kHz."""
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    is_integrated: int = 0
    gcnArchName: str = ""  # noqa: N815  the name that torch gives it
    type: str = "cuda"


class Driver:
    """Stands for Triton's active driver: it says what the target is, and can run nothing."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        """The compiler's target."""
        compiler: Any = importlib.import_module("triton.backends.compiler")
        return compiler.GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def get_active_torch_device(self) -> Any:
        """The same device as torch names it."""
        torch: Any = importlib.import_module("torch")
        return torch.device("cuda", 0)


def install(properties: DeviceProperties) -> None:
    """Make torch and Triton of this process believe in one CUDA device of these properties."""
    torch: Any = importlib.import_module("torch")
    cuda: Any = importlib.import_module("torch.cuda")
    state = torch.zeros(16, dtype=torch.uint8)
    replaced: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_name": lambda device=None: properties.name,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "synchronize": lambda device=None: None,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "get_rng_state": lambda device=None: state,
        "set_rng_state": lambda state, device=None: None,
    }
    interfaces: Any = importlib.import_module("torch._dynamo.device_interface")
    copies = (interfaces.CudaInterface, interfaces.CudaInterface.Worker)
    for name, function in replaced.items():
        setattr(cuda, name, function)
        for interface in copies:  # it may have taken the originals already
            if hasattr(interface, name):
                setattr(interface, name, staticmethod(function))
    torch.version.cuda = "12.8"
    driver: Any = importlib.import_module("triton.runtime.driver")
    driver.driver.set_active(Driver(10 * properties.major + properties.minor))
    _run_without_guards(torch)


def _run_without_guards(torch: Any) -> None:
    """Let fake tensors take the roads that torch keeps for machines without CUDA.

    `torch.tensor` then builds on the CPU and is moved as a fake. The method `copy_` and the
    random calls of some patterns' examples ask for a device guard that a CPU build has not: the
    first goes through its operator, the examples are made on the CPU (patterns match any device).
    """
    fakes: Any = importlib.import_module("torch._subclasses.fake_tensor")

    def copy_(self: Any, source: Any, non_blocking: bool = False) -> Any:
        return torch.ops.aten.copy_.default(self, source, non_blocking)

    fakes.FakeTensorMode.avoid_device_init = True
    torch.Tensor.copy_ = copy_
    torch.Tensor.__getitem__ = _indexing(torch)
    patterns: Any = importlib.import_module("torch._inductor.fx_passes.misc_patterns")
    register = patterns._misc_patterns_init
    patterns._misc_patterns_init = lambda device=None: register(torch.device("cpu"))
    folding: Any = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    folder = folding.UniformValueConstantFolder
    folder._deduce_value = _deducing(torch, folder._deduce_value)
    torch._C._conv_determine_backend_memory_format = _convolution_layout


def _convolution_layout(x: Any, weight: Any, backend: Any) -> Any:
    """The layout of a convolution's result with cuDNN, which a CPU build cannot be asked.

    Channels last where the input or the weight is, else row-major:
    `cudnn_conv_suggest_memory_format` of `aten/src/ATen/native/ConvUtils.h`, release 2.13.
    Depthwise convolutions run in cuDNN there too.
    """
    torch: Any = importlib.import_module("torch")
    format_of = torch._prims_common.suggest_memory_format
    formats = {format_of(x), format_of(weight)}
    doubles = torch.float64 in (x.dtype, weight.dtype)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.ndim)
    return last if last in formats and not doubles else torch.contiguous_format


def _indexing(torch: Any) -> Callable[[Any, Any], Any]:
    """`tensor[i]` through the operator: the method asks for a device guard too."""
    get = torch.Tensor.__getitem__

    def getitem(tensor: Any, index: Any) -> Any:
        if type(index) is int and tensor.device.type == "cuda":
            return torch.ops.aten.select.int(tensor, 0, index)
        return get(tensor, index)

    return getitem


def _deducing(torch: Any, deduce: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The folding of uniform constants, which makes one real element of each, on the CPU."""
    device = torch.device("cpu")

    def on_cpu(folder: Any, node: Any) -> Any:
        given = node.kwargs
        if given.get("device") is None:
            return deduce(folder, node)
        node.kwargs = {**given, "device": device}
        try:
            return deduce(folder, node)
        finally:
            node.kwargs = given

    return on_cpu
