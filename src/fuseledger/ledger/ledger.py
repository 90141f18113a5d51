"""The ledger: the six accounts of every kernel of a plan, in figures and words, and totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.ledger.account import (
    Account,
    Provenance,
    format_bytes,
    format_flops,
    format_kib,
)
from fuseledger.ledger.compiled import Figures, with_compiled
from fuseledger.ledger.declared import declared_accounts
from fuseledger.ledger.kernel import MERGES, Kernel
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.price import WARP_THREADS, Price, external_bytes, is_small

if TYPE_CHECKING:
    from fuseledger.clock.time import Time


NOT_KNOWN = "not known of an op of unknown kind"


class KernelLedger(Struct, frozen=True, kw_only=True):
    """One kernel's accounts and time."""

    name: str
    kernel: Kernel
    ops: tuple[str, ...]
    """Op names, in order."""
    label: str
    """What it is, in the ops' own words: `gemm+bias+gelu`."""
    accounts: dict[str, Account]
    time: Time
    price: Price
    reads: tuple[tuple[str, int], ...] = ()
    """(tensor, bytes) of what it reads."""
    writes: tuple[tuple[str, int], ...] = ()
    """(tensor, bytes) of what it writes."""

    @property
    def bytes(self) -> int:
        """DRAM bytes."""
        return self.price.dram_bytes

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return self.price.launches

    @property
    def vetoes(self) -> tuple[tuple[str, str], ...]:
        """(account, reason) of each account that says no."""
        return tuple((name, a.veto) for name, a in self.accounts.items() if a.veto)


class Totals(Struct, frozen=True, kw_only=True):
    """Sums over a plan's kernels."""

    kernels: int
    bytes: int
    launches: int
    time_us: float

    @staticmethod
    def of(ledgers: tuple[KernelLedger, ...]) -> Totals:
        """Totals of some kernels run one after the other."""
        return Totals(
            kernels=len(ledgers),
            bytes=sum(k.bytes for k in ledgers),
            launches=sum(k.launches for k in ledgers),
            time_us=sum(k.time.total_us for k in ledgers),
        )


def kernel_ledger(
    graph: Graph, kernel: Kernel, nest: Nest, price: Price, time: Time, device: Device, name: str
) -> KernelLedger:
    """The accounts of one priced kernel."""
    ops = [graph.ops[i] for i in kernel.ops]
    vetoes = dict(reversed(price.vetoes))
    reads = tuple((name, count) for name, count in external_bytes(nest, device).items() if count)
    writes = tuple((name, graph.tensors[name].bytes) for name in nest.outputs)
    accounts = {
        "traffic": Account(
            value=price.dram_bytes,
            unit="bytes",
            derivation=traffic_words(reads, writes, price),
            provenance=_provenance(nest),
        ),
        "launches": _launches(price, device),
        "registers": _registers(nest, price, device),
        "capacity": _capacity(nest, price, device, vetoes),
        "parallelism": _parallelism(nest, price, device, vetoes),
        "epilogue": _epilogue(price, vetoes),
    }
    if nest.is_declared:
        accounts |= declared_accounts(nest, price, device)
    if price.modelled is not None:
        found = Figures(
            registers=price.registers,
            spill_bytes=price.spill_bytes,
            shared_bytes=price.shared_bytes,
        )
        accounts = with_compiled(accounts, found)
    return KernelLedger(
        name=name,
        kernel=kernel,
        ops=tuple(op.name for op in ops),
        label=label_of(graph, kernel.ops),
        accounts=accounts,
        time=time,
        price=price,
        reads=reads,
        writes=writes,
    )


def label_of(graph: Graph, positions: tuple[int, ...]) -> str:
    """The ops in their own words, composites by their name, repeats counted."""
    words: list[str] = []
    inside, seen = frozenset(positions), set[int]()
    for i in positions:
        if i in seen:
            continue
        op = graph.ops[i]
        whole = _composite(graph, i) if op.label else frozenset((i,))
        if whole <= inside:
            words.append(op.label or op.title)
        else:
            words.append(op.title if len(whole & inside) == 1 else f"part of {op.label}")
        seen |= whole
    merged: list[tuple[str, int]] = []
    for word in words:
        if merged and merged[-1][0] == word:
            merged[-1] = (word, merged[-1][1] + 1)
        else:
            merged.append((word, 1))
    return "+".join(word if count == 1 else f"{count}·{word}" for word, count in merged)


def _composite(graph: Graph, position: int) -> frozenset[int]:
    """The ops of an op's composite: those of its label that hang together."""
    found, label, left = {position}, graph.ops[position].label, [position]
    while left:
        i = left.pop()
        for j in (*graph.predecessors[i], *graph.successors[i]):
            if j not in found and graph.ops[j].label == label:
                found.add(j)
                left.append(j)
    return frozenset(found)


def traffic_words(
    reads: Sequence[tuple[str, int]], writes: Sequence[tuple[str, int]], price: Price
) -> str:
    """What a kernel reads and writes, in words."""
    read, write = (
        " + ".join(f"{name} {format_bytes(count)}" for name, count in each) or "nothing"
        for each in (reads, writes)
    )
    words = f"read {read}, write {write}"
    if price.walks > 1:
        words += f"; carried tensors are walked {price.walks} times"
    if price.partial_bytes:
        words += f"; partials {format_bytes(price.partial_bytes)}"
    return words


def _provenance(nest: Nest) -> Provenance:
    return "declared" if nest.is_declared else "modelled"


def _launches(price: Price, device: Device) -> Account:
    cost = device.launch_us("queued")
    words = f"{price.launches} × {cost:g} µs queued"
    if price.launches > 1:
        words = f"kernel and combine, {words}"
    return Account(value=price.launches, unit="launches", derivation=words)


def _registers(nest: Nest, price: Price, device: Device) -> Account:
    model = price.modelled or Figures(
        registers=price.registers, spill_bytes=price.spill_bytes, shared_bytes=price.shared_bytes
    )
    if nest.is_opaque:
        return Account(
            value=0, unit="registers per thread", derivation=NOT_KNOWN,
            limit=device.registers_per_thread_max,
        )  # fmt: skip
    if nest.is_declared:
        live = [f"{op.name} {op.attributes.get('registers', 0)}" for op in nest.ops.values()]
        words = f"live while fused: {' + '.join(live)}"
    else:
        words = f"{format_kib(price.register_bytes)} held over {price.warps * WARP_THREADS} threads"
        words += ", values in flight and addresses, as Triton compiles them"
    if model.spill_bytes:
        words += f"; {model.spill_bytes:,} B a thread spill"
    return Account(
        value=model.registers,
        unit="registers per thread",
        derivation=words,
        provenance=_provenance(nest),
        limit=device.registers_per_thread_max,
    )


def _capacity(nest: Nest, price: Price, device: Device, vetoes: dict[str, str]) -> Account:
    return Account(
        value=price.modelled.shared_bytes if price.modelled else price.shared_bytes,
        unit="bytes of shared memory per block",
        derivation=NOT_KNOWN if nest.is_opaque else capacity_words(price),
        limit=device.shared_memory_per_block_bytes,
        veto=vetoes.get("capacity"),
    )


def capacity_words(price: Price) -> str:
    """What a block holds, in words."""
    parts: list[str] = []
    if price.staged is not None:
        parts.append(price.staged.words(price.pipeline.stages))
    held = sorted(price.held, key=lambda item: -item.register_bytes)
    parts += [
        f"{item.name} {item.words} in {item.holder}" for item in held if item.register_bytes >= 1024
    ]
    return "; ".join(parts) or "nothing is held beyond registers"


def _parallelism(nest: Nest, price: Price, device: Device, vetoes: dict[str, str]) -> Account:
    if nest.is_declared:
        return Account(
            value=0, unit="blocks", derivation="no grid is declared", provenance="declared"
        )
    if nest.is_opaque:
        return Account(
            value=0, unit="blocks", limit=device.sm_count,
            derivation=f"{NOT_KNOWN}: priced as if its grid covered the SMs",
        )  # fmt: skip
    factors = [
        f"⌈{nest.sizes[name]}/{tile}⌉"
        for name, tile in price.tiles.items()
        if -(-nest.sizes[name] // tile) > 1
    ]
    words = f"{'·'.join(factors) or '1'} blocks"
    sms = device.sm_count
    if sms:
        waves = price.blocks / (sms * price.blocks_per_sm)
        words += f" on {sms} SMs × {price.blocks_per_sm} = {waves:.2f} waves"
        if is_small(price.dram_bytes, device) and price.blocks < sms:
            words += "; the kernel is too small to fill any machine"
        elif price.blocks < sms and "parallelism" not in vetoes:
            words += "; short of the SMs: priced by the clock"
    return Account(
        value=price.blocks,
        unit="blocks",
        derivation=words,
        limit=sms,
        veto=vetoes.get("parallelism"),
    )


def _epilogue(price: Price, vetoes: dict[str, str]) -> Account:
    parts: list[str] = []
    if price.partial_bytes:
        words = f"{price.parts} partials: {format_bytes(price.partial_bytes)}"
        parts.append(f"{words}, {MERGES[price.merge]}" if price.merge else words)
    if price.rescale_flops:
        parts.append(f"online: {format_flops(price.rescale_flops)} rescale what was summed so far")
    if price.extra_flops:
        share = price.extra_flops / max(1.0, price.work_once)
        parts.append(f"{format_flops(price.extra_flops)} computed again ({share:,.1%})")
    return Account(
        value=price.partial_bytes,
        unit="bytes",
        derivation="; ".join(parts) or "no new work",
        veto=vetoes.get("epilogue"),
    )
