"""What is known of every value of an ONNX model: shape, dtype, and the data of small ones.

Symbolic dimensions are set first; then each node is inferred from what is known of its inputs, with
the data of small integer and scalar tensors carried along, so that shape computations are done here
and Reshape, Slice and Resize see plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from math import prod
from typing import Any

from msgspec import Struct, field

from fuseledger.errors import SourceError
from fuseledger.frontends.onnx_declared import Declaration, declarations, set_dims
from fuseledger.frontends.onnx_read import (
    VALUE_LIMIT,
    captured,
    node_title,
    onnx_module,
    operator,
    standard,
)
from fuseledger.graph.tensor import DTYPE_BITS, MAX_ELEMENTS, too_large

DTYPES: dict[str, str] = {
    "FLOAT": "fp32", "DOUBLE": "fp64", "FLOAT16": "fp16", "BFLOAT16": "bf16",
    "FLOAT8E4M3FN": "fp8_e4m3", "FLOAT8E4M3FNUZ": "fp8_e4m3", "FLOAT8E5M2": "fp8_e5m2",
    "FLOAT8E5M2FNUZ": "fp8_e5m2", "FLOAT4E2M1": "fp4", "COMPLEX64": "complex64",
    "COMPLEX128": "complex128", "INT64": "int64", "INT32": "int32", "INT16": "int16",
    "INT8": "int8", "INT4": "int4", "UINT64": "uint64", "UINT32": "uint32", "UINT16": "uint16",
    "UINT8": "uint8", "UINT4": "uint4", "BOOL": "bool",
}  # fmt: skip
"""ONNX element type → ours. The variants of float8 differ in their codes, not in their bytes."""

FOLDABLE = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "Constant",
    "ConstantOfShape", "Cos", "CumSum", "Div", "Equal", "Exp", "Expand", "EyeLike", "Flatten",
    "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity",
    "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "NonZero", "Not",
    "OneHot", "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape",
    "Sign", "Sin", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "TopK",
    "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Operators worked out by value where their inputs are known: shape arithmetic and small tables."""

BY_SHAPE = frozenset({"Shape", "Size", "EyeLike"})
"""Operators whose result depends on their input's shape alone."""

DATA_DEPENDENT = frozenset({"Compress", "NonZero", "Unique"})
"""Foldable operators whose result is no larger than their input, though its shape is unknown."""


class Value(Struct):
    """What is known of one value of the model."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    constant: bool = False
    """It depends on no input."""
    packed: bool = False
    """It is a weight of 8 bits or fewer, a quantised one, or a view of one."""
    array: Any = None
    """Its data, where small and known."""
    type_: Any = None
    """ONNX's TypeProto, as far as known."""

    @property
    def is_sized(self) -> bool:
        """Whether shape and dtype are known, so that the IR can hold it."""
        return self.shape is not None and self.dtype is not None

    @property
    def has_element_type(self) -> bool:
        """Whether the element type is known, be it one that the IR has or not."""
        return self.type_ is not None and bool(self.type_.tensor_type.elem_type)


class Inference(Struct):
    """The values met so far; `infer` adds a node's results."""

    model: Any
    source: str
    dims: Mapping[str, int]
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    declared: dict[str, Any] = field(default_factory=dict[str, Any])
    """Types that the file or ONNX's own inference over the whole model gives."""
    opsets: dict[str, int] = field(default_factory=dict[str, int])
    stated: list[Declaration] = field(default_factory=list[Declaration])
    """What the file itself says of its values."""

    def start(self) -> None:
        """Set the symbolic dimensions and note inputs and initialisers."""
        onnx = onnx_module()
        self.opsets = {standard(o.domain): o.version for o in self.model.opset_import}
        initial = {tensor.name for tensor in self.model.graph.initializer}
        self.stated = declarations(self.model.graph)
        set_dims(self.model, self.dims, initial, self.source)
        try:
            inferred = onnx.shape_inference.infer_shapes(
                self.model, check_type=False, strict_mode=False, data_prop=True
            )
        except Exception:  # what is wrong is said again, with the node's name, by `infer`
            inferred = self.model
        for info in (*inferred.graph.value_info, *self.model.graph.output):
            self.declared.setdefault(info.name, info.type)
        for info in self.model.graph.input:
            if info.name not in initial:
                self.values[info.name] = self._typed(Value(info.name), info.type)
        for tensor in self.model.graph.initializer:
            self.initial(tensor)

    def initial(self, tensor: Any) -> None:
        """Note an initialiser, with its data where that is small."""
        onnx = onnx_module()
        if any(size < 0 for size in tensor.dims):
            raise SourceError(f"{self.source}: tensor {tensor.name} has shape {list(tensor.dims)}")
        if tensor.data_type not in onnx.TensorProto.DataType.values():
            kind = _element(tensor.data_type)
            raise SourceError(f"{self.source}: tensor {tensor.name} has elements of type {kind}")
        type_ = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        value = self._typed(Value(tensor.name, constant=True), type_)
        if prod(tensor.dims) <= VALUE_LIMIT and has_data(tensor):
            value.array = self._array(tensor)
        bits = DTYPE_BITS.get(value.dtype or "", 0)
        value.packed = 0 < bits <= 8 and value.dtype != "bool" and value.array is None
        self.values[tensor.name] = value

    def infer(self, node: Any) -> list[Value | None]:
        """The node's results (None where it names none), known as far as possible."""
        inputs = [self.values[name] if name else None for name in node.input]
        present = [value for value in inputs if value is not None]
        types = self._inferred(node, present)
        read = [*present, *(self.values[name] for name in captured(node))]
        constant = all(value.constant for value in read) or operator(node) in BY_SHAPE
        results: list[Value | None] = []
        for name in node.output:
            if not name:
                results.append(None)
                continue
            value = Value(name, constant=constant)
            for type_ in (types.get(name), self.declared.get(name)):
                if type_ is not None and not value.is_sized:
                    self._typed(value, type_)
            self.values[name] = value
            results.append(value)
        self._fold(node, inputs, results)
        return results

    def check_stated(self) -> None:
        """Refuse a file that declares a shape which the rest of the model contradicts."""
        for stated in self.stated:
            value = self.values.get(stated.name)
            if value is None or stated.agrees(value.shape):
                continue
            raise SourceError(
                f"{self.source}: {stated.kind} {stated.name} is declared as {stated}, but the rest "
                f"of the model makes it {list(value.shape or ())}: correct one of the two"
            )

    def sized(self, value: Value, shape: tuple[int, ...], dtype: str) -> None:
        """Note shape and dtype of a value that only its lowering could tell."""
        onnx = onnx_module()
        element = next(name for name, ours in DTYPES.items() if ours == dtype)
        kind = onnx.TensorProto.DataType.Value(element)
        self._typed(value, onnx.helper.make_tensor_type_proto(kind, list(shape)))

    # -- parts -----------------------------------------------------------------------------------

    def _typed(self, value: Value, type_: Any) -> Value:
        """The value with what a TypeProto says of it; `dims` fill what it leaves open."""
        value.type_ = type_
        if not type_.HasField("tensor_type"):
            return value
        tensor = type_.tensor_type
        if tensor.elem_type:
            value.dtype = DTYPES.get(_element(tensor.elem_type))
        if not tensor.HasField("shape"):
            value.shape = self._given(value.name)
            return value
        sizes = [
            dim.dim_value
            if dim.HasField("dim_value")
            else self.dims.get(f"{value.name}.{position}", -1)
            for position, dim in enumerate(tensor.shape.dim)
        ]
        value.shape = tuple(sizes) if all(size >= 0 for size in sizes) else None
        if value.shape is not None and too_large(value.shape):
            raise SourceError(
                f"{self.source}: {value.name} of shape {sizes} has more than "
                f"{MAX_ELEMENTS:,} elements"
            )
        return value

    def _given(self, name: str) -> tuple[int, ...] | None:
        """The shape of a value of unknown rank, where `dims` give all of it: y.0, y.1, …"""
        sizes: list[int] = []
        while f"{name}.{len(sizes)}" in self.dims:
            sizes.append(self.dims[f"{name}.{len(sizes)}"])
        return tuple(sizes) or None

    def _array(self, tensor: Any) -> Any:
        try:
            return onnx_module().numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            reason = str(error).split("\n")[0]
            raise SourceError(
                f"{self.source}: tensor {tensor.name} is damaged ({reason})"
            ) from None

    def _inferred(self, node: Any, inputs: list[Value]) -> dict[str, Any]:
        """Types by ONNX's rule for the node alone, given the data of its small inputs."""
        onnx = onnx_module()
        domain = standard(node.domain)
        if any(value.type_ is None for value in inputs) or domain not in self.opsets:
            return {}
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets[domain], domain)
        except onnx.defs.SchemaError:
            return {}
        self._complete(node, schema)
        outer = self.values if any(a.HasField("g") for a in node.attribute) else {}
        types = {
            value.name: self._type(value) for value in (*outer.values(), *inputs) if value.type_
        }
        data = {
            value.name: onnx.numpy_helper.from_array(value.array, value.name)
            for value in inputs
            if value.array is not None
        }
        try:
            return onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version,
            )  # fmt: skip
        except onnx.checker.ValidationError:  # stricter than the files that exporters write
            return {}
        except onnx.shape_inference.InferenceError as error:
            if outer:  # what a branch or loop body says may disagree with itself; ONNX permits it
                return {}
            reason = str(error).split("\n")[0].split("] ")[-1]
            shapes = ", ".join(str(list(v.shape)) for v in inputs if v.shape is not None)
            raise SourceError(f"{self.source}: {node_title(node)} of {shapes}: {reason}") from None

    def _complete(self, node: Any, schema: Any) -> None:
        """Refuse a node without an input or an attribute that its operator cannot do without."""
        title = f"{self.source}: {node_title(node)}"
        if len(node.input) < schema.min_input:
            several = "s" if schema.min_input > 1 else ""
            raise SourceError(
                f"{title} has {len(node.input)} inputs, and needs {schema.min_input} input{several}"
            )
        given = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items():
            if attribute.required and name not in given:
                raise SourceError(f"{title} has no attribute {name}, which it needs")

    def _type(self, value: Value) -> Any:
        """The value's TypeProto with its dimensions as they are known by now."""
        onnx = onnx_module()
        if value.shape is None or not value.type_.HasField("tensor_type"):
            return value.type_
        element = value.type_.tensor_type.elem_type
        return onnx.helper.make_tensor_type_proto(element, list(value.shape))

    def _fold(self, node: Any, inputs: list[Value | None], results: list[Value | None]) -> None:
        """Data of the results where the operator is foldable and the inputs' data is known."""
        if operator(node) not in FOLDABLE or any(self._too_big(node, value) for value in results):
            return
        if node.op_type in BY_SHAPE:
            (source,) = inputs
            if source is None or source.shape is None or results[0] is None:
                return
            arrays = [_stand_in(source.shape)]
        elif any(value is not None and value.array is None for value in inputs):
            return
        else:
            arrays = [value.array if value is not None else None for value in inputs]
        for value, array in zip(results, self._evaluate(node, arrays), strict=False):
            if value is None or array is None:
                continue
            onnx = onnx_module()
            value.array = array
            element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            self._typed(value, onnx.helper.make_tensor_type_proto(element, list(array.shape)))

    def _too_big(self, node: Any, value: Value | None) -> bool:
        if value is None or node.op_type in DATA_DEPENDENT:
            return False
        return value.shape is None or prod(value.shape) > VALUE_LIMIT

    def _evaluate(self, node: Any, arrays: list[Any]) -> list[Any]:
        """The node's results by ONNX's reference evaluator, or none where it cannot tell."""
        import numpy as np

        onnx = onnx_module()
        names = {name: array for name, array in zip(node.input, arrays, strict=True) if name}
        graph = onnx.helper.make_graph(
            [node], "fold",
            [onnx.helper.make_empty_tensor_value_info(name) for name in names],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )  # fmt: skip
        model = onnx.helper.make_model(
            graph, opset_imports=list(self.model.opset_import), ir_version=self.model.ir_version
        )
        try:
            with np.errstate(all="ignore"):
                evaluator = import_module("onnx.reference").ReferenceEvaluator(model)
                found = iter(evaluator.run(None, names))
        except Exception:  # whatever the reference lacks stays unknown, and is a weight
            return []
        return [np.asarray(next(found)) if name else None for name in node.output]


def element_name(type_: Any) -> str:
    """What a value that the IR cannot hold holds: `elements of type STRING`."""
    if type_ is None or not type_.HasField("tensor_type"):
        return "no tensor"
    return f"elements of type {_element(type_.tensor_type.elem_type)}"


def _element(number: int) -> str:
    """ONNX's name of an element type; its number where this onnx does not know it."""
    kinds: Any = onnx_module().TensorProto.DataType
    return kinds.Name(number) if number in kinds.values() else f"number {number}"


def has_data(tensor: Any) -> bool:
    """Whether a TensorProto carries its own data (an empty tensor does)."""
    fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    return (
        not prod(tensor.dims)
        or tensor.HasField("raw_data")
        or any(getattr(tensor, f) for f in fields)
    )


def _stand_in(shape: tuple[int, ...]) -> Any:
    """An array of the shape that takes no memory."""
    import numpy as np

    return np.broadcast_to(np.float32(0), shape)
