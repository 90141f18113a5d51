"""TorchInductor's plan in a process of its own: a spec on stdin, JSON on stdout.

`python -m fuseledger.peers.inductor_worker`: {"source", "dtype", "dims", "device", "templates"} gives
{"kernels": […], "seconds", "notes"} or {"error"}. What torch or the source prints goes to stderr.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from fuseledger.peers.process import serve

Json = dict[str, Any]


def _plan(spec: Json) -> Json:
    from fuseledger.peers.inductor_capture import capture
    from fuseledger.peers.inductor_device import DeviceProperties, install
    from fuseledger.peers.inductor_fx import fx_program
    from fuseledger.peers.program import read_aten

    aten = read_aten(spec["source"])
    fakes: Any = importlib.import_module("torch._subclasses.fake_tensor")
    install(DeviceProperties(**spec["device"]))
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
    return {"kernels": kernels, "seconds": seconds, "notes": notes}


if __name__ == "__main__":
    serve(_plan)
