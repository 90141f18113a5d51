"""Compiler processes: each compiles one kernel after the other, and a bad kernel ends only its own.

A process that crashes, hangs or runs out of memory is ended with all that it started (ptxas) and
replaced; its kernel is one failed row.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from queue import SimpleQueue
from threading import Timer
from typing import IO, Any

MEMORY_BYTES = 16 * 2**30
"""Address space of one compiler process; beyond it its allocations fail."""
NO_ANSWER = "no answer"


class CompilerPool:
    """Compiler processes that are started when first needed and reused.

    Safe for threads: every call of `compile` has a process to itself.
    """

    def __init__(self, *, timeout_s: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._idle: SimpleQueue[_Compiler] = SimpleQueue()
        self._started: list[_Compiler] = []

    def compile(self, job: dict[str, Any]) -> dict[str, Any]:
        """What the compiler answers for one job: its figures, or `failed` with the reason."""
        if self._idle.empty():
            compiler = _Compiler(self._memory_bytes)
            self._started.append(compiler)
        else:
            compiler = self._idle.get()
        answer = compiler.compile(job, self._timeout_s)
        if compiler.is_alive:
            self._idle.put(compiler)
        else:
            compiler.end()
        return answer

    def close(self) -> None:
        """End every process."""
        for compiler in self._started:
            compiler.end()


class _Compiler:
    """One process of `compile_worker`."""

    def __init__(self, memory_bytes: int) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as self)
        command = [sys.executable, "-m", "fuseledger.triton.compile_worker", str(memory_bytes)]
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env=environment, text=True, start_new_session=True,
        )  # fmt: skip

    @property
    def is_alive(self) -> bool:
        """Whether it can take another job."""
        return self._process.poll() is None

    def compile(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        is_late = False

        def late() -> None:
            nonlocal is_late
            is_late = True
            self._kill()

        timer = Timer(timeout_s, late)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        with suppress(ValueError):
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._kill()
        code = self._process.wait()
        if is_late:
            return {"failed": f"no result after {timeout_s:g} s"}
        if code < 0:
            return {"failed": f"the compiler died of {signal.Signals(-code).name}"}
        return {"failed": self._last_words()}

    def end(self) -> None:
        """End the process and all that it started."""
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else NO_ANSWER
