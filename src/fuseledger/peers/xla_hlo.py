"""The kernels of a compiled XLA module, read from its optimised HLO.

Every instruction of the entry computation that runs on the GPU is a kernel or a library call: a
fusion, a custom call, a copy. Its buffers are its operands and results, each once each way; of an
operand that a fusion only slices, the slices; of one that it updates in place, the update.
"""

# protobuf's messages are untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fuseledger.peers.xla_proto import U8, read_module, shape_bytes

Json = dict[str, Any]
Instruction = Any

FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "async-done", "async-update", "copy-done", "opt-barrier", "add-dependency",
})  # fmt: skip
"""Opcodes of an entry computation that launch nothing."""
CALLS = frozenset({"call", "async-start", "while", "conditional"})
"""Opcodes that run other computations: their kernels are launched. A loop's body counts once."""
MOVES = frozenset({"parameter", "constant", "transpose", "copy", "bitcast", "reshape", "tuple"})
"""Opcodes of a change of layout: it computes nothing, wherever its instructions came from."""
SLICES = frozenset({"slice", "dynamic-slice", "gather"})
SAME = frozenset({"bitcast", "reshape", "transpose", "copy", "convert", "get-tuple-element"})
"""Opcodes through which a use of part of a buffer is looked for."""


def kernels(serialised: bytes, scope: str) -> list[Json]:
    """One entry a launch, in launch order, with the fields of `PeerKernel`.

    `origins` are what follows `scope` in the names of the kernel's instructions, in order.
    """
    return _Reader(read_module(serialised), scope).kernels()


class _Reader:
    """A module with its computations and instructions by number."""

    def __init__(self, module: Any, scope: str) -> None:
        self.computations = {each.id: each for each in module.computations}
        self.entry = module.entry_computation_id
        self.order = {
            each.key: list(each.value.instruction_ids) for each in module.schedule.sequences
        }
        self.mark = re.compile(re.escape(scope) + r"([^/]+)")

    def kernels(self) -> list[Json]:
        return list(self._launched(self.entry))

    def _launched(self, computation: int) -> Iterator[Json]:
        inside = {each.id: each for each in self.computations[computation].instructions}
        for number in self.order.get(computation, list(inside)):
            instruction = inside[number]
            opcode = instruction.opcode
            if opcode in CALLS:
                for called in instruction.called_computation_ids:
                    yield from self._launched(called)
            elif opcode not in FREE and self._size(instruction):
                yield self._kernel(instruction, inside)

    def _kernel(self, at: Instruction, inside: dict[int, Instruction]) -> Json:
        fused = self._fused(at)
        body = fused or [at]
        reads: dict[str, int] = {}
        for slot, operand in enumerate(at.operand_ids):
            buffer = _buffer(inside[operand], inside)
            reads[buffer] = max(reads.get(buffer, 0), self._read(at, slot, inside[operand]))
        moves = all(each.opcode in MOVES for each in body)
        kind, config = _kind(at)
        return {
            "name": at.name,
            "kind": "copy" if moves and kind != "extern" else kind,
            "aten": list(dict.fromkeys(_words(each) for each in body if each.opcode not in MOVES)),
            "origins": [] if moves else self._origins([at, *body]),
            "reads": {name: count for name, count in reads.items() if count},
            "writes": {at.name: self._written(at)},
            "config": config,
        }

    def _origins(self, body: list[Instruction]) -> list[str]:
        found = [self.mark.findall(each.metadata.op_name) for each in body]
        return list(dict.fromkeys(names[-1] for names in found if names))

    def _fused(self, at: Instruction) -> list[Instruction]:
        """Instructions of a fusion, those of fusions inside it too."""
        if at.opcode != "fusion":
            return []
        found: list[Instruction] = []
        for called in at.called_computation_ids:
            for each in self.computations[called].instructions:
                found.append(each)
                found += self._fused(each)
        return found

    # -- bytes -----------------------------------------------------------------------------

    def _size(self, at: Instruction) -> int:
        """Bytes of the results, a library call's workspace left out."""
        parts = at.shape.tuple_shapes
        if not parts:
            return shape_bytes(at.shape)
        scratch = at.opcode == "custom-call" and len(parts) > 1 and parts[-1].element_type == U8
        return sum(shape_bytes(part) for part in (parts[:-1] if scratch else parts))

    def _read(self, at: Instruction, slot: int, operand: Instruction) -> int:
        whole = shape_bytes(operand.shape)
        if at.opcode in SLICES and slot == 0:
            return min(whole, shape_bytes(at.shape))
        if at.opcode != "fusion":
            return whole
        (called,) = at.called_computation_ids
        parameters = {
            each.parameter_number: each
            for each in self.computations[called].instructions
            if each.opcode == "parameter"
        }
        touched = self._touched(called, parameters[slot])
        return whole if touched is None else min(whole, touched)

    def _touched(self, computation: int, at: Instruction) -> int | None:
        """Bytes of a value that its users inside a fusion touch; None where it is all of them."""
        total = 0
        for user in self.computations[computation].instructions:
            slots = [slot for slot, number in enumerate(user.operand_ids) if number == at.id]
            for slot in slots:
                if user.opcode in SLICES and slot == 0:
                    total += shape_bytes(user.shape)
                elif user.opcode == "dynamic-update-slice" and slot == 0:
                    continue  # updated in place
                elif user.opcode in SAME:
                    below = self._touched(computation, user)
                    if below is None:
                        return None
                    total += below
                else:
                    return None
        root = self.computations[computation].root_id
        return None if at.id == root else total

    def _written(self, at: Instruction) -> int:
        if at.opcode != "fusion":
            return self._size(at)
        (called,) = at.called_computation_ids
        inside = {each.id: each for each in self.computations[called].instructions}
        root = inside[self.computations[called].root_id]
        roots = [inside[n] for n in root.operand_ids] if root.opcode == "tuple" else [root]
        total = 0
        for each in roots:
            while each.opcode == "bitcast":
                each = inside[each.operand_ids[0]]
            updates = each.opcode == "dynamic-update-slice"
            total += shape_bytes(inside[each.operand_ids[1]].shape if updates else each.shape)
        return total


def _buffer(at: Instruction, inside: dict[int, Instruction]) -> str:
    """The name of the kernel or input that made an operand."""
    while at.opcode in ("bitcast", "async-done", "copy-done") and at.operand_ids:
        at = inside[at.operand_ids[0]]
    if at.opcode == "get-tuple-element":
        made = inside[at.operand_ids[0]]
        return made.name if at.tuple_index == 0 else f"{made.name}.{at.tuple_index}"
    return at.name


def _kind(at: Instruction) -> tuple[str, str | None]:
    """What sort of kernel it is, and how it was configured where XLA says so."""
    if at.opcode == "custom-call":
        return "extern", at.custom_call_target
    if at.opcode != "fusion":
        return ("copy" if at.opcode in ("copy", "copy-start") else at.opcode), None
    if at.fusion_kind != "kCustom":
        return at.fusion_kind.removeprefix("k").lower(), None
    said = json.loads(at.backend_config or b"{}").get("fusion_backend_config", {})
    name = str(said.get("kind", "kCustom"))
    tiling = said.get("block_level_fusion_config") or said.get("triton_gemm_config") or {}
    tiles = [
        "×".join(str(size) for size in tile.get("sizes", ()))
        for tile in tiling.get("output_tiles", ())
    ]
    words = [name, *(f"tile {tile}" for tile in tiles)]
    if "num_warps" in tiling:
        words.append(f"{tiling['num_warps']} warps")
    if "num_stages" in tiling:
        words.append(f"{tiling['num_stages']} stages")
    kind = "template" if "gemm" in name else "triton" if "triton" in name else "custom"
    return kind, ", ".join(words)


def _words(at: Instruction) -> str:
    """The JAX primitive that an instruction came from, else its HLO opcode."""
    name = at.metadata.op_name.rsplit("/", 1)[-1]
    return name if name and "fuseledger." not in name else at.opcode
