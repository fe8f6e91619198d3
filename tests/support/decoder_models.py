"""Decoders whose results' lengths data decide, as exporters write them: loops that end early, and
carry lists or tensors that grow. Fixed seeds, small.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.support.control_models import BEAMS, I64, VOCABULARY, WIDTH, Body, loop_inputs
from tests.support.generated_models import Graph
from tests.support.onnx_models import Array, tensor_info

LONGEST = 12  # tokens of a result
END = 3


def greedy_list(*, is_ragged: bool = False, is_open: bool = False) -> onnx.ModelProto:
    """start i64[1], hidden f32[1, WIDTH] -> the tokens of a list in a row, how many there are in
    the list, the last of them. The list gets a tensor in some runs; token END ends the loop.

    Args:
        is_ragged: tensors of the list have 1 to 3 times the token.
        is_open: the loop has no trip count.
    """
    g = Graph(np.random.RandomState(21))
    embedding = g.weight(VOCABULARY, WIDTH, scale=1.0)
    weight, output = g.weight(WIDTH, WIDTH, scale=0.5), g.weight(WIDTH, VOCABULARY, scale=0.9)
    b = Body("b_")
    known = b.op("Add", b.op("Gather", embedding, "token", axis=0), "hidden")
    hidden = b.op("Tanh", b.op("MatMul", known, weight))
    token = b.op("ArgMax", b.op("MatMul", hidden, output), axis=1, keepdims=0)
    item = token
    if is_ragged:
        times = b.op("Add", b.op("Mod", "i", b.constant([3])), b.constant([1]))
        item = b.op("Tile", token, times)
    then, other = Body("t_"), Body("e_")
    tokens = b.op(
        "If",
        b.op("Squeeze", b.op("Not", b.op("Equal", token, b.constant([5])))),
        then_branch=then.graph([], [then.op("SequenceInsert", "tokens", item)]),
        else_branch=other.graph([], [other.op("Identity", "tokens")]),
    )
    goes_on = b.op("Not", b.op("Squeeze", b.op("Equal", token, b.constant([END]))))
    if is_open:
        goes_on = b.op("And", goes_on, b.op("Less", "i", b.constant(LONGEST - 1)))
    body = b.graph(
        loop_inputs(
            tensor_info("token", [1], I64),
            tensor_info("hidden", [1, WIDTH]),
            onnx.ValueInfoProto(name="tokens"),
        ),
        [goes_on, token, hidden, tokens],
    )
    first = g.op("SequenceConstruct", "start")
    trips = "" if is_open else g.constant(LONGEST)
    found = g.op("Loop", trips, "", "start", "hidden0", first, outputs=3, body=body)
    g.named(g.op("ConcatFromSequence", found[2], axis=0), "row")
    g.named(g.op("SequenceLength", found[2]), "count")
    g.named(g.op("SequenceAt", found[2], g.constant(-1)), "last")
    inputs = [tensor_info("start", [1], I64), tensor_info("hidden0", [1, WIDTH])]
    return g.model(inputs, ["row", "count", "last"])


def early_beam_search() -> onnx.ModelProto:
    """hidden f32[BEAMS, WIDTH], scores f32[BEAMS] -> the beams' tokens i64[BEAMS, n], scores
    f32[BEAMS], and the best score of each run f32[n]. It ends when the best beam does."""
    g = Graph(np.random.RandomState(22))
    embedding, output = g.weight(VOCABULARY, WIDTH), g.weight(WIDTH, VOCABULARY, scale=0.7)
    weight = g.weight(WIDTH, WIDTH, scale=0.5)
    b = Body("b_")
    chances = b.op("LogSoftmax", b.op("MatMul", "hidden", output), axis=-1)
    sums = b.op("Add", chances, b.op("Unsqueeze", "scores", b.constant([1])))
    flat = b.op("Reshape", sums, b.constant([BEAMS * VOCABULARY]))
    scores, chosen = b.op("TopK", flat, b.constant([BEAMS]), outputs=2, axis=0)
    beam = b.op("Div", chosen, b.constant(VOCABULARY))
    token = b.op("Mod", chosen, b.constant(VOCABULARY))
    column = b.op("Unsqueeze", token, b.constant([1]))
    tokens = b.op("Concat", b.op("Gather", "tokens", beam, axis=0), column, axis=1)
    moved = b.op("Gather", "hidden", beam, axis=0)
    told = b.op("Add", b.op("MatMul", moved, weight), b.op("Gather", embedding, token, axis=0))
    hidden = b.op("Tanh", told)
    best = b.op("Gather", token, b.constant(0), axis=0)
    goes_on = b.op("Not", b.op("Equal", best, b.constant(END)))
    row = b.op("Gather", scores, b.constant(0), axis=0)
    body = b.graph(
        loop_inputs(
            tensor_info("hidden", [BEAMS, WIDTH]),
            tensor_info("scores", [BEAMS]),
            onnx.ValueInfoProto(name="tokens"),
        ),
        [goes_on, hidden, scores, tokens, row],
    )
    empty = g.constant(np.zeros((BEAMS, 0)))
    operands = [g.constant(LONGEST), "", "hidden0", "scores0", empty]
    found = g.op("Loop", *operands, outputs=4, body=body)
    for name, made in zip(("tokens", "scores_out", "best"), (found[2], found[1], found[3])):
        g.named(made, name)
    inputs = [tensor_info("hidden0", [BEAMS, WIDTH]), tensor_info("scores0", [BEAMS])]
    return g.model(inputs, ["tokens", "scores_out", "best"])


MODELS = {
    "beam search": (early_beam_search, {}),
    "greedy list": (greedy_list, {}),
    "greedy list of several shapes": (lambda: greedy_list(is_ragged=True), {"b_Add7_0": 3}),
    "greedy list without a trip count": (lambda: greedy_list(is_open=True), {"loop_1_0": LONGEST}),
}


def feeds(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Inputs drawn at random."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for info in model.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.INT64:
            found[info.name] = rng.integers(0, VOCABULARY, shape)
        else:
            found[info.name] = (rng.standard_normal(shape) * 2).astype(np.float32)
    return found
