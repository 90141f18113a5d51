"""XLA's plans in a process of its own: a spec a line on stdin, a line of JSON on stdout.

`python -m fuseledger.peers.xla_worker`: {"source", "dtype", "dims", "target"} gives {"kernels",
"seconds"} or {"error"}. JAX's backends are never started: the CUDA plugin compiles for a described
GPU, so no driver is needed.
"""

# JAX is untyped here:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import importlib
import time
from functools import cache
from typing import Any

from fuseledger.frontends.source import load
from fuseledger.graph.graph import Graph
from fuseledger.peers.process import serve
from fuseledger.peers.xla_hlo import kernels
from fuseledger.peers.xla_lower import SCOPE, inputs, jax_function

Json = dict[str, Any]


def _plan(spec: Json) -> Json:
    graph = load(spec["source"], dtype=spec["dtype"], dims=spec["dims"] or None)
    if not any(name in graph.producer for name in graph.outputs):
        return {"kernels": [], "seconds": 0.0}
    compiled, seconds = compile_graph(graph, spec["target"])
    found = kernels(compiled, SCOPE)
    for entry in found:
        entry["origins"] = [graph.ops[int(number)].name for number in entry["origins"]]
    return {"kernels": found, "seconds": seconds}


def compile_graph(graph: Graph, target: str) -> tuple[bytes, float]:
    """The optimised HLO of a graph for a described GPU, serialised, and the seconds it took."""
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)  # dtypes as the graph has them
    topologies: Any = importlib.import_module("jax.experimental.topologies")
    _know_cuda()
    topology = topologies.get_topology_desc(platform="cuda", target_config=target, topology="1x1x1")
    here = jax.sharding.SingleDeviceSharding(topology.devices[0])
    given = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=here)
        for name, (shape, dtype) in inputs(graph).items()
    }
    started = time.perf_counter()
    compiled = jax.jit(jax_function(graph)).lower(given).compile()
    seconds = time.perf_counter() - started
    (module,) = compiled.runtime_executable().hlo_modules()
    return module.as_serialized_hlo_module_proto(), seconds


@cache
def _know_cuda() -> None:
    """Let JAX take the name `cuda` as it is: it would look for a backend that was started."""
    bridge: Any = importlib.import_module("jax._src.xla_bridge")
    known = bridge.canonicalize_platform
    bridge.canonicalize_platform = lambda platform: (
        platform if platform == "cuda" else known(platform)
    )


if __name__ == "__main__":
    serve(_plan)
