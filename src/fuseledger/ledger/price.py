"""What one kernel costs under one schedule, in plain numbers."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from msgspec import Struct, field

from fuseledger.devices import Device
from fuseledger.graph.op import Access, Op
from fuseledger.graph.reach import reach, touched_elements
from fuseledger.graph.tensor import Tensor, dtype_bytes
from fuseledger.ledger.kernel import SHALLOW, Merge, Pipeline
from fuseledger.ledger.library_calls import NO_PRODUCT, Calls
from fuseledger.ledger.nest import Nest

if TYPE_CHECKING:
    from fuseledger.ledger.compiled import Figures
    from fuseledger.ledger.staging import Staged

WARP_THREADS = 32
SECTOR_BYTES = 32
"""A DRAM sector, where the device does not state it."""


class Held(Struct, kw_only=True):
    """Something that a block holds at once."""

    name: str
    register_bytes: int
    shared_bytes: int | None
    """Bytes where it is kept in shared memory; None: an accumulator, registers only."""
    extents: tuple[tuple[str, int], ...]
    """(axis, elements held along it); `loop` for the points of in-block loops."""
    holder: str = "registers"

    @property
    def words(self) -> str:
        """The product in words: `1024·32·4 B`."""
        elements = prod(extent for _, extent in self.extents)
        factors = [str(extent) for _, extent in self.extents if extent > 1]
        return "·".join([*factors, f"{self.bytes / max(elements, 1):g} B"])

    @property
    def bytes(self) -> int:
        """Bytes that have to find room: as stored where shared memory may hold it."""
        return self.register_bytes if self.shared_bytes is None else self.shared_bytes


class Padding(Struct, frozen=True):
    """Matrix work of the tiles of a kernel's products, over that of the elements they hold."""

    generated: float
    """Sides are powers of two."""
    library: float
    """Sides are multiples of a matrix unit's; infinite for tiles larger than libraries have."""


NOT_PADDED = Padding(1.0, 1.0)


class Price(Struct, kw_only=True):
    """Bytes, work, footprint and grid of a kernel under one choice of tiles."""

    tiles: dict[str, int]
    """Tile of each open axis."""
    walks: int
    """Times that carried tensors are walked; 1 where they are owned."""
    blocks: int
    read_bytes: int
    """Every external tensor once per walk."""
    rewalked_bytes: int = 0
    """Of the reads, those of walks after the first."""
    rewalked_per_block: float = 0.0
    """Bytes that a block reads again in each of them."""
    write_bytes: int
    partial_bytes: int = 0
    """Bytes beyond the results themselves that partial results write and read."""
    parts: int = 1
    merge: Merge | None = None
    """Who merges the parts; None where there is one."""
    merging_blocks: int = 0
    """Blocks that merge parts where the last of a tile's does: one a tile."""
    l2_bytes: int = 0
    """Bytes that the tiling makes blocks load, re-reads included, and what they store."""
    flops: dict[str, float] = field(default_factory=dict[str, float])
    """Pipe key (`matrix:fp16`, `lanes:fp32`) → floating-point operations, recompute included."""
    special_ops: float = 0.0
    extra_flops: float = 0.0
    """Of the above, computed more than once."""
    rescale_flops: float = 0.0
    """Of the above, spent on rescaling the sums of an online tensor."""
    padding: Padding = NOT_PADDED
    held: list[Held] = field(default_factory=list[Held])
    staged: Staged | None = None
    """Operands of products in shared memory."""
    shared_bytes: int = 0
    register_bytes: int = 0
    pipeline: Pipeline = SHALLOW
    warps: int = 4
    registers: int = 32
    """Per thread."""
    spill_bytes: int = 0
    """Per thread."""
    launches: int = 1
    blocks_per_sm: int = 1
    calls: Calls = NO_PRODUCT
    """Class of the kernel, and the library call that computes it where there is one."""
    modelled: Figures | None = None
    """Where registers and shared memory are compiled ones: what the model says of them."""
    vetoes: tuple[tuple[str, str], ...] = ()
    """(account, reason) where the schedule is not usable."""

    @property
    def dram_bytes(self) -> int:
        """Compulsory traffic of the kernel."""
        return self.read_bytes + self.write_bytes + self.partial_bytes

    @property
    def staged_bytes(self) -> int:
        """Shared memory of the operands of products, in all their buffers."""
        return self.staged.bytes(self.pipeline.stages) if self.staged is not None else 0

    @property
    def work_once(self) -> float:
        """FLOPs and special operations without what is computed again."""
        return sum(self.flops.values()) + self.special_ops - self.extra_flops


def is_small(moved: int, device: Device) -> bool:
    """R6: whether a kernel moves less than the device streams in the time of a launch, so that a
    short grid leaves no machine idle for long."""
    stream = device.stream_gbs
    return stream is None or moved <= device.launch_us("queued") * stream * 1e3


def is_short(price: Price, device: Device) -> bool:
    """R6: whether the grid leaves SMs without a block, of a kernel that is not small."""
    sms = device.sm_count
    return sms is not None and price.blocks < sms and not is_small(price.dram_bytes, device)


def sector_of(device: Device) -> int:
    """Bytes of the device's DRAM sector."""
    return device.sector_bytes or SECTOR_BYTES


def external_bytes(nest: Nest, device: Device) -> dict[str, int]:
    """Bytes of each external tensor that the nest touches: what is walked once, and what is looked
    up by value beside it, in whole sectors."""
    found: dict[str, int] = {}
    for name, reads in nest.external.items():
        tensor = nest.graph.tensors[name]
        walked = looked_up = 0
        for i, access in reads:
            if access.is_lookup:
                looked_up += _looked_up_bytes(tensor, access, nest.ops[i], sector_of(device))
            else:
                walked += touched_elements(tensor, access, nest.ops[i])
        found[name] = dtype_bytes(tensor.dtype, min(walked, tensor.elements))
        found[name] += min(looked_up, tensor.bytes)
    return found


def _looked_up_bytes(tensor: Tensor, access: Access, op: Op, sector_bytes: int) -> int:
    """Bytes of the places that a lookup touches: runs along the dimensions inside the last one that
    is looked up, each of them whole sectors."""
    run = 1
    for axis, index in zip(reversed(tensor.axes), reversed(access.index), strict=True):
        if index.lookup is not None:
            break
        run *= reach(index, op.sizes, axis.size)
    runs = -(-touched_elements(tensor, access, op) // max(1, run))
    sectors = -(-dtype_bytes(tensor.dtype, run) // sector_bytes)
    return runs * sectors * sector_bytes
