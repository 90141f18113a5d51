"""TorchInductor's plans in a process of its own: a spec a line on stdin, a line of JSON on stdout.

`python -m fuseledger.peers.inductor_worker`: {"source", "dtype", "dims", "device", "templates",
"launches"} gives {"kernels", "seconds", "notes"} or {"error"}.
"""

from __future__ import annotations

import importlib
import time
from functools import cache
from typing import Any

from fuseledger.peers.process import serve

Json = dict[str, Any]


def _plan(spec: Json) -> Json:
    from fuseledger.peers.inductor_capture import capture
    from fuseledger.peers.inductor_fx import fx_program
    from fuseledger.peers.program import read_aten

    aten = read_aten(spec["source"])
    fakes: Any = importlib.import_module("torch._subclasses.fake_tensor")
    _believe_in(tuple(spec["device"].items()))
    mode = fakes.FakeTensorMode(allow_non_fake_inputs=True)
    notes: list[str] = []
    if aten is not None:
        program = fx_program(aten, mode)
    else:
        from fuseledger.frontends.source import load
        from fuseledger.peers.inductor_graph import graph_program

        graph = load(spec["source"], dtype=spec["dtype"], dims=spec["dims"] or None)
        program = graph_program(graph, mode)
        notes.append("the source has no ATen nodes: our own ops are given to it as torch calls")
    started = time.perf_counter()
    kernels = capture(
        program.module, program.inputs, mode, program.names, templates=spec["templates"]
    )
    seconds = time.perf_counter() - started
    if spec.get("launches"):
        from fuseledger.peers.inductor_launch import launch_of

        for kernel in kernels:
            if kernel["source"] is not None:
                kernel["launch"] = launch_of(kernel["name"], kernel["source"])
    return {"kernels": kernels, "seconds": seconds, "notes": notes}


@cache
def _believe_in(properties: tuple[tuple[str, Any], ...]) -> None:
    from fuseledger.peers.inductor_device import DeviceProperties, install

    install(DeviceProperties(**dict(properties)))


if __name__ == "__main__":
    serve(_plan)
