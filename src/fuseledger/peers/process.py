"""A peer's compiler in a process of its own: what is asked, and what came back.

Compilers are made to believe in a GPU by replacing parts of them for good, so none of that may run
in the caller's process. A worker module reads one spec as JSON on stdin and writes one answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import msgspec

from fuseledger.errors import FuseledgerError, MissingExtra
from fuseledger.peers.peer import PeerKernel, PeerStatus

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker said: its JSON, or why there is none."""

    status: PeerStatus
    reason: str | None = None
    said: Json


def ask(module: str, spec: Json, time_limit_s: float, *, environment: Json | None = None) -> Answer:
    """Run a worker on one spec; `environment` is added to its process's own variables."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module], input=json.dumps(spec), capture_output=True, text=True,
            timeout=time_limit_s, check=False, env={**os.environ, **(environment or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(status="timeout", reason=f"no plan within {time_limit_s:g} s", said={})
    try:
        said = cast("Json", json.loads(done.stdout))
    except json.JSONDecodeError:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        words = last[0][:300] if last else "it said nothing"
        reason = f"the worker ended with {done.returncode}: {words}"
        return Answer(status="failed", reason=reason, said={})
    if "error" in said:
        return Answer(status="failed", reason=said["error"], said=said)
    return Answer(status="planned", said=said)


def serve(plan: Callable[[Json], Json]) -> None:
    """A worker's main: answer the spec on stdin. What a compiler prints goes to stderr.

    Whatever `plan` raises becomes `{"error": …}`, one line; `FUSELEDGER_TRACEBACK=1` shows where.
    """
    spec: Json = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        answer = _answer(plan, spec)
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # a compiler's thread pools and stand-ins have nothing to tidy up


def _answer(plan: Callable[[Json], Json], spec: Json) -> Json:
    try:
        return plan(spec)
    except FuseledgerError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a compiler of another project raises
        if os.environ.get("FUSELEDGER_TRACEBACK", "0") not in ("", "0"):
            import traceback

            traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[0][:300] if lines else "no message"
        return {"error": f"{type(error).__name__}: {said}"}


def installed(package: str, extra: str) -> str:
    """The version of an installed package; raises MissingExtra naming the extra that has it."""
    try:
        return version(package)
    except PackageNotFoundError:
        raise MissingExtra(extra, package) from None


def untested(package: str, found: str, known: tuple[str, ...]) -> str:
    """Empty, or a warning where this release (major.minor) is not among the known ones."""
    if ".".join(found.split(".")[:2]) in known:
        return ""
    return f"{package} {found} is untested here, known to work: {', '.join(known)}"


def kernels(entries: Any) -> tuple[PeerKernel, ...]:
    """The kernels of a worker's answer: entries with the fields of `PeerKernel`."""
    return msgspec.convert(entries, tuple[PeerKernel, ...])
