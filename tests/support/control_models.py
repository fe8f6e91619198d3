"""Models with If, Loop and Scan as exporters write them: made here with fixed seeds, small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.generated_models import Graph
from tests.support.onnx_models import tensor_info

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Body(Graph):
    """Nodes of a graph inside a node; names are its own by a prefix, weights its own."""

    def __init__(self, prefix: str, seed: int = 5) -> None:
        super().__init__(np.random.RandomState(seed))
        self.prefix = prefix

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        names = [f"{self.prefix}{kind}{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attrs))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = super().constant(value, dtype)
        fresh = f"{self.prefix}{name}"
        self.weights[-1].name = fresh
        return fresh

    def graph(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[str]
    ) -> onnx.GraphProto:
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        return helper.make_graph(self.nodes, "body", list(inputs), infos, self.weights)


def loop_inputs(*carried: onnx.ValueInfoProto) -> list[onnx.ValueInfoProto]:
    return [tensor_info("i", [], I64), tensor_info("going", [], BOOL), *carried]


def always(body: Body) -> str:
    return str(body.op("Identity", "going"))


WIDTH, VOCABULARY, CAPACITY = 8, 11, 12


def greedy_decode(update: str) -> onnx.ModelProto:
    """start i64[1] -> tokens i64[CAPACITY], how many there are; ends after token 0.

    Args:
        update: how a token comes into the buffer: "ScatterElements", "ScatterND" or "Where".
    """
    g = Graph(np.random.RandomState(21))
    embedding = g.weight(VOCABULARY, WIDTH, scale=1.0)
    weight, output = g.weight(2 * WIDTH, WIDTH, scale=0.4), g.weight(WIDTH, VOCABULARY, scale=0.9)
    b = Body("b_")
    known = b.op("Gather", embedding, "token", axis=0)
    joined = b.op("Concat", known, "hidden", axis=1)
    hidden = b.op("Tanh", b.op("MatMul", joined, weight))
    token = b.op("ArgMax", b.op("MatMul", hidden, output), axis=1, keepdims=0)
    here = b.op("Unsqueeze", "i", b.constant([0]))
    if update == "ScatterElements":
        buffer = b.op("ScatterElements", "buffer", here, token, axis=0)
    elif update == "ScatterND":
        buffer = b.op("ScatterND", "buffer", b.op("Unsqueeze", here, b.constant([1])), token)
    else:
        places = b.constant(np.arange(CAPACITY))
        buffer = b.op("Where", b.op("Equal", places, here), token, "buffer")
    goes_on = b.op("Not", b.op("Squeeze", b.op("Equal", token, b.constant([0]))))
    count = b.op("Add", "i", b.constant(1))
    body = b.graph(
        loop_inputs(
            tensor_info("token", [1], I64),
            tensor_info("hidden", [1, WIDTH]),
            tensor_info("buffer", [CAPACITY], I64),
            tensor_info("count", [], I64),
        ),
        [goes_on, token, hidden, buffer, count],
    )
    start = [
        "start",
        g.constant(np.zeros((1, WIDTH)), np.float32),
        g.constant(np.full(CAPACITY, -1)),
        g.constant(0),
    ]
    found = g.op("Loop", g.constant(CAPACITY), "", *start, outputs=4, body=body)
    g.named(found[2], "tokens")
    g.named(found[3], "count")
    return g.model([tensor_info("start", [1], I64)], ["tokens", "count"])


BEAMS = 3


def beam_search() -> onnx.ModelProto:
    """hidden f32[BEAMS, WIDTH] and scores -> the beams' tokens i64[BEAMS, CAPACITY], scores."""
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
    kept = b.op("Gather", "tokens", beam, axis=0)
    is_here = b.op("Equal", b.constant([np.arange(CAPACITY)]), "i")
    tokens = b.op("Where", is_here, b.op("Unsqueeze", token, b.constant([1])), kept)
    before = b.op("MatMul", b.op("Gather", "hidden", beam, axis=0), weight)
    hidden = b.op("Tanh", b.op("Add", before, b.op("Gather", embedding, token, axis=0)))
    body = b.graph(
        loop_inputs(
            tensor_info("hidden", [BEAMS, WIDTH]),
            tensor_info("scores", [BEAMS]),
            tensor_info("tokens", [BEAMS, CAPACITY], I64),
        ),
        [always(b), hidden, scores, tokens, scores],
    )
    first = [g.op("Identity", "start"), "chance", g.constant(np.zeros((BEAMS, CAPACITY)))]
    found = g.op("Loop", g.constant(CAPACITY), "", *first, outputs=4, body=body)
    g.named(found[2], "tokens_at_last")
    g.named(found[1], "scores_at_last")
    g.named(found[3], "all_scores")
    infos = [tensor_info("start", [BEAMS, WIDTH]), tensor_info("chance", [BEAMS])]
    return g.model(infos, ["tokens_at_last", "scores_at_last", "all_scores"])


def scanned_rnn(**attrs: Any) -> onnx.ModelProto:
    """x f32[T, N, 3], gates f32[T, N, 4] over time -> the last state, all states; T and N open.

    Args:
        attrs: of the Scan: axes and directions.
    """
    g = Graph(np.random.RandomState(23))
    b = Body("b_")
    into, over = g.weight(3, 4, scale=0.6), g.weight(4, 4, scale=0.6)
    sums = b.op("Add", b.op("MatMul", "row", into), b.op("MatMul", "h", over))
    h = b.op("Mul", b.op("Tanh", sums), b.op("Sigmoid", "gate"))
    seen = b.op("Neg", h)
    body = b.graph(
        [tensor_info("h", ["N", 4]), tensor_info("row", ["N", 3]), tensor_info("gate", ["N", 4])],
        [h, seen],
    )
    last, all_ = g.op("Scan", "h0", "x", "gates", outputs=2, body=body, num_scan_inputs=2, **attrs)
    g.named(last, "last")
    g.named(all_, "all")
    along = attrs.get("scan_input_axes", (0, 0))
    x, gates = (["N", width] for width in (3, 4))
    x.insert(along[0], "T")
    gates.insert(along[1], "T")
    infos = [tensor_info("h0", ["N", 4]), tensor_info("x", x), tensor_info("gates", gates)]
    return g.model(infos, ["last", "all"])


def if_in_loop() -> onnx.ModelProto:
    """x f32[2, 3] -> twelve runs, each of which doubles or shrinks by what the sum says, and a
    second loop in one branch; with the sums of all runs."""
    g = Graph(np.random.RandomState(24))
    b = Body("b_")
    total = b.op("ReduceSum", "v", keepdims=0)
    is_large = b.op("Greater", b.op("Abs", total), b.constant(20, np.float32))
    then, other, inner = Body("t_"), Body("e_"), Body("n_")
    small = then.op("Mul", "v", then.constant(0.25, np.float32))
    step = inner.op("Add", "w", "x")
    body = inner.graph(
        [
            tensor_info("j", [], I64),
            tensor_info("on", [], BOOL),
            tensor_info("w", [2, 3]),
        ],
        [inner.op("Identity", "on"), step],
    )
    few = other.op("Loop", other.constant(2), "", "v", body=body)
    moved = b.op(
        "If", is_large, then_branch=then.graph([], [small]), else_branch=other.graph([], [few])
    )
    outer = b.graph(loop_inputs(tensor_info("v", [2, 3])), [always(b), moved, total])
    last, sums = g.op("Loop", g.constant(12), "", "x", outputs=2, body=outer)
    g.named(last, "last")
    g.named(sums, "sums")
    return g.model([tensor_info("x", [2, 3])], ["last", "sums"])


def if_on_data() -> onnx.ModelProto:
    """x f32[N, 4] -> two results of an If on the mean of x; branches see values around them, a
    weight of their own, and give what is there already."""
    g = Graph(np.random.RandomState(25))
    weight, early = g.weight(4, 4), g.op("Relu", "x")
    condition = g.op("Greater", g.op("ReduceMean", "x", keepdims=0), g.constant(0, np.float32))
    then, other = Body("t_", 6), Body("e_", 7)
    a = then.op("Add", then.op("MatMul", early, weight), then.weight(4))
    c = other.op("Softmax", other.op("MatMul", "x", other.weight(4, 4)), axis=-1)
    found = g.op(
        "If",
        condition,
        outputs=2,
        then_branch=then.graph([], [a, then.op("Identity", early)]),
        else_branch=other.graph([], [c, other.op("Identity", "x")]),
    )
    g.named(found[0], "a")
    g.named(g.op("Exp", found[1]), "b")
    return g.model([tensor_info("x", ["N", 4])], ["a", "b"])


def counted_while() -> onnx.ModelProto:
    """x f32[3], n i64[1] -> a loop with a trip count and a condition, both inputs decide; swapping
    what is carried, and carrying one value as it is."""
    g = Graph(np.random.RandomState(26))
    b = Body("b_")
    grown = b.op("Add", "p", b.op("Mul", "q", "scale"))
    goes_on = b.op("Less", b.op("ReduceMax", grown, keepdims=0), b.constant(50, np.float32))
    body = b.graph(
        loop_inputs(tensor_info("p", [3]), tensor_info("q", [3]), tensor_info("scale", [3])),
        [goes_on, "q", grown, "scale"],
    )
    starts = g.op("Less", g.op("ReduceMax", "x", keepdims=0), g.constant(50, np.float32))
    found = g.op("Loop", "n", starts, "x", "x", "s", outputs=3, body=body)
    for value, name in zip(found, ("p_out", "q_out", "s_out"), strict=True):
        g.named(value, name)
    infos = [tensor_info("x", [3]), tensor_info("s", [3]), tensor_info("n", [1], I64)]
    return g.model(infos, ["p_out", "q_out", "s_out"])


def if_on_shapes() -> onnx.ModelProto:
    """x f32[N, 3] -> what N decides, of one type in both branches."""
    g = Graph(np.random.RandomState(31))
    extent = g.op("Gather", g.op("Shape", "x"), g.constant(0), axis=0)
    then, other = Body("t_"), Body("e_")
    found = g.op(
        "If",
        g.op("Less", extent, g.constant(4)),
        then_branch=then.graph([], [then.op("Neg", "x")]),
        else_branch=other.graph([], [other.op("Exp", "x")]),
    )
    g.named(found, "y")
    return g.model([tensor_info("x", ["N", 3])], ["y"])


def sums_of_rows() -> onnx.ModelProto:
    """x f32[N, 3] -> a loop that runs N times and stacks a row a run."""
    g = Graph(np.random.RandomState(39))
    b = Body("b_")
    total = b.op("Add", "sum", b.op("Gather", "x", "i", axis=0))
    body = b.graph(loop_inputs(tensor_info("sum", [3])), [always(b), total, total])
    count = g.op("Gather", g.op("Shape", "x"), g.constant(0), axis=0)
    found = g.op("Loop", count, "", g.constant(np.zeros(3), np.float32), outputs=2, body=body)
    g.named(found[0], "sum_at_last")
    g.named(found[1], "sums")
    return g.model([tensor_info("x", ["N", 3])], ["sum_at_last", "sums"])


def doubled_until(limit: float) -> onnx.ModelProto:
    """x f32[2] -> doubled until an element reaches the limit; the trip count is the largest i64."""
    g = Graph(np.random.RandomState(38))
    b = Body("b_")
    twice = b.op("Add", "v", "v")
    goes_on = b.op("Less", b.op("ReduceMax", twice, keepdims=0), b.constant(limit, np.float32))
    body = b.graph(loop_inputs(tensor_info("v", [2])), [goes_on, twice])
    most = g.constant(np.iinfo(np.int64).max)
    g.named(g.op("Loop", most, g.constant(True, np.bool_), "x", body=body), "y")
    return g.model([tensor_info("x", [2])], ["y"])


def growing_list(trips: int | str) -> onnx.ModelProto:
    """x f32[1, 4] -> rows appended to what is carried, whose shape changes from run to run.

    Args:
        trips: how often, or the name of an input that says it.
    """
    g = Graph(np.random.RandomState(27))
    b = Body("b_")
    row = b.op("ReduceSum", "rows", b.constant([0]), keepdims=1)
    rows = b.op("Concat", "rows", row, axis=0)
    body = b.graph(loop_inputs(tensor_info("rows", ["R", 4])), [always(b), rows, row])
    count = trips if isinstance(trips, str) else g.constant(trips)
    found = g.op("Loop", count, "", "x", outputs=2, body=body)
    g.named(found[0], "rows_at_last")
    g.named(found[1], "seen")
    infos = [tensor_info("x", [1, 4])]
    if isinstance(trips, str):
        infos.append(tensor_info(trips, [], I64))
    return g.model(infos, ["rows_at_last", "seen"])


def _f(*shape: int, seed: int = 3) -> Array:
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(np.float32)


def _scan_feeds(*extents: tuple[int, int], axes: tuple[int, int] = (0, 0)) -> tuple[Feeds, ...]:
    return tuple(
        {
            "h0": _f(n, 4),
            "x": np.moveaxis(_f(t, n, 3, seed=t), 0, axes[0]).copy(),
            "gates": np.moveaxis(_f(t, n, 4, seed=n), 0, axes[1]).copy(),
        }
        for t, n in extents
    )


@dataclass(frozen=True)
class Controlled:
    """Attributes:
    runs: inputs that one compiled file must take one after the other.
    op: an op that the imported function must have; "" for one without control flow.
    """

    model: Callable[[], onnx.ModelProto]
    runs: tuple[Feeds, ...]
    op: str = "loop"
    input_shapes: dict[str, Any] = field(default_factory=dict)


def _decode_runs() -> tuple[Feeds, ...]:
    return tuple({"start": np.array([n])} for n in range(1, VOCABULARY))


def _while_runs() -> tuple[Feeds, ...]:
    scale = np.array([1, 0.5, 0.25], np.float32)
    return tuple(
        {"x": np.full(3, start, np.float32), "s": scale, "n": np.array([count])}
        for start, count in ((1, 0), (1, 1), (1, 2), (1, 5), (2, 100), (60, 5), (3, -2))
    )


CONTROLLED = {
    **{
        f"greedy_{update}": Controlled(lambda update=update: greedy_decode(update), _decode_runs())
        for update in ("ScatterElements", "ScatterND", "Where")
    },
    "beam_search": Controlled(
        beam_search,
        tuple({"start": _f(BEAMS, WIDTH, seed=n), "chance": _f(BEAMS, seed=n)} for n in (4, 5)),
    ),
    "scan": Controlled(scanned_rnn, _scan_feeds((5, 2), (1, 3), (9, 1))),
    "scan_reverse": Controlled(
        lambda: scanned_rnn(scan_input_directions=[1, 0], scan_output_directions=[1]),
        _scan_feeds((5, 2), (1, 3)),
    ),
    "scan_axes": Controlled(
        lambda: scanned_rnn(
            scan_input_axes=[1, 2], scan_output_axes=[-1], scan_input_directions=[1, 1]
        ),
        _scan_feeds((5, 2), (4, 1), axes=(1, 2)),
    ),
    "scan_known": Controlled(
        scanned_rnn, _scan_feeds((5, 2)), input_shapes={"x": (5, 2, 3), "gates": (5, 2, 4)}
    ),
    "if_in_loop": Controlled(if_in_loop, ({"x": _f(2, 3)}, {"x": 9 * _f(2, 3, seed=8)})),
    "if_on_data": Controlled(
        if_on_data, ({"x": _f(3, 4) + 1}, {"x": _f(3, 4) - 1}, {"x": _f(1, 4)}), "if"
    ),
    "if_on_shapes": Controlled(if_on_shapes, tuple({"x": _f(n, 3)} for n in (1, 5, 3, 4)), "if"),
    "counted_while": Controlled(counted_while, _while_runs()),
    "sums_of_rows": Controlled(sums_of_rows, tuple({"x": _f(n, 3)} for n in (4, 1, 7, 0))),
    "doubled_until": Controlled(
        lambda: doubled_until(9),
        tuple({"x": np.array(x, np.float32)} for x in ([1, -1], [8, 0], [100, 1])),
    ),
    "growing_list": Controlled(lambda: growing_list(5), ({"x": _f(1, 4)},), ""),
}
