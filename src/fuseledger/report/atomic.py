"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from fuseledger.errors import OutputError


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text beside the file and rename it into place; a link keeps pointing to it.

    A device or pipe that exists already (`/dev/stdout`) is written to directly. Raises
    OutputError, naming the file, where that cannot be done.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            target.write_text(text, encoding="utf-8")
            return
        _replace(target, text, mode)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {_reason(target, error)}") from error


def _mode(target: Path) -> int | None:
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(target: Path, text: str, mode: int | None) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(target: Path, error: OSError) -> str:
    if not target.parent.exists():
        return f"no folder {target.parent}"
    return (error.strerror or str(error)).lower()
