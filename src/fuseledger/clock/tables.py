"""The fitted tables that the clocks ship with."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from fuseledger.errors import InputError

FITS = Path(__file__).parent / "fits"
Table = TypeVar("Table")


def read_table(path: Path, kind: type[Table], what: str) -> Table:
    """A table of one kind. Raises InputError naming the file and what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: not {what}: {error}") from None
