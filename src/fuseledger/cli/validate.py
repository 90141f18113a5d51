"""`fuseledger validate`: predictions against measured times."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("validate")
@click.argument("corpus", metavar="CORPUS", type=click.Path(path_type=Path))
@click.option("--format", "format_", type=click.Choice(["text", "json", "md"]), default="text",
              show_default=True, help="Form of the report.")  # fmt: skip
@click.option("-o", "output", metavar="FILE", help="Write the report to a file.")
@click.option("--all", "everything", is_flag=True, help="Every device with every class.")
@click.option("--write-fit", metavar="FILE", type=click.Path(path_type=Path),
              help="Write the coefficients fitted on all rows.")  # fmt: skip
@click.option("--plots", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
              help="Write times.svg and calibration.svg there (extra `report`).")  # fmt: skip
def command(
    corpus: Path, format_: str, output: str | None, everything: bool, write_fit: Path | None,
    plots: Path | None,
) -> None:  # fmt: skip
    """Predictions against measured times, out of fold.

    CORPUS is a folder of KernelBench graphs and times.csv, a checkout of KernelBench (whose Python
    files are then run, on tensors without data), a .jsonl of decisions, or a CSV with columns
    source, device, time_us.
    """
    from fuseledger.cli.options import deliver
    from fuseledger.cli.terminal import page
    from fuseledger.report.validation import (
        validation_json,
        validation_markdown,
        validation_text,
    )
    from fuseledger.validate.run import validate

    result = validate(corpus)
    if write_fit is not None and result.fit is not None:
        import msgspec

        packed = msgspec.json.format(msgspec.json.encode(result.fit), indent=1).decode()
        deliver(packed + "\n", str(write_fit))
    if plots is not None:
        from fuseledger.report.validation_plots import validation_plots

        drawn = validation_plots(result)
        plots.mkdir(parents=True, exist_ok=True)
        for name, svg in drawn.items():
            deliver(svg, str(plots / name))
    if format_ == "json":
        text = validation_json(result)
    elif format_ == "md":
        text = validation_markdown(result, everything=everything)
    else:
        sheet = page(output)
        validation_text(result, sheet, everything=everything)
        text = sheet.text()
    deliver(text, output)
