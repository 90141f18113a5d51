"""Runs emitted kernels in Triton's interpreter, in a process of its own.

`python -m fuseledger.triton.interpret SECONDS FOLDER…`: every folder holds `kernels.py`, `job.json`
and one `.npy` for each input; results and the error, if any, are written beside them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from fuseledger.triton.count import Counter
from fuseledger.triton.mend import mend_interpreter

TORCH_DTYPES: dict[str, str] = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "int64": "int64", "int32": "int32",
    "int16": "int16", "int8": "int8", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32",
    "uint64": "uint64", "bool": "bool",
}  # fmt: skip
TOO_LONG = "the interpreter gave no result in"
POISON: dict[str, float] = {"fp8_e4m3": float("nan"), "bool": 0}
"""What outputs hold before the kernel runs; NaN where the dtype has it, else -7 (or its kin)."""


def run_folder(folder: Path) -> None:
    """Run one kernel; its outputs go to `.npy` files, an error to `error.txt`."""
    import numpy as np

    torch: Any = import_module("torch")
    job = json.loads((folder / "job.json").read_text())
    tensors: dict[str, Any] = {}
    for number, item in enumerate(job["inputs"]):
        array: Any = np.load(folder / f"in{number}.npy")
        tensors[item["tensor"]] = torch.from_numpy(array).to(dtype_of(torch, item["dtype"]))
    for item in job["made"]:
        dtype = dtype_of(torch, item["dtype"])
        empty: Any = torch.empty(item["shape"], dtype=dtype)
        poison = POISON.get(item["dtype"], float("nan") if dtype.is_floating_point else 7)
        tensors[item["tensor"]] = empty.fill_(poison)
    module = load_module(folder / "kernels.py")
    counter = Counter(folder / "kernels.py", tensors)
    for launch in job["launches"]:
        kernel = getattr(module, launch["kernel"])
        arguments = [tensors[name] for name in launch["parameters"]]
        with counter.counting():
            kernel[(launch["blocks"],)](*arguments, **launch["constants"])
        counter.end_block()
    (folder / "bytes.json").write_text(json.dumps(counter.bytes))
    for number, item in enumerate(job["outputs"]):
        result: Any = tensors[item["tensor"]]
        np.save(folder / f"out{number}.npy", result.to(torch.float64).numpy())


def dtype_of(torch: Any, dtype: str) -> Any:
    """The torch dtype of ours."""
    return getattr(torch, TORCH_DTYPES[dtype])


def load_module(path: Path) -> Any:
    """The Python module of a file."""
    spec = importlib.util.spec_from_file_location(f"emitted_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(limit_s: float, folders: list[str]) -> None:
    """Run every folder's kernel, each under a limit of processor time."""
    os.environ["TRITON_INTERPRET"] = "1"
    mend_interpreter()
    signal.signal(signal.SIGPROF, _give_up)
    for folder in folders:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            run_folder(Path(folder))
        except Exception as error:
            (Path(folder) / "error.txt").write_text(_words(error, limit_s))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


class _TooLong(Exception):
    """The time limit of one kernel is over."""


def _give_up(*_: object) -> None:
    raise _TooLong


def _words(error: Exception, limit_s: float) -> str:
    """The error in one line, with its cause."""
    chain: list[BaseException] = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    if any(isinstance(each, _TooLong) for each in chain):
        return f"{TOO_LONG} {limit_s:.0f} s of processor time"
    cause = chain[-1] if len(chain) > 1 else None
    text = f"{type(error).__name__}: {error}".splitlines()
    return (text[0] if text else "error") + (f" ({type(cause).__name__}: {cause})" if cause else "")


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
