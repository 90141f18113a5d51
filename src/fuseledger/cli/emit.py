"""`fuseledger emit`: the planned kernels as a folder of Triton code."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from fuseledger.cli.options import SOURCE_HELP, PlanRequest, plan_options, writable
from fuseledger.cli.planned import plan_kernels
from fuseledger.errors import OutputError


@click.command("emit", epilog=SOURCE_HELP)
@partial(plan_options, forms=())
@click.option("-o", "--output", metavar="DIR", type=click.Path(), callback=writable,
              help="The folder to write: a new one, or one that emit wrote.")  # fmt: skip
def command(output: str | None, **given: Any) -> None:
    """Write the planned kernels as Triton code into the folder named by -o.

    The folder gets kernels.py, launcher.py, test_kernels.py and ledger.json. A kernel that cannot
    be emitted is listed with its reason, and no file holds a guess of it.
    """
    if output is None:
        raise click.UsageError("name the folder to write: -o DIR")
    from fuseledger.cli.progress import Progress
    from fuseledger.report.build import plan_document
    from fuseledger.report.document import to_json
    from fuseledger.triton.emit import EmitOptions
    from fuseledger.triton.package import emit_plan, package_files

    request = PlanRequest(**given)
    folder = Path(output)
    _refuse_foreign(folder)
    with Progress(quiet=request.quiet) as progress:
        progress.step("planning")
        planned = plan_kernels(request)
        progress.step("writing code")
        emissions = emit_plan(
            planned.graph, planned.kernels, planned.device, EmitOptions(tf32=request.tf32)
        )
        document = plan_document(planned, source=request.source, load_seconds=0.0, verdicts=())
        files = package_files(
            planned.graph, emissions, source=request.source, dtype=request.dtype,
            dims=request.dim, ledger_json=to_json(document),
        )  # fmt: skip
        write_folder(folder, files)
    written = sum(each.kernel is not None for each in emissions)
    click.echo(f"{output}: {written} of {len(emissions)} kernels")
    for each in emissions:
        if each.kernel is None:
            click.echo(
                f"  {each.ledger.name} {each.ledger.label} cannot be emitted: {each.missing}"
            )


OURS = frozenset({"kernels.py", "launcher.py", "test_kernels.py", "ledger.json"})


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"{folder}: is no folder")
    found = {path.name for path in folder.iterdir()} - {"__pycache__", ".pytest_cache"}
    if found - OURS:
        other = sorted(found - OURS)[0]
        raise OutputError(f"{folder}: holds {other}, which emit did not write; name a new folder")


def write_folder(folder: Path, files: dict[str, str]) -> None:
    """Write a folder whole or not at all; one that exists is replaced.

    Raises OutputError, naming the folder, where that cannot be done.
    """
    target = Path(os.path.realpath(folder))
    try:
        place = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for name, text in files.items():
                (place / name).write_text(text, encoding="utf-8")
            place.chmod(0o755)
            if target.exists():
                old = place.with_name(f"{place.name}.old")
                target.rename(old)
                place.rename(target)
                shutil.rmtree(old, ignore_errors=True)
            else:
                place.rename(target)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise OutputError(f"{folder}: cannot be written: {words}") from error
