"""Makes the one model file that every compiler and runtime gets, its inputs and reference outputs.

    prepare.py WORK [NAME ...] [--quantize]

NAME is of samples/model_zoo.py, which fetches it by package name; all of them by default. For each
model this writes to WORK/models

    NAME.onnx             static shapes, opset 13 or later, constants and shape arithmetic folded
    NAME.inI.npy, .bin    input I, with and without the .npy header
    NAME.outI.npy         reference output I: the unfolded model, ONNX Runtime, no optimizations

and models.json with names, shapes, sizes and multiply-accumulate counts. With --quantize it also
writes NAME.int8, the same model as ONNX Runtime quantises it: static QDQ, weights int8 by channel
(by tensor where it fails at that), activations uint8, calibrated on inputs of other seeds; for
models of matrix products alone NAME.dynamic, their dynamic quantisation. Their reference outputs
are those of ONNX Runtime without optimizations on the quantised model itself.

Run it with WORK/venvs/ort/bin/python: it needs numpy, onnx, onnxslim and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxslim
from onnx import AttributeProto, ModelProto, NodeProto, shape_inference, version_converter
from onnxruntime import quantization

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "samples"))
import model_zoo

SEED = 1
CALIBRATION_SEEDS = (2, 3, 4, 5)
MIN_OPSET = 13
IR_VERSIONS = (8, 9)  # what all peers read

Shapes = dict[str, list[int]]


def fix_shapes(model: ModelProto, shapes: Shapes) -> ModelProto:
    """Write `shapes` into the inputs, drop what was inferred from other shapes, infer anew."""
    for value in model.graph.input:
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            del dims[:]
            for size in shapes[value.name]:
                dims.add().dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    low, high = IR_VERSIONS
    model.ir_version = max(low, min(model.ir_version, high))
    if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < MIN_OPSET:
        model = version_converter.convert_version(model, MIN_OPSET)
    used = {node.domain for node in model.graph.node} | {"", "ai.onnx"}
    for opset in [o for o in model.opset_import if o.domain not in used]:
        model.opset_import.remove(opset)
    return shape_inference.infer_shapes(model, data_prop=True)


def fold(model: ModelProto) -> ModelProto:
    ir_version = model.ir_version
    folded = onnxslim.slim(model)
    folded.ir_version = ir_version
    return shape_inference.infer_shapes(folded, data_prop=True)


def tensor_shapes(model: ModelProto) -> Shapes:
    graph = model.graph
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*graph.value_info, *graph.input, *graph.output)
    }
    shapes |= {t.name: list(t.dims) for t in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.type == AttributeProto.TENSOR:
                shapes[node.output[0]] = list(attribute.t.dims)
    return shapes


def node_macs(node: NodeProto, shapes: Shapes) -> int:
    """Multiply-accumulates of one node; KeyError where a shape is not known."""
    match node.op_type:
        case "Conv":
            return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
        case "ConvTranspose":
            return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])
        case "MatMul":
            return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        case "Gemm":
            is_transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return math.prod(shapes[node.output[0]]) * shapes[node.input[1]][is_transposed]
        case "LSTM":
            steps, batch = shapes[node.input[0]][:2]
            weights = math.prod(shapes[node.input[1]]) + math.prod(shapes[node.input[2]])
            return steps * batch * weights
    return 0


def macs(model: ModelProto) -> int:
    shapes, total = tensor_shapes(model), 0
    for node in model.graph.node:
        try:
            total += node_macs(node, shapes)
        except KeyError as name:
            print(f"  not counted: {node.op_type}, no shape for {name}")
    return total


def run_unoptimized(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def describe(tensors: dict[str, np.ndarray]) -> list[dict[str, object]]:
    return [{"name": n, "shape": list(t.shape), "dtype": str(t.dtype)} for n, t in tensors.items()]


def write_tensors(
    out: Path, name: str, feeds: dict[str, np.ndarray], reference: dict[str, np.ndarray]
) -> None:
    for i, tensor in enumerate(feeds.values()):
        np.save(out / f"{name}.in{i}.npy", tensor)
        tensor.tofile(out / f"{name}.in{i}.bin")
    for i, tensor in enumerate(reference.values()):
        np.save(out / f"{name}.out{i}.npy", tensor)


def entry(
    path: Path, feeds: dict[str, np.ndarray], reference: dict[str, np.ndarray], count: int
) -> dict[str, object]:
    """What models.json says of the model at `path`."""
    return {
        "nodes": len(onnx.load(path).graph.node),
        "bytes": path.stat().st_size,
        "macs": count,
        "inputs": describe(feeds),
        "outputs": describe(reference),
    }


def feeds_of(name: str, seed: int) -> dict[str, np.ndarray]:
    return {k: np.ascontiguousarray(v) for k, v in model_zoo.feeds(name, seed).items()}


def prepare(name: str, out: Path) -> dict[str, object]:
    """Writes the files of one model; returns its entry in models.json."""
    feeds = feeds_of(name, SEED)
    source = onnx.load(model_zoo.fetch(name))
    static = fix_shapes(source, {k: list(v.shape) for k, v in feeds.items()})
    static_path, path = out / f"{name}.static.onnx", out / f"{name}.onnx"
    onnx.save(static, static_path)
    folded = fold(static)
    onnx.save(folded, path)

    reference = run_unoptimized(static_path, feeds)
    static_path.unlink()
    if list(run_unoptimized(path, feeds)) != list(reference):
        raise ValueError("folding changed the names or the order of the outputs")
    write_tensors(out, name, feeds, reference)
    return entry(path, feeds, reference, macs(folded))


class Calibration(quantization.CalibrationDataReader):
    """Inputs of a model by other seeds than the one that is measured."""

    def __init__(self, name: str) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = (
            feeds_of(name, seed) for seed in CALIBRATION_SEEDS
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantize(name: str, out: Path, count: int) -> dict[str, dict[str, object]]:
    """Writes the quantised forms of a prepared model; returns their entries in models.json."""
    source = out / f"{name}.onnx"
    kinds = {node.op_type for node in onnx.load(source).graph.node}
    forms = {f"{name}.int8": quantize_static}
    if "MatMul" in kinds and not kinds & {"Conv", "ConvTranspose"}:
        forms[f"{name}.dynamic"] = quantize_dynamic
    feeds = feeds_of(name, SEED)
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.onnx"
        quantization.quant_pre_process(source, plain, skip_symbolic_shape=True)
        for form, make in forms.items():
            path = out / f"{form}.onnx"
            try:
                make(name, plain, path, per_channel=True)
                reference = run_unoptimized(path, feeds)
            except Exception as error:  # where weights are reshaped by the model, for one
                print(f"{form}: one scale a weight, by channel fails: {str(error)[:120]}")
                make(name, plain, path, per_channel=False)
                reference = run_unoptimized(path, feeds)
            write_tensors(out, form, feeds, reference)
            found[form] = entry(path, feeds, reference, count)
    return found


def quantize_static(name: str, plain: Path, path: Path, *, per_channel: bool) -> None:
    """QDQ, calibrated; writes `path`."""
    quantization.quantize_static(
        plain,
        path,
        Calibration(name),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )


def quantize_dynamic(name: str, plain: Path, path: Path, *, per_channel: bool) -> None:
    """Activations quantised as they come; writes `path`."""
    quantization.quantize_dynamic(
        plain, path, per_channel=per_channel, weight_type=quantization.QuantType.QInt8
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("models", nargs="*", default=list(model_zoo.MODELS))
    parser.add_argument("--quantize", action="store_true", help="int8 forms as well")
    args = parser.parse_args()
    for unknown in sorted(set(args.models) - set(model_zoo.MODELS)):
        parser.error(f"no such model: {unknown}; python samples/model_zoo.py lists them")

    out = args.work / "models"
    out.mkdir(parents=True, exist_ok=True)
    index_path = out / "models.json"
    index = json.loads(index_path.read_text()) if index_path.exists() else {}
    failed = []
    for name in args.models:
        made = name  # what is being made
        try:
            index[name] = prepare(name, out)
            index_path.write_text(json.dumps(index, indent=1) + "\n")
            print(f"{name}: {index[name]['nodes']} nodes, {index[name]['macs'] / 1e9:.4f} GMAC")
            if args.quantize:
                made = f"{name}, quantised"
                index |= quantize(name, out, index[name]["macs"])
                index_path.write_text(json.dumps(index, indent=1) + "\n")
        except Exception as error:  # one model that cannot be read must not cost the others
            print(f"{made}: left out: {str(error)[:300]}")
            failed.append(made)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
