"""Answers kept on the user's disk: safe for processes side by side, bounded, and dropped where
they cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from fuseledger.errors import MissingExtra

Answer = TypeVar("Answer")


def cache_folder(kind: str) -> Path:
    """The folder of one kind of answers in `$FUSELEDGER_CACHE`, else in the user's cache folder."""
    named = os.environ.get("FUSELEDGER_CACHE")
    if named:
        return Path(named) / kind
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fuseledger" / kind


@contextmanager
def opened(folder: Path | None, *, most_bytes: int) -> Generator[Any]:
    """The store in a folder; None where there is none. Raises MissingExtra without diskcache."""
    if folder is None:
        yield None
        return
    if find_spec("diskcache") is None:
        raise MissingExtra("triton", "diskcache")
    diskcache: Any = import_module("diskcache")
    with diskcache.Cache(str(folder), size_limit=most_bytes) as store:
        yield store


def recalled(store: Any, key: str, read: Callable[[Any], Answer]) -> Answer | None:
    """What `read` makes of a kept answer; one that cannot be read is dropped."""
    if store is None:
        return None
    try:
        kept = store.get(key)
        return None if kept is None else read(kept)
    except Exception:
        store.delete(key)
        return None
