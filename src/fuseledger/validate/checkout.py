"""A checkout of the KernelBench repository: problems as Python files, times as JSON.

`KernelBench/level<n>/<problem>.py` and `results/timing/<host>/baseline_time_<mode>.json`. Reading a
problem runs its file, on fake tensors.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fuseledger.errors import SourceError
from fuseledger.frontends.aten_graph import AtenGraph
from fuseledger.validate.corpus import Corpus, CorpusError
from fuseledger.validate.kernelbench import Run, collect
from fuseledger.validate.plans import PlanSource

MODE_FILES: dict[str, str] = {
    "torch": "eager", "torch_compile_cudagraphs": "cudagraphs-backend",
    "torch_compile_inductor_default": "compile-default",
    "torch_compile_inductor_reduce-overhead": "compile-reduce-overhead",
    "torch_compile_inductor_max-autotune": "compile-max-autotune",
    "torch_compile_inductor_max-autotune-no-cudagraphs": "compile-max-autotune-no-cudagraphs",
}  # fmt: skip
"""What follows `baseline_time_` in a file's name → the mode."""
LEVELS = ("1", "2", "3")
SIZES = "checkout"


class Timing(msgspec.Struct, frozen=True):
    """What a timing file says of a problem; other fields are not read."""

    mean: float
    """Milliseconds."""
    hardware: str = ""
    """What the driver calls the GPU."""


def is_checkout(folder: Path) -> bool:
    """Whether a folder looks like the repository."""
    return (folder / "KernelBench").is_dir() and (folder / "results" / "timing").is_dir()


def read_checkout(folder: Path, plans: PlanSource = "standin") -> Corpus:
    """Every time of every timing file with its kernels.

    Raises CorpusError naming the file and the field, MissingExtra where torch is not installed.
    """
    corpus = Corpus()
    times: dict[Run, list[float]] = {}
    names: dict[Run, str] = {}
    for path in sorted((folder / "results" / "timing").glob("*/*.json")):
        mode = MODE_FILES.get(path.stem.removeprefix("baseline_time_"))
        for key, problems in _read(path).items():
            level = key.removeprefix("level")
            for file, timing in problems.items():
                if mode is None or level not in LEVELS:
                    corpus.skip(f"{path.parent.name}/{path.name}, {key}: mode or level not priced")
                    continue
                run = Run(
                    SIZES, level, file.partition("_")[0], timing.hardware, path.parent.name, mode,
                    "",
                )  # fmt: skip
                times.setdefault(run, []).append(timing.mean)
                names[run] = file.removesuffix(".py")

    def graph_of(run: Run) -> AtenGraph:
        from fuseledger.frontends.torch import read_problem

        path = folder / "KernelBench" / f"level{run.level}" / f"{names[run]}.py"
        if not path.is_file():
            raise SourceError(f"no problem {path.relative_to(folder)}")
        return read_problem(path)

    collect(corpus, times, names, graph_of, plans)
    corpus.notes.append("the problems' Python files were run, on fake tensors")
    return corpus


def _read(path: Path) -> dict[str, dict[str, Timing]]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Timing]])
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise CorpusError(f"{path}: no timing file of KernelBench: {error}") from None
    for level, problems in found.items():
        for file, timing in problems.items():
            if not 0 < timing.mean < float("inf"):
                raise CorpusError(f"{path}: {level}.{file}.mean {timing.mean} is no time above 0")
    return found
