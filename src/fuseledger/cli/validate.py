"""`fuseledger validate`: predictions against measured times."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Literal

import click

from fuseledger.cli.options import deliver, format_option, output_option, quiet_option
from fuseledger.errors import InputError


@click.command("validate")
@click.argument("corpus", metavar="CORPUS", type=click.Path(path_type=Path))
@format_option()
@output_option
@quiet_option
@click.option("--all", "everything", is_flag=True, help="Every device with every class.")
@click.option("--write-fit", metavar="FILE", type=click.Path(path_type=Path),
              help="Write the coefficients fitted on all rows.")  # fmt: skip
@click.option("--plans", type=click.Choice(["standin", "inductor"]), default="standin",
              show_default=True,
              help="Whose plan the compiled modes of KernelBench run.")  # fmt: skip
@click.option("--plots", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
              help="Write times.svg and calibration.svg there (extra `report`).")  # fmt: skip
def command(
    corpus: Path, format_: str, output: str | None, quiet: bool, everything: bool,
    write_fit: Path | None, plans: Literal["standin", "inductor"], plots: Path | None,
) -> None:  # fmt: skip
    """Predictions against measured times, out of fold.

    CORPUS is a folder of KernelBench graphs and times.csv, a checkout of KernelBench (whose Python
    files are then run, on tensors without data), a .jsonl of decisions, or a CSV with columns
    source, device, time_us.
    """
    from fuseledger.cli.progress import Progress
    from fuseledger.cli.terminal import page
    from fuseledger.report.validation import (
        validation_json,
        validation_markdown,
        validation_text,
    )
    from fuseledger.validate.run import validate

    with Progress(quiet=quiet) as progress:
        progress.step(f"pricing the rows of {corpus.name}")
        with redirect_stdout(sys.stderr):  # what a checkout's files print is no part of the report
            result = validate(corpus, plans=plans)
    if write_fit is not None:
        import msgspec

        if result.fit is None:
            raise InputError(f"--write-fit: nothing is fitted on {corpus}: {result.protocol}")
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
