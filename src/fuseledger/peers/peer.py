"""What another system would launch for a graph: kernels, bytes, and why there are none."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

PeerStatus = Literal["planned", "failed", "timeout", "unavailable"]
CHANNELS_LAST = "channels last"
"""`config` of a library call whose result has the channels innermost."""


class TritonLaunch(Struct, frozen=True, kw_only=True):
    """What it takes to compile a generated Triton kernel."""

    code: str
    """Its function, and the imports that it needs besides Triton's."""
    signature: dict[str, str]
    """Parameter → Triton type, `constexpr` for constants."""
    constants: dict[str, int | float | bool | str | None]
    warps: int
    stages: int
    configurations: int
    """How many the compiler would choose from by timing; this is the first."""


class Resources(Struct, frozen=True, kw_only=True):
    """What a real compiler said of a generated kernel."""

    registers: int
    """Per thread."""
    spilled_bytes: int
    """Per thread."""
    shared_bytes: int
    """Per block."""


class PeerKernel(Struct, frozen=True, kw_only=True):
    """One kernel of a peer's plan."""

    name: str
    kind: str
    """`triton`, `extern`, `template`, `copy`; for eager PyTorch a library kernel's own kind, for
    XLA that of its fusion (`loop`, `input`, `custom`)."""
    aten: tuple[str, ...] = ()
    """ATen operators that it was made from."""
    origins: tuple[str, ...] = ()
    """Names of the source's nodes, or of our ops where the source has none."""
    reads: dict[str, int] = field(default_factory=dict[str, int])
    """Buffer → bytes read, each buffer once."""
    writes: dict[str, int] = field(default_factory=dict[str, int])
    """Buffer → bytes written, each buffer once."""
    launches: int = 1
    """Launches, where a library runs one step as several equal small kernels."""
    source: str | None = None
    """Generated Triton source."""
    launch: TritonLaunch | None = None
    """How a generated Triton kernel is launched, where that was asked for."""
    resources: Resources | None = None
    """Where its generated source was compiled."""
    config: str | None = None
    """How the compiler configured it: the library call, or fusion kind, tiles, warps, stages."""

    @property
    def bytes(self) -> int:
        """Bytes read and written, each buffer once each way."""
        return sum(self.reads.values()) + sum(self.writes.values())


class PeerPlan(Struct, frozen=True, kw_only=True):
    """A peer's plan, or the reason why there is none."""

    name: str
    version: str | None
    status: PeerStatus
    reason: str | None = None
    kernels: tuple[PeerKernel, ...] = ()
    seconds: float = 0.0
    left_out: tuple[str, ...] = ()
    """Parts of the peer's own pipeline that could not run here."""
    notes: tuple[str, ...] = ()
    origins_are: Literal["nodes", "ops"] = "nodes"
    """What its kernels' origins name: the source's nodes, or our ops."""

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        """Bytes read and written, each kernel's buffers once each."""
        return sum(kernel.bytes for kernel in self.kernels)
