"""The part of XLA's `HloModuleProto` that a plan is read from.

jaxlib gives a compiled module as a serialised proto and ships no Python class for it. The messages
below are those of `xla/service/hlo.proto` and `xla/xla_data.proto`, with the fields that are read
here; protobuf skips the others. Field numbers are part of XLA's stable format.
"""

# protobuf's generated messages are untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

INT64, INT32, BOOL, STRING, BYTES = "INT64", "INT32", "BOOL", "STRING", "BYTES"

_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Layout": (("minor_to_major", 1, "INT64*"),),
    "Shape": (
        ("element_type", 2, INT32), ("dimensions", 3, "INT64*"), ("tuple_shapes", 4, "Shape*"),
        ("layout", 5, "Layout"),
    ),
    "OpMetadata": (("op_type", 1, STRING), ("op_name", 2, STRING)),
    "HloInstruction": (
        ("name", 1, STRING), ("opcode", 2, STRING), ("shape", 3, "Shape"),
        ("metadata", 7, "OpMetadata"), ("parameter_number", 9, INT64), ("fusion_kind", 11, STRING),
        ("tuple_index", 13, INT64), ("custom_call_target", 28, STRING), ("id", 35, INT64),
        ("operand_ids", 36, "INT64*"), ("called_computation_ids", 38, "INT64*"),
        ("backend_config", 43, BYTES),
    ),
    "HloComputation": (
        ("name", 1, STRING), ("instructions", 2, "HloInstruction*"), ("id", 5, INT64),
        ("root_id", 6, INT64),
    ),
    "InstructionSequence": (("instruction_ids", 1, "INT64*"),),
    "Sequence": (("key", 1, INT64), ("value", 2, "InstructionSequence")),
    "HloSchedule": (("sequences", 1, "Sequence*"),),
    "HloModule": (
        ("name", 1, STRING), ("computations", 3, "HloComputation*"), ("id", 5, INT64),
        ("entry_computation_id", 6, INT64), ("schedule", 7, "HloSchedule"),
    ),
}  # fmt: skip
"""Message → its fields: name, number, type; a star repeats it. `Sequence` is a map's entry."""

ELEMENT_BITS = {
    1: 8, 2: 8, 3: 16, 4: 32, 5: 64, 6: 8, 7: 16, 8: 32, 9: 64, 10: 16, 11: 32, 12: 64, 15: 64,
    16: 16, 18: 128, 19: 8, 20: 8, 21: 4, 22: 4, 23: 8, 24: 8, 25: 8, 26: 2, 27: 2, 28: 8, 29: 8,
    30: 1, 31: 1, 32: 4, 33: 8,
}  # fmt: skip
"""`PrimitiveType` → bits of an element as stored (a `pred` takes a byte)."""
U8 = 6
"""`PrimitiveType` of bytes: what library calls name their workspace by."""


@cache
def _module_class() -> Any:
    pb2: Any = importlib.import_module("google.protobuf.descriptor_pb2")
    pools: Any = importlib.import_module("google.protobuf.descriptor_pool")
    factory: Any = importlib.import_module("google.protobuf.message_factory")
    file = pb2.FileDescriptorProto(name="fuseledger/hlo.proto", package="fuseledger.hlo")
    file.syntax = "proto3"
    kinds = pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, number, written in fields:
            field = made.field.add(name=name, number=number)
            kind = written.removesuffix("*")
            field.label = kinds.LABEL_REPEATED if "*" in written else kinds.LABEL_OPTIONAL
            if kind in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".fuseledger.hlo.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind}")
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("fuseledger.hlo.HloModule"))


def read_module(serialised: bytes) -> Any:
    """The module as a protobuf message with the fields of `_MESSAGES`."""
    module = _module_class()()
    module.ParseFromString(serialised)
    return module


def shape_bytes(shape: Any) -> int:
    """Bytes of an array, packed; of a tuple the sum."""
    if shape.tuple_shapes:
        return sum(shape_bytes(part) for part in shape.tuple_shapes)
    elements = 1
    for length in shape.dimensions:
        elements *= length
    return -(-elements * ELEMENT_BITS.get(shape.element_type, 0) // 8)
