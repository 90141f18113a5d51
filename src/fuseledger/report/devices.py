"""The device catalog as a table, one device with its sources, and both as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fuseledger.report.figures import plural, three_digits
from fuseledger.report.layout import Column, Page, Row

if TYPE_CHECKING:
    from fuseledger.devices import Device

DEVICES_SCHEMA = "fuseledger/devices@1"
DEVICE_SCHEMA = "fuseledger/device@1"

_COLUMNS = (
    Column("name", style="bold"), Column("arch"), Column("SMs", "right"),
    Column("GHz", "right"), Column("fp16", "right"), Column("fp32", "right"),
    Column("DRAM GB/s", "right"), Column("measured", "right"), Column("L2 MB", "right"),
    Column("shared KB", "right"), Column("launch", "right"),
)  # fmt: skip
_FIGURES = (
    Column("figure", style="bold"), Column("value", "right"), Column("source", wraps=True),
)  # fmt: skip


def devices_table(page: Page, devices: Sequence[Device]) -> None:
    """One row a device."""
    page.table(_COLUMNS, [Row(_cells(device)) for device in devices])
    page.blank()
    page.line(
        "dense peaks in TFLOP/s; shared memory of one block; µs of a queued launch; "
        "`fuseledger devices show NAME` gives every figure with its source",
        "dim",
    )


def _cells(device: Device) -> tuple[str, ...]:
    half = device.peak_tflops("tensor_fp16") or device.peak_tflops("fma_fp16")
    clock, l2 = device.clock_mhz, device.l2_bytes
    shared = device.shared_memory_per_block_bytes
    queued = device.figure("launch_us.queued")
    return (
        device.name,
        device.arch,
        _number(device.sm_count),
        _number(clock / 1e3 if clock else None),
        _number(half),
        _number(device.peak_tflops("fma_fp32")),
        _number(device.dram_bandwidth_gbs),
        _number(device.dram_measured_gbs),
        _number(l2 / 2**20 if l2 else None),
        _number(shared / 1024 if shared else None),
        _number(queued.value if queued else None),
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else three_digits(value)


def device_table(page: Page, device: Device) -> None:
    """One row a figure: its value, its source, and the note that goes with it."""
    figures = device.figures.flat()
    page.line(
        f"{device.name}: {device.title}, {device.arch}, {plural(len(figures), 'figure')}", "bold"
    )
    page.blank()
    page.table(
        _FIGURES,
        [
            Row((name, f"{each.value:,}", "; ".join(filter(None, (each.source, each.note)))))
            for name, each in figures.items()
        ],
    )


def devices_json(devices: Sequence[Device]) -> str:
    """`fuseledger/devices@1`: every device with every figure."""
    return _json({"schema": DEVICES_SCHEMA, "devices": [_device(device) for device in devices]})


def device_json(device: Device) -> str:
    """`fuseledger/device@1`: one device with every figure."""
    return _json({"schema": DEVICE_SCHEMA, **_device(device)})


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name, "title": device.title, "vendor": device.vendor, "arch": device.arch,
        "figures": {
            name: {"value": figure.value, "source": figure.source, "note": figure.note or None}
            for name, figure in device.figures.flat().items()
        },
    }  # fmt: skip


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
