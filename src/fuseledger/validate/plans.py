"""The kernels of a graph in every mode: eager's, a compiler's, and what a replayed graph adds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Literal, Self

from msgspec.structs import replace

from fuseledger.clock.library_features import GRAPH_MODES
from fuseledger.clock.library_kernel import LibraryKernel, Stream, tensor_bytes
from fuseledger.devices import Device
from fuseledger.frontends.aten_graph import AtenGraph
from fuseledger.peers.eager import EagerPlan, eager_plan
from fuseledger.peers.inductor_kernels import inductor_kernels
from fuseledger.peers.peer import PeerPlan
from fuseledger.peers.process import Worker
from fuseledger.peers.standin import standin_kernels
from fuseledger.validate.corpus import Corpus

MODES = (
    "eager", "cudagraphs-backend", "compile-default", "compile-reduce-overhead",
    "compile-max-autotune", "compile-max-autotune-no-cudagraphs",
)  # fmt: skip
EAGER_MODES = frozenset({"eager", "cudagraphs-backend"})
"""Modes that run eager's kernels; the others run a compiler's."""

PlanSource = Literal["standin", "inductor"]
"""Whose plan the compiled modes run."""
ByMode = Mapping[str, list[LibraryKernel]]


class Plans:
    """Plans of a corpus's graphs, each made once; TorchInductor is asked once a device."""

    def __init__(self, source: PlanSource, corpus: Corpus) -> None:
        self.source: PlanSource = source
        self.corpus = corpus
        self.failed: dict[str, str] = {}
        """Graph → why TorchInductor gave no plan."""
        self._eager: dict[tuple[str, ...], EagerPlan] = {}
        self._made: dict[tuple[str, ...], ByMode] = {}
        self._workers: dict[str, Worker] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def of(self, place: tuple[str, ...], graph: AtenGraph, device: Device) -> ByMode:
        """Mode → kernels of a graph on a device; `place` names the graph."""
        key = (*place, device.name) if self.source == "inductor" else place
        if key not in self._made:
            if place not in self._eager:
                self._eager[place] = eager_plan(graph)
                self._warn(graph, self._eager[place])
            eager = self._eager[place]
            self._made[key] = _by_mode(graph, eager, self._compiled(graph, eager, device))
        return self._made[key]

    def note(self) -> str:
        """Whose plans the compiled modes were priced on."""
        if self.source == "standin":
            return (
                "compiled modes are priced on a stand-in for TorchInductor's plan "
                "(docs/accuracy.md; `--plans inductor` asks for its own)"
            )
        words = "compiled modes are priced on TorchInductor's own plan"
        if self.failed:
            reasons = "; ".join(f"{name}: {why}" for name, why in list(self.failed.items())[:3])
            words += f", {len(self.failed)} of them on the stand-in ({reasons})"
        return words

    def _warn(self, graph: AtenGraph, plan: EagerPlan) -> None:
        if plan.unknown:
            names = ", ".join(plan.unknown)
            self.corpus.notes.append(f"{graph.name}: priced as one pass each: {names}")

    def _compiled(self, graph: AtenGraph, eager: EagerPlan, device: Device) -> list[LibraryKernel]:
        if self.source == "standin":
            return standin_kernels(graph, eager)
        plan = self._ask(graph, device)
        if plan.status == "planned":
            return inductor_kernels(plan, eager)
        self.failed[f"{graph.name} on {device.name}"] = f"{plan.status}, {plan.reason}"
        return standin_kernels(graph, eager)

    def _ask(self, graph: AtenGraph, device: Device) -> PeerPlan:
        from fuseledger.peers.inductor import device_properties, inductor_plan, inductor_worker
        from fuseledger.peers.kept import kept_plan, peer_folder

        if device.name not in self._workers:
            self._workers[device.name] = self._open.enter_context(inductor_worker())
        worker = self._workers[device.name]
        question = (replace(graph, source=""), device_properties(device))
        return kept_plan(
            peer_folder(), "torch", question,
            lambda: inductor_plan(graph.source, device, worker=worker),
        )  # fmt: skip


def _by_mode(
    graph: AtenGraph, eager: EagerPlan, compiled: list[LibraryKernel]
) -> dict[str, list[LibraryKernel]]:
    copies = _copies(graph)
    made: dict[str, list[LibraryKernel]] = {}
    for replayed in (False, True):
        for of_eager in (False, True):
            kernels = list(eager.kernels) if of_eager else compiled
            kernels = copies + kernels if replayed else kernels
            modes = [
                m
                for m in MODES
                if (m in EAGER_MODES) == of_eager and (m in GRAPH_MODES) == replayed
            ]
            made.update(dict.fromkeys(modes, kernels))
    return made


def _copies(graph: AtenGraph) -> list[LibraryKernel]:
    """A replayed CUDA graph's inputs are copied to where it was captured to read them.

    Source: `torch/_inductor/cudagraph_trees.py`, `_copy_inputs_and_remove_from_src`.
    """
    copies: list[LibraryKernel] = []
    for _, value in graph.inputs:
        source = Stream(f"{value.name}.given", tensor_bytes(value.shape, value.dtype))
        copy = Stream(value.name, source.bytes)
        copies.append(
            LibraryKernel(
                name="copy (static input)", op=f"copy {value.name}", kind="copy", reads=(source,),
                writes=(copy,), shape={"strided": 0.0},
            )
        )  # fmt: skip
    return copies
