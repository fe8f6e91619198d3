"""Quantises the constant weights of an ONNX model's matrix products to few bits, in blocks with a
scale each (MatMulNBits).

Owns how floats become codes. Scales are chosen block by block, as those of a few candidates that
leave the least squared error.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from aot.ir.types import Array

MICROSOFT = "com.microsoft"
# shares of the scale at which a block's largest weight is the largest code
CANDIDATES = {4: tuple(np.linspace(0.7, 1.1, 17)), 8: (1.0,)}
_CHUNK = 1 << 20  # weights that are looked at together


def encoded(weights: Array, block: int, bits: int) -> tuple[Array, Array]:
    """(codes, scales) of weights f32[k, columns], in MatMulNBits' format.

    Args:
        bits: 4 or 8.

    Returns:
        Codes u8[columns, blocks, bytes of a block], and scales f32[columns, blocks]; the zero point
        is half of the codes' range.
    """
    k, columns = weights.shape
    count = -(-k // block)
    padded = np.pad(weights.T.astype(np.float32), ((0, 0), (0, count * block - k)))
    whole = padded.reshape(-1, block)
    step = max(1, _CHUNK // block)
    parts = [_encoded(whole[n : n + step], bits) for n in range(0, len(whole), step)]
    codes = np.concatenate([part[0] for part in parts]).reshape(columns, count, block)
    if bits == 4:
        codes = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return codes, np.concatenate([part[1] for part in parts]).reshape(columns, count)


def _encoded(blocks: Array, bits: int) -> tuple[Array, Array]:
    """(codes, scales) of blocks [n, block]."""
    half = 1 << (bits - 1)
    place = np.abs(blocks).argmax(axis=1)[:, None]
    largest = np.take_along_axis(blocks, place, axis=1)
    base = np.where(largest == 0, np.float32(1), largest / np.float32(-half))
    best = np.full(len(blocks), np.inf, np.float32)
    codes, scales = np.zeros(blocks.shape, np.uint8), np.ones(len(blocks), np.float32)
    for share in CANDIDATES[bits]:
        scale = (base * np.float32(share)).astype(np.float32)
        found = np.clip(np.rint(blocks / scale), -half, half - 1)
        error = np.square(blocks - found * scale).sum(axis=1)
        better = error < best
        best[better], scales[better] = error[better], scale[better, 0]
        codes[better] = (found[better] + half).astype(np.uint8)
    return codes, scales


def quantise_weights(
    model: Any, bits: int, block: int, skipped: Collection[str], *, rounds_activations: bool
) -> int:
    """Quantises the products of an ONNX model that have constant weights; returns their number.

    Args:
        model: an `onnx.ModelProto`, which is changed.
        skipped: names of nodes that stay as they are.
        rounds_activations: whether engines may round activations to 8 bits by blocks.
    """
    from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    known = {info.name for info in (*graph.value_info, *graph.output)}
    nodes, found = [], 0
    stored: dict[tuple[str, bool], tuple[str, str, int, int]] = {}
    for node in graph.node:
        weights = None if node.name in skipped else _weights_of(node, constants, block)
        if weights is None:
            nodes.append(node)
            continue
        name, is_turned = weights
        if weights not in stored:
            array = numpy_helper.to_array(constants[name])
            array = array.T if is_turned else array
            codes, scales = encoded(array, block, bits)
            names = f"{name}_codes_{len(stored)}", f"{name}_scales_{len(stored)}"
            graph.initializer.extend(
                numpy_helper.from_array(a, n) for a, n in zip((codes, scales), names, strict=True)
            )
            stored[weights] = (*names, *array.shape)
        codes_name, scales_name, k, columns = stored[weights]
        addend = node.input[2] if len(node.input) > 2 else ""
        output = f"{node.output[0]}_product" if addend else node.output[0]
        attrs: dict[str, Any] = {"K": k, "N": columns, "bits": bits, "block_size": block}
        if rounds_activations:
            attrs["accuracy_level"] = 4
        operands = [node.input[0], codes_name, scales_name]
        nodes.append(
            helper.make_node(
                "MatMulNBits", operands, [output], node.name, domain=MICROSOFT, **attrs
            )
        )
        if addend:
            nodes.append(helper.make_node("Add", [output, addend], [node.output[0]]))
        found += 1
        if node.output[0] not in known:  # no one infers what an operator of another domain gives
            info = ValueInfoProto(name=node.output[0])
            info.type.tensor_type.elem_type = TensorProto.FLOAT
            graph.value_info.append(info)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input} | {o.name for o in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    if not any(opset.domain == MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return found


def _weights_of(node: Any, constants: Any, block: int) -> tuple[str, bool] | None:
    """(name, whether they are transposed) of the constant f32 weights of a product; None if it has
    none."""
    from onnx import TensorProto

    if node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx"):
        return None
    attrs = {a.name: a.f if a.name in ("alpha", "beta") else a.i for a in node.attribute}
    is_plain = attrs.get("alpha", 1) == 1 == attrs.get("beta", 1) and not attrs.get("transA", 0)
    tensor = constants.get(node.input[1])
    if tensor is None or not is_plain or len(tensor.dims) != 2:
        return None
    is_turned = bool(attrs.get("transB", 0))
    k = tensor.dims[1 if is_turned else 0]
    if tensor.data_type != TensorProto.FLOAT or k < block:
        return None
    return node.input[1], is_turned
