"""Plans that a peer gave, kept on disk by what was asked and of which release.

A run that was stopped goes on where it was. A late answer is not kept, so the next run asks again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.process import installed
from fuseledger.stored import cache_folder, opened, recalled

CACHE_BYTES = 512 * 2**20
ANSWERS = {"torch": 5, "jax": 1}
"""Raised where the code that asks a compiler, or reads its answer, changes what is kept."""
EXTRAS = {"torch": "torch", "jax": "xla"}
"""Package → the extra that has it."""
_SET = re.compile(r"frozenset\(\{(.*?)\}\)")
"""A set in a `repr`, whose order differs between processes."""


def peer_folder() -> Path:
    """The user's cache folder for plans of peers."""
    return cache_folder("peers")


def kept_plan(
    folder: Path, package: str, question: object, ask: Callable[[], PeerPlan]
) -> PeerPlan:
    """The kept plan of a question, else what `ask` says; `package` is whose release counts.

    The question is anything whose `repr` says all that the answer depends on. Raises MissingExtra
    where the package is not installed.
    """
    asked = _SET.sub(lambda found: str(sorted(found[1].split(", "))), repr(question))
    text = f"{ANSWERS[package]} {package} {installed(package, EXTRAS[package])}\n{asked}"
    key = hashlib.sha256(text.encode()).hexdigest()
    with opened(folder, most_bytes=CACHE_BYTES) as store:
        found = recalled(store, key, lambda kept: msgspec.json.decode(kept, type=PeerPlan))
        if found is not None:
            return found
        plan = ask()
        if plan.status != "timeout":
            store.set(key, msgspec.json.encode(plan))
        return plan
