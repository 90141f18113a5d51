"""A peer's compiler in a process of its own: what is asked, and what came back.

Compilers are made to believe in a GPU by replacing parts of them for good, so none of that may run
in the caller's process. A worker module reads specs on stdin, one JSON a line, and answers each by
a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from threading import Event, Timer
from typing import IO, Any, Self, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fuseledger.devices import Device
from fuseledger.errors import FuseledgerError, MissingExtra
from fuseledger.peers.peer import PeerKernel, PeerPlan, PeerStatus

Json = dict[str, Any]


class Answer(Struct, frozen=True, kw_only=True):
    """What a worker said: its JSON, or why there is none."""

    status: PeerStatus
    reason: str | None = None
    said: Json


class Worker:
    """A worker's process: started when first asked, and kept for the next spec of that device.

    It is ended where an answer is late or does not come, and on leaving the `with` block.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self.module = module
        self.environment = environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def ask(self, spec: Json, time_limit_s: float) -> Answer:
        """The answer to one spec; a failure of any kind is an answer that says why."""
        process = self._process or self._start()
        is_late = Event()

        def end() -> None:
            is_late.set()
            process.kill()

        late = Timer(time_limit_s, end)
        late.start()
        line = _exchange(process, spec)
        late.cancel()
        if line.endswith("\n"):
            said = cast("Json", json.loads(line))
            failed = "error" in said
            status: PeerStatus = "failed" if failed else "planned"
            return Answer(status=status, reason=said.get("error"), said=said)
        last = self._end()
        if is_late.is_set():
            return Answer(status="timeout", reason=f"no plan within {time_limit_s:g} s", said={})
        reason = f"the worker ended with {process.returncode}: {last}"
        return Answer(status="failed", reason=reason, said={})

    def _start(self) -> subprocess.Popen[str]:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env={**os.environ, **self.environment},
        )  # fmt: skip
        return self._process

    def _end(self) -> str:
        """End the process; the last line that it wrote to stderr."""
        if self._process is None or self._errors is None:
            return ""
        self._process.kill()
        self._process.communicate()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        self._errors.close()
        self._process = None
        return lines[-1][:300] if lines else "it said nothing"


def _exchange(process: subprocess.Popen[str], spec: Json) -> str:
    """The line that a process answers a spec with; cut short where it ended instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline()


def serve(plan: Callable[[Json], Json]) -> None:
    """A worker's main: answer each spec on stdin by a line on stdout, until there are no more.

    Whatever `plan` raises becomes `{"error": …}`, one line; `FUSELEDGER_TRACEBACK=1` shows where.
    What a compiler or a source prints goes to stderr, whichever way it prints.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(_answer(plan, json.loads(line))) + "\n")
            answers.flush()
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


def no_cuda(device: Device) -> str | None:
    """Why a peer that plans for CUDA cannot plan for a device."""
    if device.arch.startswith("sm_"):
        return None
    return f"device {device.name} ({device.arch}) is no CUDA target; name an NVIDIA GPU"


def plan_of(
    answer: Answer, asked: PeerPlan, left_out: tuple[str, ...], doubt: str | None
) -> PeerPlan:
    """The plan that a worker answered, or why there is none, for the peer that was asked."""
    doubts = (doubt,) if doubt else ()
    if answer.status != "planned":
        reason = "; ".join(filter(None, [answer.reason, *doubts]))
        return replace(asked, status=answer.status, reason=reason)
    return replace(
        asked, status="planned", kernels=kernels(answer.said["kernels"]), left_out=left_out,
        seconds=float(answer.said["seconds"]), notes=(*answer.said.get("notes", ()), *doubts),
    )  # fmt: skip
