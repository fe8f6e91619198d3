"""Models whose inputs and outputs are sequences or optionals, as models of tensors: each tensor
gets a name of its own, as users are told to give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

DataSet = tuple[Sequence[Any], Sequence[Any]]


def has_lists(model: Any) -> bool:
    """Whether an input or output is a sequence or an optional."""
    kinds = {i.type.WhichOneof("value") for i in (*model.graph.input, *model.graph.output)}
    return bool(kinds & {"sequence_type", "optional_type"})


def as_tensors(model: Any, data: DataSet) -> tuple[Any, DataSet]:
    """`model` and its inputs and outputs, where a sequence as long as that of `data` is made of
    tensors, and its tensors and its length are results."""
    made = _Tensors(model)
    inputs, outputs = data
    for value, given in zip(model.graph.input, inputs, strict=True):
        is_nothing = isinstance(given, list) and any(x is None for x in given)
        made.read(value, None if is_nothing else given)
    for value, wanted in zip(model.graph.output, outputs, strict=True):
        made.write(value, wanted)
    return made.model, (made.given, made.wanted)


class _Tensors:
    """The model so far, and what its inputs and outputs are."""

    def __init__(self, model: Any) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.before: list[Any] = []
        self.given: list[Any] = []
        self.wanted: list[Any] = []
        del self.model.graph.input[:]
        del self.model.graph.output[:]

    def read(self, value: Any, given: Any) -> None:
        """An input, of tensors that become inputs."""
        graph, kind = self.model.graph, value.type.WhichOneof("value")
        if kind == "tensor_type":
            graph.input.append(value)
            self.given.append(given)
            return
        nodes = self._made(value.name, value.type, given)
        for number, node in enumerate(nodes):
            graph.node.insert(len(self.before) + number, node)
        self.before += nodes

    def _made(self, name: str, type: Any, given: Any) -> list[Any]:
        """The nodes that make a sequence, an optional or a tensor."""
        kind = type.WhichOneof("value")
        if kind == "tensor_type":
            dims = [d.dim_value for d in type.tensor_type.shape.dim] or list(given.shape)
            element = type.tensor_type.elem_type
            self.model.graph.input.append(helper.make_tensor_value_info(name, element, dims))
            self.given.append(given)
            return []
        if kind == "optional_type":
            inner = type.optional_type.elem_type
            if given is None:
                return [helper.make_node("Optional", [], [name], type=inner)]
            nodes = self._made(f"{name}_held", inner, given)
            return [*nodes, helper.make_node("Optional", [f"{name}_held"], [name])]
        element = type.sequence_type.elem_type.tensor_type.elem_type
        if not given:
            return [helper.make_node("SequenceEmpty", [], [name], dtype=element)]
        names = [f"{name}_{number}" for number in range(len(given))]
        for own, tensor in zip(names, given, strict=True):
            self.model.graph.input.append(helper.make_tensor_value_info(own, element, tensor.shape))
            self.given.append(tensor)
        return [helper.make_node("SequenceConstruct", names, [name])]

    def write(self, value: Any, wanted: Any) -> None:
        """An output, whose tensors become outputs."""
        graph, type = self.model.graph, value.type
        name = value.name
        if type.WhichOneof("value") == "optional_type":
            type = type.optional_type.elem_type
            graph.node.append(helper.make_node("OptionalHasElement", [name], [f"{name}_is"]))
            self._result(f"{name}_is", TensorProto.BOOL, wanted is not None)
            if wanted is None:
                return
            graph.node.append(helper.make_node("OptionalGetElement", [name], [f"{name}_held"]))
            name = f"{name}_held"
        if type.WhichOneof("value") == "tensor_type":
            self._result(name, type.tensor_type.elem_type, wanted)
            return
        element = type.sequence_type.elem_type.tensor_type.elem_type
        graph.node.append(helper.make_node("SequenceLength", [name], [f"{name}_length"]))
        self._result(f"{name}_length", TensorProto.INT64, len(wanted))
        for number, tensor in enumerate(wanted):
            at = helper.make_tensor(f"{name}_at_{number}", TensorProto.INT64, [], [number])
            graph.initializer.append(at)
            own = f"{name}_{number}"
            graph.node.append(helper.make_node("SequenceAt", [name, at.name], [own]))
            self._result(own, element, tensor)

    def _result(self, name: str, element: int, wanted: Any) -> None:
        dtype = helper.tensor_dtype_to_np_dtype(element)
        self.model.graph.output.append(helper.make_tensor_value_info(name, element, None))
        self.wanted.append(np.asarray(wanted, dtype))
