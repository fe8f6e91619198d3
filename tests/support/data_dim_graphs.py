"""Random ONNX graphs of nodes whose results' shapes data decide, and of what may follow them.

Every graph has inputs x f32[ROWS, COLUMNS], k i64[1], which is 0 to MOST, and c bool[]. Values that
are passed on are matrices f32[n, w], where data decide n, which may be 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.support.control_models import Body, always, loop_inputs
from tests.support.generated_models import Graph
from tests.support.onnx_models import Array, tensor_info

ROWS, COLUMNS, MOST = 7, 6, 3
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
INPUTS = [
    tensor_info("x", [ROWS, COLUMNS]),
    tensor_info("k", [1], INT),
    tensor_info("c", [], TensorProto.BOOL),
]
MOST_ROWS = 60  # of a matrix; larger ones are not concatenated or repeated


class DataGraph:
    """A graph as it is made.

    Attributes:
        kinds: of the parts that it has, as given or at random.
        bounds: the largest extents of nodes whose extents no rule bounds.
        made: matrices: names, columns and the most rows.
    """

    def __init__(self, seed: int, size: int, kinds: Sequence[str] = ()) -> None:
        self.random = random.Random(seed)
        self.g = Graph(np.random.RandomState(seed))
        self.bounds: dict[str, int] = {}
        self.kinds: list[str] = []
        self.made: list[tuple[str, int, int]] = [("x", COLUMNS, ROWS)]
        self.others: list[str] = []
        while len(self.kinds) < size:
            kind = self.random.choice(list(MAKERS))
            source = self.random.choice(self.made[-3:])
            if kinds:
                kind, source = kinds[len(self.kinds)], self.made[-1]
            self.kinds.append(kind)
            found = MAKERS[kind](self, *source)
            if isinstance(found, tuple):
                self.made.append(found)
            elif found:
                self.others.append(found)

    def model(self) -> onnx.ModelProto:
        """The last matrices, and what else was made, as outputs."""
        names = [name for name, _, _ in self.made[-2:] if name != "x"] + self.others[-4:]
        outputs = []
        for number, name in enumerate(dict.fromkeys(names)):
            self.g.named(name, f"y{number}")
            outputs.append(f"y{number}")
        if not outputs:
            self.g.named("x", "y0")
            outputs = ["y0"]
        self.bounds_of(outputs)
        used = {name for node in self.g.nodes for name in _names(node)}
        return self.g.model([i for i in INPUTS if i.name in used], outputs, opset=18)

    def bounds_of(self, outputs: list[str]) -> None:
        """Keeps the bounds of those nodes that compute an extent: all are of k, which the first
        makes one. In front of it a Pad computes extents of its own, as its numbers may be negative,
        and so does a loop."""
        needed = set(outputs)
        for node in reversed(self.g.nodes):
            if not needed.isdisjoint(node.output):
                needed.update(_names(node))
        nodes = [n for n in self.g.nodes if n.name in self.bounds and n.name in needed]
        kept: dict[str, str] = {}
        for node in nodes:
            if node.op_type == "Pad" or node.op_type not in kept.values():
                kept[node.name] = node.op_type
            if node.op_type not in ("Loop", "Pad"):
                break
        self.bounds = dict.fromkeys(kept, MOST)

    # parts

    def bounded(self, name: str) -> str:
        """The result of a node that has as many rows, or times, as k says."""
        self.bounds[name] = MOST
        return name

    def column(self, x: str) -> str:
        """The first column: f32[n]."""
        found: str = self.g.op("Gather", x, self.g.constant(0), axis=1)
        return found

    def above(self, x: str) -> str:
        least = self.g.constant(self.random.choice([-0.4, 0.0, 0.4]), np.float32)
        found: str = self.g.op("Greater", self.column(x), least)
        return found

    def count(self, x: str) -> str:
        """How many rows: i64[1]."""
        found: str = self.g.op("Shape", x, start=0, end=1)
        return found

    def at_most(self, count: str, most: int) -> str:
        found: str = self.g.op("Min", count, self.g.constant([most]))
        return found


def _names(node: onnx.NodeProto) -> list[str]:
    inner = [name for a in node.attribute for n in a.g.node for name in _names(n)]
    return [*node.input, *inner]


Made = tuple[str, int, int] | str | None


def chosen_rows(d: DataGraph, x: str, w: int, n: int) -> Made:
    at = d.g.op("Reshape", d.g.op("NonZero", d.above(x)), d.g.constant([-1]))
    return d.g.op("Gather", x, at, axis=0), w, n


def rows_by_nd(d: DataGraph, x: str, w: int, n: int) -> Made:
    at = d.g.op("Transpose", d.g.op("NonZero", d.above(x)), perm=[1, 0])
    return d.g.op("GatherND", x, at), w, n


def compressed(d: DataGraph, x: str, w: int, n: int) -> Made:
    return d.g.op("Compress", x, d.above(x), axis=0), w, n


def compressed_columns(d: DataGraph, x: str, w: int, n: int) -> Made:
    chosen = d.g.op("Greater", "k", d.g.constant(list(range(w))))
    return d.g.op("ReduceSum", d.g.op("Compress", x, chosen, axis=1), d.g.constant([1]))


def best(d: DataGraph, x: str, w: int, n: int) -> Made:
    k = d.g.op("Min", "k", d.count(x))
    largest = d.random.randint(0, 1)
    at = d.g.op("TopK", d.column(x), k, outputs=2, axis=0, largest=largest)[1]
    return d.g.op("Gather", x, at, axis=0), w, min(n, MOST)


def none_of(d: DataGraph, x: str, w: int, n: int) -> Made:
    k = d.g.op("Sub", "k", "k")
    return d.g.op("TopK", x, k, outputs=2, axis=0)[0], w, 0


def sliced(d: DataGraph, x: str, w: int, n: int) -> Made:
    begin, end = ("k", d.g.constant([d.random.choice([-1, 4, 99])]))
    if d.random.random() < 0.5:
        begin, end = d.g.constant([d.random.choice([0, -3, 1])]), "k"
    step = d.random.choice([1, 2])
    return d.g.op("Slice", x, begin, end, d.g.constant([0]), d.g.constant([step])), w, n


def reversed_rows(d: DataGraph, x: str, w: int, n: int) -> Made:
    step = d.random.choice([-1, -2])
    end = d.g.constant([-(2**62)]) if d.random.random() < 0.5 else "k"
    begin = d.g.constant([-1])
    return d.g.op("Slice", x, begin, end, d.g.constant([0]), d.g.constant([step])), w, n


def padded(d: DataGraph, x: str, w: int, n: int) -> Made:
    zero = d.g.constant([0])
    less = d.g.op("Neg", d.at_most(d.count(x), 1))
    pads = d.g.op("Concat", "k", zero, less if d.random.random() < 0.5 else zero, zero, axis=0)
    value = d.g.constant(0.5, np.float32)
    return d.bounded(d.g.op("Pad", x, pads, value)), w, n + MOST


def tiled(d: DataGraph, x: str, w: int, n: int) -> Made:
    if n * MOST > MOST_ROWS:
        return None
    counts = d.g.op("Concat", "k", d.g.constant([1]), axis=0)
    return d.bounded(d.g.op("Tile", x, counts)), w, n * MOST


def expanded(d: DataGraph, x: str, w: int, n: int) -> Made:
    total = d.g.op("ReduceSum", x, d.g.constant([0]), keepdims=1)
    shape = d.g.op("Concat", "k", d.g.constant([w]), axis=0)
    return d.bounded(d.g.op("Expand", total, shape)), w, MOST


def filled(d: DataGraph, x: str, w: int, n: int) -> Made:
    shape = d.g.op("Concat", d.count(x), d.g.constant([2]), axis=0)
    ones = d.g.op("Add", d.g.op("ConstantOfShape", shape), d.g.constant(1, np.float32))
    return d.g.op("Concat", x, ones, axis=1), w + 2, n


def joined(d: DataGraph, x: str, w: int, n: int) -> Made:
    same = [v for v in d.made if v[1] == w]
    y, _, m = d.random.choice(same)
    return (d.g.op("Concat", x, y, x, axis=0), w, 2 * n + m) if 2 * n + m <= MOST_ROWS else None


def numbered(d: DataGraph, x: str, w: int, n: int) -> Made:
    scalar = d.g.op("Squeeze", d.count(x))
    rows = d.g.op("Range", d.g.constant(0), scalar, d.g.constant(1))
    turned = d.g.op("Sub", d.g.op("Sub", scalar, d.g.constant(1)), rows)
    return d.g.op("Gather", x, turned, axis=0), w, n


def distinct(d: DataGraph, x: str, w: int, n: int) -> Made:
    whole = d.g.op("Round", x)
    return d.g.op("Unique", whole, axis=0, sorted=d.random.randint(0, 1)), w, n


def distinct_values(d: DataGraph, x: str, w: int, n: int) -> Made:
    found = d.g.op("Unique", d.g.op("Cast", d.column(x), to=INT), outputs=4)
    hot = d.g.op("OneHot", found[2], d.g.constant(9), d.g.constant([0, 1], np.float32), axis=0)
    return d.g.op("MatMul", hot, x), w, 9


def one_hot(d: DataGraph, x: str, w: int, n: int) -> Made:
    """As many rows as k says, each the sum of some rows of x."""
    group = d.g.op("Mod", d.g.op("Cast", d.g.op("Abs", d.column(x)), to=INT), d.g.constant(2))
    hot = d.g.op("OneHot", group, "k", d.g.constant([0, 1], np.float32), axis=0)
    return d.g.op("MatMul", d.bounded(hot), x), w, MOST


def scattered(d: DataGraph, x: str, w: int, n: int) -> Made:
    at = d.g.op("Transpose", d.g.op("NonZero", d.above(x)), perm=[1, 0])
    found = d.g.op("GatherND", x, at)
    return d.g.op("ScatterND", x, at, d.g.op("Tanh", found), reduction="add"), w, n


def suppressed(d: DataGraph, x: str, w: int, n: int) -> Made:
    if w < 4:
        return None
    boxes = d.g.op("Slice", x, d.g.constant([0]), d.g.constant([4]), d.g.constant([1]))
    boxes = d.g.op("Unsqueeze", boxes, d.g.constant([0]))
    scores = d.g.op("Unsqueeze", d.column(x), d.g.constant([0, 1]))
    limit = d.g.op("Mul", "k", d.g.constant([2]))
    least = [d.g.constant([v], np.float32) for v in (0.3, -0.5)]
    chosen = d.g.op("NonMaxSuppression", boxes, scores, limit, *least)
    at = d.g.op("Gather", chosen, d.g.constant(2), axis=1)
    return d.g.op("Gather", x, at, axis=0), w, n


def chosen_branch(d: DataGraph, x: str, w: int, n: int) -> Made:
    then, other = Body(f"t{len(d.kinds)}_"), Body(f"e{len(d.kinds)}_")
    at = then.op("Reshape", then.op("NonZero", d.above(x)), then.constant([-1]))
    made = then.op("Gather", x, at, axis=0)
    rest = other.op("Concat", x, other.op("Neg", x), axis=0)
    if 2 * n > MOST_ROWS:
        rest = other.op("Neg", x)
    branches = {"then_branch": then.graph([], [made]), "else_branch": other.graph([], [rest])}
    return d.g.op("If", "c", **branches), w, 2 * n


def grown(d: DataGraph, x: str, w: int, n: int) -> Made:
    """A row more in each of k runs, of which a branch makes a part."""
    if n + MOST > MOST_ROWS:
        return None
    b = Body(f"b{len(d.kinds)}_")
    carried = f"carried_{len(d.kinds)}"
    then, other = Body(f"{b.prefix}t_"), Body(f"{b.prefix}e_")
    total = b.op("ReduceSum", x, b.constant([0]), keepdims=1)
    row = b.op(
        "If",
        "c",
        then_branch=then.graph([], [then.op("Tanh", total)]),
        else_branch=other.graph([], [other.op("Mul", total, other.constant(0.1, np.float32))]),
    )
    more = b.op("Concat", carried, row, axis=0)
    body = b.graph(loop_inputs(onnx.ValueInfoProto(name=carried)), [always(b), more])
    trips = d.g.op("Squeeze", "k")
    return d.bounded(d.g.op("Loop", trips, "", x, body=body)), w, n + MOST


def halves(d: DataGraph, x: str, w: int, n: int) -> Made:
    if w % 2 or 2 * n > MOST_ROWS:
        return None
    return d.g.op("Reshape", x, d.g.constant([-1, w // 2])), w // 2, 2 * n


def parts(d: DataGraph, x: str, w: int, n: int) -> Made:
    first = d.g.op("Min", "k", d.count(x))
    sizes = d.g.op("Concat", first, d.g.op("Sub", d.count(x), first), axis=0)
    one, two = d.g.op("Split", x, sizes, outputs=2, axis=0)
    return d.g.op("Concat", two, one, axis=0), w, n


def dense(d: DataGraph, x: str, w: int, n: int) -> Made:
    to = d.random.choice([3, 4, 6])
    return d.g.op("MatMul", x, d.g.weight(w, to)), to, n


def gram(d: DataGraph, x: str, w: int, n: int) -> Made:
    """A product over the rows, of which there may be none."""
    product = d.g.op("MatMul", d.g.op("Transpose", x, perm=[1, 0]), x)
    return d.g.op("Tanh", product), w, w


def convolved(d: DataGraph, x: str, w: int, n: int) -> Made:
    batch = d.g.op("Unsqueeze", x, d.g.constant([1]))
    made = d.g.op("Conv", batch, d.g.weight(2, 1, 3), pads=[1, 1])
    made = d.g.op("MaxPool", made, kernel_shape=[2], strides=[2])
    return d.g.op("ReduceMean", made, d.g.constant([1]), keepdims=0), w // 2, n


def pooled(d: DataGraph, x: str, w: int, n: int) -> Made:
    """Regions of an image, as many as there are rows."""
    if w < 4:
        return None
    boxes = d.g.op("Slice", x, d.g.constant([0]), d.g.constant([4]), d.g.constant([1]))
    image = d.g.weight(1, 1, 5, 5)
    zeros = d.g.op("Cast", d.g.op("Mul", d.column(x), d.g.constant(0, np.float32)), to=INT)
    attrs = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    made = d.g.op("RoiAlign", image, d.g.op("Abs", boxes), zeros, **attrs)
    return d.g.op("Reshape", made, d.g.constant([-1, 4])), 4, n


UNARY = [
    lambda g, x: g.op("Softmax", x, axis=0),
    lambda g, x: g.op("Softmax", x, axis=1),
    lambda g, x: g.op("LogSoftmax", x, axis=-1),
    lambda g, x: g.op("CumSum", g.op("Tanh", x), g.constant(0)),
    lambda g, x: g.op("Mul", g.op("Sigmoid", x), x),
    lambda g, x: g.op("Clip", x, g.constant(-1, np.float32), g.constant(1, np.float32)),
    lambda g, x: g.op("Where", g.op("Less", x, g.constant(0, np.float32)), g.op("Neg", x), x),
    lambda g, x: g.op("Sub", x, g.op("ReduceSum", g.op("Tanh", x), g.constant([0]), keepdims=1)),
    lambda g, x: g.op("Sub", x, g.op("ReduceMax", x, g.constant([1]), keepdims=1)),
]


def mapped(d: DataGraph, x: str, w: int, n: int) -> Made:
    return d.random.choice(UNARY)(d.g, x), w, n


REDUCTIONS = ["ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"]


def reduced(d: DataGraph, x: str, w: int, n: int) -> Made:
    axes = d.g.constant(d.random.choice([[0], [1], [0, 1]]))
    kind = d.random.choice(REDUCTIONS)
    return d.g.op(kind, d.g.op("Tanh", x), axes, keepdims=d.random.randint(0, 1))


def counted(d: DataGraph, x: str, w: int, n: int) -> Made:
    return d.g.op(d.random.choice(["Shape", "Size"]), x)


def greatest(d: DataGraph, x: str, w: int, n: int) -> Made:
    return d.g.op("ArgMax", x, axis=1, keepdims=0)


Maker = Callable[[DataGraph, str, int, int], Made]
MAKERS: dict[str, Maker] = {
    f.__name__: f
    for f in (
        chosen_rows, rows_by_nd, compressed, compressed_columns, best, none_of, sliced,
        reversed_rows, padded, tiled, expanded, filled, joined, numbered, distinct,
        distinct_values, one_hot, scattered, suppressed, chosen_branch, grown, halves, parts,
        dense, gram, convolved, pooled, mapped, reduced, counted, greatest,
    )
}  # fmt: skip


def feeds(seed: int) -> dict[str, Array]:
    """Inputs: some of which nothing is chosen, or all."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, COLUMNS)) + (0, 0, 5, -5)[seed % 4]
    return {
        "x": x.astype(np.float32),
        "k": np.array([seed % (MOST + 1) if seed < 8 else rng.integers(0, MOST + 1)]),
        "c": np.array(bool(rng.integers(0, 2))),
    }


def given(model: Any, seed: int) -> dict[str, Array]:
    names = {i.name for i in model.graph.input}
    return {name: a for name, a in feeds(seed).items() if name in names}
