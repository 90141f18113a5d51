"""Plans that a peer gave, kept on disk by what was asked and of which release.

A file a plan, in `$XDG_CACHE_HOME/fuseledger/peers`: a run that was stopped goes on where it was.
A late answer is not kept, so the next run asks again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.process import installed

ANSWERS = {"torch": 5, "jax": 1}
"""Raised where the code that asks a compiler, or reads its answer, changes what is kept."""
EXTRAS = {"torch": "torch", "jax": "xla"}
"""Package → the extra that has it."""
_SET = re.compile(r"frozenset\(\{(.*?)\}\)")
"""A set in a `repr`, whose order differs between processes."""


def peer_folder() -> Path:
    """The user's cache folder for plans of peers."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fuseledger" / "peers"


def kept_plan(
    folder: Path, package: str, question: object, ask: Callable[[], PeerPlan]
) -> PeerPlan:
    """The kept plan of a question, else what `ask` says; `package` is whose release counts.

    The question is anything whose `repr` says all that the answer depends on. Raises MissingExtra
    where the package is not installed.
    """
    asked = _SET.sub(lambda found: str(sorted(found[1].split(", "))), repr(question))
    text = f"{ANSWERS[package]} {package} {installed(package, EXTRAS[package])}\n{asked}"
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=PeerPlan)
    plan = ask()
    if plan.status != "timeout":
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(plan))
        part.replace(path)
    return plan
