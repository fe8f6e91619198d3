"""Random models of nested If, Loop and Scan over small tensors, the same for the same seed.

Values are f32[2, 4] and stay small; branches and bodies read values around them, give them on as
they are, swap what they carry, and stack rows. The judge is the evaluator below: ONNX Runtime 1.31
gets some of these wrong, in ways that change with its memory options, and ONNX's own reference
does not run others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.control_models import Body, loop_inputs
from tests.support.generated_models import Graph
from tests.support.onnx_models import tensor_info

Array = np.ndarray[Any, Any]

MOST_DEPTH = 3
SHAPE = [2, 4]
UNARY = ("Tanh", "Sin", "Neg", "Abs", "Sigmoid")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class _Maker:
    """Makes the nodes of graphs in graphs."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)
        self.bodies = 0

    def body(self) -> Body:
        self.bodies += 1
        return Body(f"g{self.bodies}_", seed=self.bodies)

    def pick(self, values: list[str]) -> str:
        # the latest more often, so that graphs are deep rather than wide
        spread = min(int(self.random.exponential(2.0)), len(values) - 1)
        return values[len(values) - 1 - spread]

    def fill(self, g: Graph, around: list[str], depth: int, size: int) -> list[str]:
        """Adds nodes to `g`; gives the values that are seen in the end."""
        seen = list(around)
        for _ in range(size):
            kind = self.random.choice(
                ("unary", "binary", "weight", "if", "loop", "scan"),
                p=(0.25, 0.3, 0.1, 0.12, 0.13, 0.1),
            )
            if depth >= MOST_DEPTH or kind in ("unary", "binary", "weight"):
                seen.append(self.plain(g, str(kind), seen))
            else:
                seen += getattr(self, f"make_{kind}")(g, seen, depth)
        return seen

    def plain(self, g: Graph, kind: str, seen: list[str]) -> str:
        x = self.pick(seen)
        if kind == "binary":
            x = g.op(str(self.random.choice(BINARY)), x, self.pick(seen))
        elif kind == "weight":
            x = g.op("Add", x, g.weight(*SHAPE, scale=0.5))
        return str(g.op(str(self.random.choice(UNARY)), x))

    def truth(self, g: Graph, x: str) -> str:
        """A bool that data decide."""
        limit = g.constant(float(self.random.uniform(-1, 1)), np.float32)
        return str(g.op("Less", g.op("ReduceSum", x, keepdims=0), limit))

    def given_on(self, b: Body, seen: list[str], around: list[str]) -> str:
        """What a graph gives: made in it, or a value around it."""
        value = self.pick(seen)
        return b.op("Identity", value) if value in around else value

    def make_if(self, g: Graph, seen: list[str], depth: int) -> list[str]:
        count, graphs = self.random.randint(1, 4), []
        for _ in range(2):
            b = self.body()
            made = self.fill(b, seen, depth + 1, self.random.randint(0, 4))
            results = [self.given_on(b, made, seen) for _ in range(count)]
            graphs.append(b.graph([], results))
        found = g.op(
            "If",
            self.truth(g, self.pick(seen)),
            outputs=int(count),
            then_branch=graphs[0],
            else_branch=graphs[1],
        )
        return [found] if count == 1 else list(found)

    def make_loop(self, g: Graph, seen: list[str], depth: int) -> list[str]:
        carried, rows = int(self.random.randint(1, 4)), int(self.random.randint(0, 3))
        b = self.body()
        names = [f"{b.prefix}in{n}" for n in range(carried)]
        number, going = f"{b.prefix}i", f"{b.prefix}going"
        infos = loop_inputs(*(tensor_info(name, SHAPE) for name in names))
        infos[0].name, infos[1].name = number, going
        around = [*seen, *names]
        made = self.fill(b, around, depth + 1, self.random.randint(1, 4))
        if self.random.rand() < 0.5:
            step = b.op("Cast", number, to=1)
            made.append(b.op("Sin", b.op("Add", self.pick(made), step)))
        results = [self.given_on(b, made, around) for _ in range(carried)]
        stacked = [b.op("Identity", self.pick(made)) for _ in range(rows)]
        by_data = rows == 0 and self.random.rand() < 0.5
        goes_on = self.truth(b, self.pick(made)) if by_data else b.op("Identity", going)
        body = b.graph(infos, [goes_on, *results, *stacked])
        trips = int(self.random.randint(0 if rows == 0 else 1, 5))
        starts = self.truth(g, self.pick(seen)) if by_data and self.random.rand() < 0.5 else ""
        first = [self.pick(seen) for _ in range(carried)]
        found = g.op("Loop", g.constant(trips), starts, *first, outputs=carried + rows, body=body)
        values = [found] if carried + rows == 1 else list(found)
        flat = [g.op("ReduceMax", v, keepdims=0, axes=[0]) for v in values[carried:]]
        return [*values[:carried], *flat]

    def make_scan(self, g: Graph, seen: list[str], depth: int) -> list[str]:
        b = self.body()
        names = [f"{b.prefix}{what}" for what in ("state", "row", "other")]
        around = [*seen, names[0]]
        row = b.op("Mul", b.op("Unsqueeze", names[1], b.constant([1])), names[2])
        made = [*self.fill(b, around, depth + 1, self.random.randint(0, 3)), row]
        mixed = b.op("Tanh", b.op("Add", row, self.pick(made)))
        body = b.graph(
            [tensor_info(names[0], SHAPE), tensor_info(names[1], [2]), tensor_info(names[2], [4])],
            [mixed, b.op("Identity", self.pick(made))],
        )
        flags = [int(flag) for flag in self.random.randint(0, 2, 3)]
        last, rows = g.op(
            "Scan",
            self.pick(seen),
            self.pick(seen),
            g.op("Concat", self.pick(seen), self.pick(seen), axis=0),
            outputs=2,
            body=body,
            num_scan_inputs=2,
            scan_input_axes=[1, 0],
            scan_input_directions=flags[:2],
            scan_output_directions=flags[2:],
        )
        return [last, g.op("ReduceMin", rows, keepdims=0, axes=[0])]


def random_control(seed: int) -> onnx.ModelProto:
    """x f32[2, 4], y f32[2, 4] -> three outputs."""
    maker = _Maker(seed)
    g = Graph(np.random.RandomState(seed))
    seen = maker.fill(g, ["x", "y"], 0, 8)
    names = [f"out{n}" for n in range(3)]
    for value, name in zip(seen[-3:], names, strict=True):
        g.named(value, name)
    return g.model([tensor_info("x", SHAPE), tensor_info("y", SHAPE)], names)


# what they mean


def evaluate(graph: onnx.GraphProto, given: Mapping[str, Array]) -> list[Array]:
    """A graph's outputs by ONNX's text, for the operators that are used here."""
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer} | dict(given)
    for node in graph.node:
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        operands = [values[name] if name else None for name in node.input]
        found = _WITH_GRAPHS.get(node.op_type)
        results = (
            [np.asarray(_PLAIN[node.op_type](attrs, *operands))]
            if found is None
            else found(attrs, operands, values)
        )
        values |= dict(zip(node.output, results, strict=False))
    return [values[output.name] for output in graph.output]


def _if(attrs: Any, operands: Any, around: Mapping[str, Array]) -> list[Array]:
    return evaluate(attrs["then_branch" if operands[0] else "else_branch"], around)


def _loop(attrs: Any, operands: Any, around: Mapping[str, Array]) -> list[Array]:
    (trips, condition, *carried), body = operands, attrs["body"]
    names, count = [i.name for i in body.input], len(carried)
    goes_on, rows, number = condition is None or bool(condition), [], 0
    while goes_on and number < trips:
        start = [np.array(number), np.array(True)]
        given = dict(zip(names, [*start, *carried], strict=True))
        goes_on, *made = evaluate(body, {**around, **given})
        carried, number = made[:count], number + 1
        rows.append(made[count:])
    return [*carried, *map(np.stack, zip(*rows, strict=True))]


def _scan(attrs: Any, operands: Any, around: Mapping[str, Array]) -> list[Array]:
    kept, body = len(operands) - attrs["num_scan_inputs"], attrs["body"]
    names, carried, rows = [i.name for i in body.input], operands[:kept], []
    scanned = [
        np.moveaxis(x, axis, 0)[:: -1 if is_back else 1]
        for x, axis, is_back in zip(
            operands[kept:], attrs["scan_input_axes"], attrs["scan_input_directions"], strict=True
        )
    ]
    for row in zip(*scanned, strict=True):
        given = dict(zip(names, [*carried, *row], strict=True))
        made = evaluate(body, {**around, **given})
        carried = made[:kept]
        rows.append(made[kept:])
    stacked = [np.stack(r) for r in zip(*rows, strict=True)]
    backs = attrs["scan_output_directions"]
    return [*carried, *(r[::-1] if b else r for r, b in zip(stacked, backs, strict=True))]


_WITH_GRAPHS = {"If": _if, "Loop": _loop, "Scan": _scan}
_PLAIN: dict[str, Callable[..., Any]] = {
    "Tanh": lambda a, x: np.tanh(x),
    "Sin": lambda a, x: np.sin(x),
    "Neg": lambda a, x: -x,
    "Abs": lambda a, x: np.abs(x),
    "Sigmoid": lambda a, x: 1 / (1 + np.exp(-x)),
    "Add": lambda a, x, y: x + y,
    "Sub": lambda a, x, y: x - y,
    "Mul": lambda a, x, y: x * y,
    "Max": lambda a, x, y: np.maximum(x, y),
    "Min": lambda a, x, y: np.minimum(x, y),
    "Less": lambda a, x, y: x < y,
    "Identity": lambda a, x: x,
    "Cast": lambda a, x: x.astype(np.float32),
    "Unsqueeze": lambda a, x, axes: np.expand_dims(x, tuple(axes)),
    "Concat": lambda a, *xs: np.concatenate(xs, a["axis"]),
    "ReduceSum": lambda a, x: x.sum(),
    "ReduceMax": lambda a, x: x.max(tuple(a["axes"])),
    "ReduceMin": lambda a, x: x.min(tuple(a["axes"])),
}
