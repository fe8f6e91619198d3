"""Detectors with NonMaxSuppression inside, and images and thresholds to run them on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import Array, ort_run

MOST, OVERLAP = 20, 0.45


def with_suppression(path: str, least: float) -> onnx.ModelProto:
    """YOLOv8, whose boxes are centres and sizes, behind which the best of each class are chosen:
    boxes f32[n, 4], their scores f32[n] and classes i64[n]."""
    model = onnx.load(path)
    graph = model.graph
    (output,) = graph.output
    make = helper.make_node

    def constant(name: str, value: Array) -> str:
        graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    zero, one, two, three, four, last = (
        constant(f"at {n}", np.array([n], np.int64)) for n in (0, 1, 2, 3, 4, 1 << 30)
    )
    limits = [
        constant("most", np.array([MOST], np.int64)),
        constant("overlap", np.array([OVERLAP], np.float32)),
        constant("least", np.array([least], np.float32)),
    ]
    graph.node.extend(
        [
            make("Slice", [output.name, zero, four, one], ["columns"]),
            make("Slice", [output.name, four, last, one], ["all_scores"]),
            make("Transpose", ["columns"], ["all_boxes"], perm=[0, 2, 1]),
            make(
                "NonMaxSuppression",
                ["all_boxes", "all_scores", *limits],
                ["selected"],
                "suppression",
                center_point_box=1,
            ),
            make("Slice", ["selected", two, three, one], ["box_column"]),
            make("Squeeze", ["box_column", one], ["box"]),
            make("Slice", ["selected", one, two, one], ["class_column"]),
            make("Squeeze", ["class_column", one], ["classes"]),
            make("Squeeze", ["all_boxes", zero], ["rows"]),
            make("Gather", ["rows", "box"], ["boxes"]),
            make("GatherND", ["all_scores", "selected"], ["scores"]),
        ]
    )
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in ("boxes", "scores", "classes"))
    return model


def with_threshold_as_input(model: onnx.ModelProto, least: float) -> onnx.ModelProto:
    """The model with an input `threshold` f32[1] in the place of each float constant that is
    `least` and that a NonMaxSuppression or a comparison of scores has."""
    graph = model.graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    found = 0
    for node in graph.node:
        if node.op_type not in ("NonMaxSuppression", "Greater"):
            continue
        for number, name in enumerate(node.input):
            array = arrays.get(name)
            if array is not None and array.dtype == np.float32 and np.isclose(array, least).all():
                node.input[number] = "threshold"
                found += 1
    assert found, f"no comparison with {least}"
    graph.input.append(helper.make_tensor_value_info("threshold", onnx.TensorProto.FLOAT, [1]))
    return model


def with_unit_outputs(
    model: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]
) -> onnx.ModelProto:
    """The model with weights by which each channel of its convolutions and dense layers has mean 1,
    or 0 at the end of its heads, and standard deviation 1 over inputs. Untrained detectors give all
    boxes one score, whose rounding alone says which are chosen; behind this, scores depend on what
    is in the image. With mean 0 inside of it, a deep network would multiply rounding errors."""
    graph = model.graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    values = [dict(feed) for feed in feeds]
    pending: list[onnx.NodeProto] = []
    last = set(last_layers(graph, LAYERS))
    for number, node in enumerate(graph.node):
        if node.op_type == "Identity" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
            continue
        pending.append(node)
        if node.op_type not in LAYERS or node.input[1] not in constants:
            continue
        made = [_run_nodes(model, pending, {**constants, **v})[node.output[0]] for v in values]
        columns = np.concatenate([np.moveaxis(m, 1, 0).reshape(m.shape[1], -1) for m in made], 1)
        means, deviations = columns.mean(1), columns.std(1)
        scales = 1 / np.where(deviations > 1e-30, deviations, 1)
        weight = constants[node.input[1]]
        is_turned = node.op_type == "Conv" or any(
            a.name == "transB" and a.i for a in node.attribute
        )
        axis = 0 if is_turned else 1
        shape = [-1 if d == axis else 1 for d in range(weight.ndim)]
        bias = constants[node.input[2]] if len(node.input) > 2 else np.zeros_like(means)
        changed = {
            f"weight {number}": weight * scales.reshape(shape),
            f"bias {number}": (bias - means) * scales + (node.output[0] not in last),
        }
        for name, array in changed.items():
            constants[name] = array.astype(np.float32)
            graph.initializer.append(numpy_helper.from_array(constants[name], name))
        node.input[:] = [node.input[0], *changed]
        for v in values:
            v.update(_run_nodes(model, pending, {**constants, **v}))
        pending = []
    return model


_CHOICES = ("If", "NonMaxSuppression", "NonZero", "TopK")


LAYERS = ("Conv", "Gemm")
SCORES = (*LAYERS, "Sigmoid", "Softmax")


def last_layers(
    graph: onnx.GraphProto, ops: Sequence[str] = SCORES, *, is_chosen: bool = True
) -> list[str]:
    """The results of nodes of some kinds that the outputs are computed from with no other such node
    between: in order, without `is_chosen` those in front of any choice."""
    used = {o.name for o in graph.output}
    found = []
    for node in reversed(graph.node):
        if used.isdisjoint(node.output):
            continue
        if node.op_type in ops:
            found.append(node.output[0])
        elif node.op_type != "Shape":
            used.update(_used(node))
    found.reverse()
    if is_chosen:
        return found
    first = next(n for n, node in enumerate(graph.node) if node.op_type in _CHOICES)
    early = {name for node in graph.node[:first] for name in node.output}
    return [name for name in found if name in early]


def behind(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """What the model computes of float tensors inside of it, which are inputs beside its own."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    used = {o.name for o in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if used.isdisjoint(node.output) or not set(names).isdisjoint(node.output):
            continue
        kept.append(node)
        used.update(_used(node))
    del part.graph.node[:]
    part.graph.node.extend(kept[::-1])
    for name in names:
        part.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    arrays = [t for t in part.graph.initializer if t.name in used]
    del part.graph.initializer[:]
    part.graph.initializer.extend(arrays)
    return part


def _run_nodes(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], values: Mapping[str, Array]
) -> dict[str, Array]:
    """What nodes of a model make of values that are known."""
    made = [name for node in nodes for name in node.output if name]
    used = dict.fromkeys(name for node in nodes for name in _used(node) if name in values)
    part = onnx.ModelProto()
    part.ir_version = model.ir_version
    part.opset_import.extend(model.opset_import)
    part.graph.name = "part"
    part.graph.node.extend(nodes)
    for name in used:
        array = values[name]
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        part.graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    found = ort_run(part, {name: values[name] for name in used})
    return dict(zip(made, found, strict=True))


def _used(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those inside of its blocks included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _used(inner)


def image(number: int, size: int) -> Array:
    """Noise, or a pattern with some noise, in which a detector sees a few things: f32[3, S, S]."""
    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[0:size, 0:size] / size
    found = rng.random((3, size, size)) * rng.choice([0, 0.1, 0.3, 1])
    if number % 3:
        waves = rng.uniform(2, 20, 2)
        found += 0.5 * (np.sin(columns * waves[0]) * np.cos(rows * waves[1]) > 0.2)
    return found.astype(np.float32)


def images() -> Iterator[Array]:
    """Noise, and patterns with some noise, of which the model finds a few things to be there."""
    rng = np.random.default_rng(2)
    rows, columns = np.mgrid[0:320, 0:320] / 320
    for number, scale in enumerate((0, 0.5, 1, 0.3, 0.2, 0.1)):
        found = rng.random((1, 3, 320, 320)) * scale
        if number > 2:
            found += 0.5 * (np.sin(columns * (3 + number)) * np.cos(rows * 2 * number) > 0.2)
        yield found.astype(np.float32)


def detections(outputs: Sequence[Array]) -> Array:
    """What a detector gives as rows, one for each thing found: f64[n, columns]."""
    columns = [a.reshape(len(a), math.prod(a.shape[1:])) for a in outputs]
    return np.concatenate(columns, axis=1, dtype=np.float64)


def unmatched(rows: Array, others: Array, tolerance: float) -> Array:
    """Those of `rows` that have no row of their own in `others`, whatever the order is: scores
    that are equal but for rounding have none."""
    is_free = np.ones(len(others), bool)
    alone = np.zeros(len(rows), bool)
    for number, row in enumerate(rows):
        gaps = (np.abs(others - row) / (1 + np.abs(row))).max(axis=1, initial=0)
        at = np.where(is_free, gaps, np.inf).argmin() if is_free.any() else -1
        alone[number] = at < 0 or gaps[at] > tolerance
        if not alone[number]:
            is_free[at] = False
    return rows[alone]
