"""Kernels whose accounts the user declared: chain stages and decision options.

A declared op has no loop nest. Its tensors give the traffic; its attributes give the rest:

| attribute | what it declares |
|---|---|
| `flops` | FLOPs of matrix units; the ops of a kernel add up |
| `registers` | registers a thread keeps live; the ops of a kernel add up |
| `spill_penalty` | memory time × this where the registers exceed what a thread can have |
| `launches` | kernels that the option launches; 1 |
| `grid`, `grid_words` | blocks, and how they come about |
| `on_chip_bytes`, `on_chip_words`, `budget_bytes` | held by a block, and the room for it |
"""

from __future__ import annotations

from typing import Any

from fuseledger.devices import Device
from fuseledger.ledger.account import Account, format_kib
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.price import Price


def declared_price(nest: Nest) -> Price:
    """Traffic from the tensors, everything else from the declarations."""
    tensors = nest.graph.tensors
    price = Price(
        tiles={},
        walks=1,
        blocks=int(_greatest(nest, "grid")),
        read_bytes=sum(tensors[name].bytes for name in nest.external),
        write_bytes=sum(tensors[name].bytes for name in nest.outputs),
    )
    price.registers = int(sum(op.attributes.get("registers", 0) for op in nest.ops.values()))
    price.flops = {
        "lanes:fp16": sum(float(op.attributes.get("flops", 0)) for op in nest.ops.values())
    }
    price.launches = max(1, int(_greatest(nest, "launches")))
    price.shared_bytes = int(_greatest(nest, "on_chip_bytes"))
    return price


def declared_accounts(nest: Nest, price: Price, device: Device) -> dict[str, Account]:
    """Launches, capacity and parallelism of a kernel whose grid was declared; else none."""
    if not price.blocks:
        return {}
    room = int(_greatest(nest, "budget_bytes")) or device.shared_memory_per_block_bytes
    held, sms = price.shared_bytes, device.sm_count
    too_much = (
        None
        if room is None or held <= room
        else (f"{format_kib(held)} do not fit {format_kib(room)}")
    )
    short = (
        None if sms is None or price.blocks >= sms else f"a grid of {price.blocks:,} on {sms:,} SMs"
    )
    cost = device.launch_us("queued")
    return {
        "launches": Account(
            value=price.launches,
            unit="launches",
            derivation=f"{price.launches} × {cost:g} µs queued",
            provenance="declared",
        ),
        "capacity": Account(
            value=held,
            unit="bytes on chip per block",
            derivation=_words(nest, "on_chip_words") or "as declared",
            provenance="declared",
            limit=room,
            veto=too_much,
        ),
        "parallelism": Account(
            value=price.blocks,
            unit="blocks",
            derivation=_words(nest, "grid_words") or "as declared",
            provenance="declared",
            limit=sms,
            veto=short,
        ),
    }


def _declarations(nest: Nest, key: str) -> list[Any]:
    return [op.attributes[key] for op in nest.ops.values() if op.attributes.get(key)]


def _greatest(nest: Nest, key: str) -> float:
    return max(_declarations(nest, key), default=0)


def _words(nest: Nest, key: str) -> str:
    return "; ".join(_declarations(nest, key))
