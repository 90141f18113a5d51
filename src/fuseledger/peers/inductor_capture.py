"""TorchInductor's plan of an FX graph: its own pipeline up to the generated code, then its kernels.

`compile_fx` runs as in `torch.compile` (functionalisation, decompositions, joint-graph and
post-grad passes, lowering, fusion, Triton code) on fake CUDA tensors; it is stopped where it would
load the code. The scheduler's nodes are read there. Only `inductor_worker` imports this.
"""

# TorchInductor's internals are untyped:
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fuseledger.peers.inductor_walks import kept_inside, places_read, read_again
from fuseledger.peers.peer import CHANNELS_LAST

Json = dict[str, Any]


class _Captured(BaseException):
    """Carries the kernels out of `compile_fx`; no `except Exception` on the way holds it."""

    def __init__(self, kernels: list[Json]) -> None:
        super().__init__()
        self.kernels = kernels


def capture(
    module: Any,
    inputs: Sequence[Any],
    mode: Any,
    sources: Mapping[str, list[str]],
    *,
    templates: bool = False,
) -> list[Json]:
    """The kernels of TorchInductor's plan, in launch order.

    `module` is an FX graph module over ATen, `inputs` its fake inputs under `mode`, `sources` the
    name of each of its nodes → what the reader calls it. With `templates` products come from its
    Triton templates, and pointwise work before and after them is fused in where its rules allow.
    """
    torch: Any = importlib.import_module("torch")
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    config: Any = importlib.import_module("torch._inductor.config")
    lowering: Any = importlib.import_module("torch._inductor.graph")
    recorder = _Recorder(sources)

    def stop(graph: Any) -> None:
        recorder.generate(graph)
        raise _Captured(recorder.kernels(graph))

    lowering.GraphLowering.compile_to_module = stop
    settings: dict[str, Any] = {
        "force_disable_caches": True,
        "fx_graph_cache": False,
        "shape_padding": False,
        "compile_threads": 1,
    }
    if templates:
        settings |= TEMPLATES
        selection: Any = importlib.import_module("torch._inductor.select_algorithm")
        selection.AlgorithmSelectorCache.__call__ = _first_template
    patched = config.patch(**settings)
    tracing = torch._guards.tracing(torch._guards.TracingContext(mode))
    try:
        with torch.no_grad(), tracing, patched:
            compile_fx.compile_fx(module, list(inputs))
    except _Captured as captured:
        return captured.kernels
    return []  # every output is an input or a view of one: nothing runs


TEMPLATES: dict[str, Any] = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "ATEN,TRITON",
    "max_autotune_conv_backends": "ATEN,TRITON",
    "epilogue_fusion": True,
    "prologue_fusion": True,
    "benchmark_epilogue_fusion": False,
}
"""TorchInductor's settings under which products are its templates, and fuse with their like."""


def _first_template(
    cache: Any, name: str, choices: Sequence[Any], *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """The first Triton choice for a product, else the library: nothing is timed.

    It stands for `AlgorithmSelectorCache.__call__`, which gives the choice and its node.
    """
    selection: Any = importlib.import_module("torch._inductor.select_algorithm")
    triton = [each for each in choices if isinstance(each, selection.TritonTemplateCaller)]
    choice = (triton or list(choices))[0]
    return choice.output_node(), choice


class _Recorder:
    """What the code generator writes for each node of the scheduler."""

    def __init__(self, sources: Mapping[str, list[str]]) -> None:
        self.sources = sources
        self.calls: list[tuple[Any, str, list[str]]] = []
        """(scheduler node, Triton kernel, arguments of the call) in launch order."""
        self.code: dict[str, str] = {}
        """Triton kernel → its generated source."""

    def generate(self, graph: Any) -> None:
        """Generate the graph's code, noting launches and kernels on the way."""
        graph.init_wrapper_code()
        wrapper = graph.wrapper_code
        launch, define = wrapper.generate_kernel_call, wrapper.define_kernel

        def launching(kernel_name: str, call_args: Any, *args: Any, **kwargs: Any) -> Any:
            given = [str(arg) for arg in call_args]
            self.calls.append((graph.scheduler.current_node, kernel_name, given))
            return launch(kernel_name, call_args, *args, **kwargs)

        def defining(kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> Any:
            self.code[kernel_name] = kernel_body
            return define(kernel_name, kernel_body, *args, **kwargs)

        wrapper.generate_kernel_call, wrapper.define_kernel = launching, defining
        graph.init_wrapper_code = lambda *args, **kwargs: None
        graph.codegen()

    def kernels(self, graph: Any) -> list[Json]:
        """One entry a launch."""
        ir: Any = importlib.import_module("torch._inductor.ir")
        scheduler: Any = importlib.import_module("torch._inductor.scheduler")
        found: list[Json] = []
        for node in graph.scheduler.nodes:
            launched = [(name, given) for where, name, given in self.calls if where is node]
            is_call = isinstance(node, scheduler.ExternKernelSchedulerNode) and not launched
            if is_call and not isinstance(node.node, (ir.MultiOutput, ir.NopKernel)):
                found.append(self._kernel(node, "extern", _extern_name(node.node), []))
            kind = "template" if node.is_template() else "triton"
            found.extend(self._kernel(node, kind, name, given) for name, given in launched)
        return found

    def _kernel(self, node: Any, kind: str, name: str, given: list[str]) -> Json:
        reads = _accesses(node, include_reads=True, include_writes=False)
        writes = _accesses(node, include_reads=False, include_writes=True)
        if kind == "triton":
            source = self.code.get(name, "")
            inside = kept_inside(source, given, reads.keys() | writes.keys())
            reads = places_read(source, given, reads, lambda buffer: _extent(buffer)[1])
            reads = read_again(source, given, reads)
            for buffer, loops in inside.items():
                size = math.prod(_extent(buffer))
                if not size:
                    continue  # a workspace, no tensor
                reads[buffer], writes[buffer] = loops * size, size
        origins: dict[str, None] = {}
        aten: dict[str, None] = {}
        for inner in node.get_nodes():
            for origin in sorted(inner.node.get_origins(), key=lambda each: each.name):
                operator = origin.meta.get("original_aten")
                aten[str(operator if operator is not None else origin.target)] = None
                origins.update(dict.fromkeys(_first_names(origin, self.sources)))
        return {
            "name": name,
            "kind": kind,
            "aten": list(aten),
            "origins": list(origins),
            "reads": reads,
            "writes": writes,
            "source": self.code.get(name),
            "config": CHANNELS_LAST if kind == "extern" and _channels_last(node.node) else None,
        }


COUNTED_ELEMENTS = 10**9
"""Where the scheduler does not know a node's loops it counts this many elements at most."""


def _accesses(node: Any, **which: bool) -> dict[str, int]:
    """Buffer → bytes, as the scheduler counts them, buffers beyond its bound whole."""
    found: dict[str, int] = {}
    for name, count in node.get_read_write_buffer_accesses(**which).items():
        found[str(name)] = int(count)
        elements, width = _extent(str(name))
        if elements > COUNTED_ELEMENTS and count == COUNTED_ELEMENTS * width:
            found[str(name)] = elements * width
    return found


def _extent(name: str) -> tuple[int, int]:
    """(elements, bytes of each) of a buffer of the graph; no elements where it has no size."""
    virtualized: Any = importlib.import_module("torch._inductor.virtualized")
    graph = virtualized.V.graph
    buffer = graph.name_to_buffer.get(name) or graph.graph_inputs.get(name)
    size = buffer.maybe_get_size() if hasattr(buffer, "maybe_get_size") else None
    if size is None:
        return 0, 0
    return math.prod(int(length) for length in size), int(buffer.get_dtype().itemsize)


def _channels_last(node: Any) -> bool:
    """Whether a library call writes its result with the channels innermost."""
    size, stride = node.maybe_get_size(), node.maybe_get_stride()
    return (
        size is not None
        and len(size) == len(stride) in (4, 5)
        and (int(size[1]) > 1 and int(stride[1]) == 1)
    )


def _extern_name(node: Any) -> str:
    overload = getattr(node, "op_overload", None)
    return str(getattr(node, "python_kernel_name", None) or overload or type(node).__name__)


def _first_names(node: Any, known: Mapping[str, list[str]]) -> list[str]:
    """What the source calls the nodes that an FX node stands for.

    A node that a pattern put in has no history: it stands for what its users stand for.
    """
    names: list[str] = []
    is_known = bool(node.meta.get("from_node"))
    waiting = [node, *(node.meta.get("from_node") or ())]
    while waiting:
        each = waiting.pop()
        if each.name in known:
            is_known = True
            names.extend(known[each.name])
        waiting.extend(getattr(each, "from_node", None) or ())
    if is_known:
        return names
    return [name for user in node.users for name in _first_names(user, known)]
