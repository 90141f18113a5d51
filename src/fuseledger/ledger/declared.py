"""Kernels whose accounts the user declared: chain stages and decision options.

A declared op has no loop nest. Its tensors give the traffic; its attributes give FLOPs and the
registers it keeps live, which add up over the stages that share a kernel.
"""

from __future__ import annotations

from fuseledger.devices import Device
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.price import Price


def declared_price(nest: Nest) -> Price:
    """Traffic from the tensors, FLOPs and registers from the declarations."""
    tensors = nest.graph.tensors
    price = Price(
        tiles={}, walks=1, blocks=0,
        read_bytes=sum(tensors[name].bytes for name in nest.external),
        write_bytes=sum(tensors[name].bytes for name in nest.outputs),
    )  # fmt: skip
    price.registers = int(sum(op.attributes.get("registers", 0) for op in nest.ops.values()))
    price.flops = {"lanes:fp16": sum(float(op.attributes.get("flops", 0)) for op in nest.ops.values())}
    return price


def declared_time(nest: Nest, device: Device) -> float:
    """The textbook clock, in µs: max(bytes/bandwidth, FLOPs/peak) + launch.

    Memory time × `spill_penalty` (declared by the chain, 3 by default) where the registers of the
    kernel exceed what a thread can have.
    """
    price = declared_price(nest)
    limit = device.registers_per_thread_max
    penalty = next((op.attributes["spill_penalty"] for op in nest.ops.values() if "spill_penalty" in op.attributes), 3.0)
    memory_us = price.dram_bytes / device.require("stream_gbs") / 1e3
    if limit is not None and price.registers > limit:
        memory_us *= penalty
    peak = device.peak_for("fp16", matrix=True)
    compute_us = sum(price.flops.values()) / peak * 1e6
    return max(memory_us, compute_us) + device.launch_us("queued")
