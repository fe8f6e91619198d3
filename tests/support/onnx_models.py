"""Tiny ONNX models for tests, and their comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from aot.frontends.onnx import import_onnx
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run

Array = np.ndarray[Any, Any]
IR_VERSION = 8
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """One node and what it is fed.

    Attributes:
        inputs: operand arrays in order; None where absent.
        constant: positions of operands that are initializers.
        outputs: how many outputs are asked for; 0 skips one.
        domain: of the op; "" is ONNX's.
        is_symbolic: whether the op can be imported with input dims unknown.
    """

    op: str
    inputs: Sequence[Array | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    constant: Sequence[int] = ()
    outputs: int = 1
    is_symbolic: bool = True
    name: str = ""
    domain: str = ""

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}{'-' + self.name if self.name else ''}"

    def model(self, *, symbolic: bool = False) -> onnx.ModelProto:
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(self.inputs)]
        node = helper.make_node(
            self.op,
            names,
            [f"y{i}" for i in range(self.outputs)],
            name="the node",
            domain=self.domain,
            **self.attrs,
        )
        infos, initializers = [], []
        for number, (name, array) in enumerate(zip(names, self.inputs, strict=True)):
            if array is None:
                continue
            if number in self.constant:
                initializers.append(numpy_helper.from_array(array, name))
                continue
            # an extent of 1 may be there to broadcast, which an unknown dim never is
            shape = [
                f"{name}_s{d}" if symbolic and n != 1 else n for d, n in enumerate(array.shape)
            ]
            infos.append(
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), shape
                )
            )
        return graph_model(
            [node], infos, [f"y{i}" for i in range(self.outputs)], initializers, self.opset
        )

    def feeds(self) -> dict[str, Array]:
        return {
            f"x{i}": a
            for i, a in enumerate(self.inputs)
            if a is not None and i not in self.constant
        }


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    """A model; outputs are names, whose types are left to whoever runs it."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        list(inputs),
        [onnx.ValueInfoProto(name=name) for name in outputs],
        list(initializers),
    )
    domains = sorted({node.domain for node in nodes} - {""})
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def tensor_info(
    name: str, shape: Sequence[int | str | None], elem_type: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, list(shape))


def ort_run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(a) for a in session.run(None, dict(feeds))]


def our_run(function: Function, feeds: Mapping[str, Array]) -> list[Array]:
    return run(function, {v.name: feeds[v.name] for v in function.inputs})


def assert_same(found: Sequence[Array], expected: Sequence[Array]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if theirs.dtype.kind != "f":
            np.testing.assert_array_equal(ours, theirs)
            continue
        finite = theirs[np.isfinite(theirs)]
        scale = float(np.max(np.abs(finite), initial=0.0))
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * scale)


def compare(model: onnx.ModelProto, feeds: Mapping[str, Array], **options: Any) -> Function:
    """Imports, runs on the reference interpreter, and compares with ONNX Runtime."""
    function = import_onnx(model, **options).main
    assert_same(our_run(function, feeds), ort_run(model, feeds))
    return function
