"""`fuseledger devices`: the GPUs in the catalog, and every figure with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fuseledger.devices import Device

FORMAT = click.option(
    "--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Form of the answer.",
)  # fmt: skip


@click.group("devices", invoke_without_command=True)
@FORMAT
@click.pass_context
def command(context: click.Context, format_: str) -> None:
    """The GPUs in the catalog, and every figure with its source."""
    if context.invoked_subcommand is not None:
        return
    from fuseledger.cli.terminal import page
    from fuseledger.devices import load, names
    from fuseledger.report.devices import devices_json, devices_table

    devices = [load(name) for name in names()]
    if format_ == "json":
        click.echo(devices_json(devices), nl=False)
        return
    sheet = page()
    devices_table(sheet, devices)
    click.echo(sheet.text(), nl=False)


@command.command("show")
@click.argument("name", metavar="NAME|FILE.toml")
@FORMAT
@click.pass_context
def show(context: click.Context, name: str, format_: str) -> None:
    """Every figure of one GPU, with its source."""
    from fuseledger.cli.terminal import page
    from fuseledger.devices import load
    from fuseledger.report.devices import device_json, device_table

    device: Device = load(name)
    outer: dict[str, Any] = context.parent.params if context.parent else {}
    if "json" in (format_, outer.get("format_")):
        click.echo(device_json(device), nl=False)
        return
    sheet = page()
    device_table(sheet, device)
    click.echo(sheet.text(), nl=False)
