"""`fuseledger devices`: the GPUs in the catalog, and every figure with its source."""

from __future__ import annotations

from typing import Any

import click

from fuseledger.cli.options import deliver, format_option, output_option

_form = format_option(("text", "json"))


@click.group("devices", invoke_without_command=True)
@_form
@output_option
@click.pass_context
def command(context: click.Context, format_: str, output: str | None) -> None:
    """The GPUs in the catalog, and every figure with its source."""
    if context.invoked_subcommand is not None:
        return
    from fuseledger.cli.terminal import page
    from fuseledger.devices import load, names
    from fuseledger.report.devices import devices_json, devices_table

    devices = [load(name) for name in names()]
    if format_ == "json":
        deliver(devices_json(devices), output)
        return
    sheet = page(output)
    devices_table(sheet, devices)
    deliver(sheet.text(), output)


@command.command("show")
@click.argument("name", metavar="NAME|FILE.toml")
@_form
@output_option
@click.pass_context
def show(context: click.Context, name: str, format_: str, output: str | None) -> None:
    """Every figure of one GPU, with its source."""
    from fuseledger.cli.terminal import page
    from fuseledger.devices import load
    from fuseledger.report.devices import device_json, device_table

    device = load(name)
    outer: dict[str, Any] = context.parent.params if context.parent else {}
    output = output or outer.get("output")
    if "json" in (format_, outer.get("format_")):
        deliver(device_json(device), output)
        return
    sheet = page(output)
    device_table(sheet, device)
    deliver(sheet.text(), output)
