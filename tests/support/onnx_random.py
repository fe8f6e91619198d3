"""Random ONNX models: small graphs of layers that hypothesis chooses, whose shapes ONNX infers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, shape_inference

from tests.support.onnx_models import IR_VERSION, Array

OPSET = 18
MOST_ELEMENTS = 4000
Draw = Any
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@dataclass
class RandomModel:
    """A graph that grows node by node.

    Attributes:
        types: element type and shape of each value, in the order of their making.
    """

    draw: Draw
    types: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    random: np.random.RandomState = field(default_factory=lambda: np.random.RandomState(0))

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def constant(self, array: Array) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.uniform(-1, 1, shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def value(self, rank: int | None = None, least: int = 0) -> str | None:
        """A float tensor of some rank."""
        found = [
            name
            for name, (kind, shape) in self.types.items()
            if kind == FLOAT and rank in (None, len(shape)) and len(shape) >= least
        ]
        return self.one_of(*found[::-1]) if found else None

    def shape(self, name: str) -> tuple[int, ...]:
        return self.types[name][1]

    def axis(self, name: str) -> int:
        rank = len(self.shape(name))
        return self.integer(-rank, rank - 1)

    def axes(self, name: str) -> list[int]:
        rank = len(self.shape(name))
        return sorted(self.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank)))

    def add(self, op: str, *operands: str, count: int = 1, **attrs: Any) -> None:
        """A node, if ONNX says that its results have shapes and these are small."""
        names = [f"v{len(self.nodes)}_{n}" for n in range(count)]
        node = helper.make_node(op, operands, names, **attrs)
        try:
            inferred = shape_inference.infer_shapes(
                self._model([*self.nodes, node], names), strict_mode=True, data_prop=True
            )
        except shape_inference.InferenceError:
            return
        found: dict[str, tuple[int, tuple[int, ...]]] = {}
        for info in (*inferred.graph.output, *inferred.graph.value_info):
            tensor = info.type.tensor_type
            dims = tensor.shape.dim
            if info.name in names and tensor.HasField("shape"):
                if not all(d.HasField("dim_value") and d.dim_value > 0 for d in dims):
                    return
                found[info.name] = tensor.elem_type, tuple(d.dim_value for d in dims)
        if set(found) != set(names) or any(
            np.prod(shape, dtype=np.int64) > MOST_ELEMENTS for _, shape in found.values()
        ):
            return
        self.nodes.append(node)
        self.types |= found

    def _model(self, nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(n, FLOAT, shape) for n, shape in self.inputs.items()]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(nodes, "random", infos, results, self.initializers)
        return helper.make_model(
            graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )

    def model(self) -> onnx.ModelProto:
        """The model, which gives whatever no node reads."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        return self._model(self.nodes, [n for n in made if n not in read] or made[-1:])


Layer = Callable[[RandomModel], None]
LAYERS: dict[str, Layer] = {}


def layer(build: Layer) -> Layer:
    LAYERS[build.__name__] = build
    return build


UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Erf", "Softplus", "Softsign", "HardSwish"),
    *("Elu", "Selu", "LeakyRelu", "Celu", "HardSigmoid", "Mish", "Sin", "Cos", "Floor", "Ceil"),
    *("Round", "Sign", "Identity", "ThresholdedRelu"),
)


@layer
def unary(m: RandomModel) -> None:
    if x := m.value():
        m.add(m.one_of(*UNARY), x)


@layer
def binary(m: RandomModel) -> None:
    """With a value of its own shape or another, or with a constant that broadcasts."""
    if not (x := m.value()):
        return
    shape = m.shape(x)
    other = m.value()
    if m.integer(0, 1):
        kept = m.integer(0, len(shape))
        some = [n if m.integer(0, 1) else 1 for n in shape[len(shape) - kept :]]
        other = m.weight(*some)
    pair = [x, other] if m.integer(0, 1) else [other, x]
    m.add(m.one_of("Add", "Sub", "Mul", "Max", "Min"), *pair)


@layer
def guarded(m: RandomModel) -> None:
    """Functions that are defined on some numbers only."""
    if x := m.value():
        m.add("Abs", x)
        positive = m.nodes[-1].output[0]
        m.add("Add", positive, m.constant(np.float32(0.5)))
        positive = m.nodes[-1].output[0]
        op = m.one_of("Sqrt", "Log", "Reciprocal", "Div", "Pow")
        more = {"Div": [x, positive], "Pow": [positive, m.constant(np.float32(1.5))]}
        m.add(op, *more.get(op, [positive]))


@layer
def choice(m: RandomModel) -> None:
    if x := m.value():
        m.add(m.one_of("Greater", "Less", "GreaterOrEqual"), x, m.constant(np.float32(0.1)))
        m.add("Where", m.nodes[-1].output[0], x, m.constant(np.float32(-0.25)))


@layer
def convolution(m: RandomModel) -> None:
    rank = m.one_of(3, 4, 4, 5)
    if not (x := m.value(rank)):
        return
    channels, *space = m.shape(x)[1:]
    groups = m.one_of(1, 1, channels)
    out = groups * m.integer(1, 3)
    kernel = [m.integer(1, min(3, n)) for n in space]
    attrs: dict[str, Any] = {"strides": [m.integer(1, 2) for _ in space], "group": groups}
    if m.integer(0, 2) == 0:
        attrs["auto_pad"] = m.one_of("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attrs["pads"] = [m.integer(0, k - 1) for k in kernel * 2]
        attrs["dilations"] = [m.integer(1, 2) for _ in space]
    operands = [x, m.weight(out, channels // groups, *kernel)]
    m.add("Conv", *operands, *([m.weight(out)] if m.integer(0, 1) else []), **attrs)


@layer
def transposed_convolution(m: RandomModel) -> None:
    if not (x := m.value(m.one_of(3, 4))):
        return
    channels, *space = m.shape(x)[1:]
    groups = m.one_of(1, channels)
    kernel = [m.integer(1, 3) for _ in space]
    strides = [m.integer(1, 2) for _ in space]
    attrs: dict[str, Any] = {"strides": strides, "group": groups}
    attrs["pads"] = [m.integer(0, k - 1) for k in kernel * 2]
    attrs["output_padding"] = [m.integer(0, s - 1) for s in strides]
    m.add("ConvTranspose", x, m.weight(channels, m.integer(1, 3), *kernel), **attrs)


@layer
def pool(m: RandomModel) -> None:
    if not (x := m.value(m.one_of(3, 4, 4))):
        return
    space = m.shape(x)[2:]
    kernel = [m.integer(1, min(3, n)) for n in space]
    attrs: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [m.integer(1, 3) for _ in space],
        "pads": [m.integer(0, k // 2) for k in kernel * 2],
        "ceil_mode": m.integer(0, 1),
    }
    op = m.one_of("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool")
    if op == "AveragePool":
        attrs["count_include_pad"] = m.integer(0, 1)
    if op == "LpPool":
        attrs["p"] = m.one_of(1, 2)
        del attrs["ceil_mode"]
    m.add(op, x, **({} if op.startswith("Global") else attrs))


@layer
def product(m: RandomModel) -> None:
    if not (x := m.value(None, 2)):
        return
    shape = m.shape(x)
    kind = m.integer(0, 3)
    if kind == 0 and len(shape) == 2:
        n = m.integer(1, 6)
        trans = m.integer(0, 1)
        w = m.weight(*((n, shape[1]) if trans else (shape[1], n)))
        m.add("Gemm", x, w, m.weight(n), transB=trans, alpha=m.one_of(1.0, 0.5), beta=2.0)
    elif kind == 1:
        m.add("Transpose", x, perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
        m.add("MatMul", x, m.nodes[-1].output[0])
    elif kind == 2:
        batch = shape[:-2] if m.integer(0, 1) else ()
        m.add("MatMul", x, m.weight(*batch, shape[-1], m.integer(1, 6)))
    else:
        m.add("MatMul", m.weight(m.integer(1, 5), shape[-2]), x)


@layer
def einsum(m: RandomModel) -> None:
    if x := m.value(3):
        a, b, c = m.shape(x)
        text, *shape = m.one_of(("abc,cd->abd", c, 3), ("abc,dab->cd", 2, a, b), ("abc,b->ac", b))
        m.add("Einsum", x, m.weight(*shape), equation=text)


@layer
def normalised(m: RandomModel) -> None:
    op = m.one_of("Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization", "LRN")
    x = m.value(4 if op == "LRN" else None, 3 if op == "InstanceNormalization" else 1)
    if not x:
        return
    shape = m.shape(x)
    if op in ("Softmax", "LogSoftmax"):
        m.add(op, x, axis=m.axis(x))
    elif op == "LayerNormalization":
        axis = m.integer(0, len(shape) - 1)
        m.add(op, x, m.weight(*shape[axis:]), m.weight(*shape[axis:]), axis=axis)
    elif op == "InstanceNormalization":
        m.add(op, x, m.weight(shape[1]), m.weight(shape[1]))
    else:
        m.add(op, x, size=m.one_of(1, 3, 5), alpha=0.01, beta=0.75, bias=1.0)


@layer
def batch_norm(m: RandomModel) -> None:
    if x := m.value(None, 2):
        channels = m.shape(x)[1]
        variance = m.constant(m.random.uniform(0.5, 2, channels).astype(np.float32))
        m.add("BatchNormalization", x, *(m.weight(channels) for _ in range(3)), variance)


@layer
def reduction(m: RandomModel) -> None:
    if not (x := m.value(None, 1)):
        return
    op = m.one_of(
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1"),
        *("ReduceSumSquare", "ReduceLogSumExp", "ReduceProd"),
    )
    axes = m.constant(np.array(m.axes(x), np.int64))
    if op == "ReduceSum" and m.integer(0, 3) == 0:
        axes = ""
    m.add(op, x, *([axes] if axes else []), keepdims=m.integer(0, 1))


@layer
def scan(m: RandomModel) -> None:
    if x := m.value(None, 1):
        axis = m.constant(np.array(m.axis(x), np.int64))
        m.add("CumSum", x, axis, exclusive=m.integer(0, 1), reverse=m.integer(0, 1))


@layer
def transpose(m: RandomModel) -> None:
    if x := m.value(None, 2):
        m.add("Transpose", x, perm=m.draw(st.permutations(range(len(m.shape(x))))))


@layer
def reshape(m: RandomModel) -> None:
    """Two dims as one, one as two, or ONNX's ops for that."""
    if not (x := m.value(None, 1)):
        return
    shape = list(m.shape(x))
    kind, at = m.integer(0, 3), m.integer(0, len(shape) - 1)
    if kind == 0:
        m.add("Flatten", x, axis=m.integer(0, len(shape)))
    elif kind == 1:
        m.add("Unsqueeze", x, m.ints(m.integer(-len(shape) - 1, len(shape))))
    elif kind == 2 and 1 in shape:
        m.add("Squeeze", x, m.ints(shape.index(1)))
    elif len(shape) > 1 and at:
        m.add("Reshape", x, m.ints(*shape[: at - 1], -1, *shape[at + 1 :]))
    else:
        parts = [n for n in range(1, shape[at] + 1) if shape[at] % n == 0]
        n = m.one_of(*parts)
        m.add("Reshape", x, m.ints(*([0] * at), n, shape[at] // n, *shape[at + 1 :]))


@layer
def joined(m: RandomModel) -> None:
    if x := m.value(None, 1):
        axis, other = m.axis(x), m.value(len(m.shape(x)))
        m.add("Concat", *[x, other or x, x][: m.integer(2, 3)], axis=axis)


@layer
def cut(m: RandomModel) -> None:
    if not (x := m.value(None, 1)):
        return
    axis = m.axis(x)
    extent = m.shape(x)[axis]
    kind = m.integer(0, 2)
    if kind == 0:
        start, step = m.integer(-extent, extent - 1), m.one_of(1, 1, 2, -1, -2)
        end = m.one_of(extent, 1 << 40) if step > 0 else -(1 << 40)
        m.add("Slice", x, m.ints(start), m.ints(end), m.ints(axis), m.ints(step))
    elif kind == 1 and extent > 1:
        first = m.integer(1, extent - 1)
        m.add("Split", x, m.ints(first, extent - first), count=2, axis=axis)
    else:
        numbers = m.draw(st.lists(st.integers(-extent, extent - 1), min_size=1, max_size=4))
        m.add("Gather", x, m.constant(np.array(numbers, np.int64)), axis=axis)


@layer
def padded(m: RandomModel) -> None:
    if x := m.value(None, 1):
        shape = m.shape(x)
        mode = m.one_of("constant", "reflect", "edge", "wrap")
        pads = [m.integer(0, min(2, n - 1)) for n in shape * 2]
        m.add("Pad", x, m.ints(*pads), m.constant(np.float32(0.5)), mode=mode)


@layer
def resized(m: RandomModel) -> None:
    if not (x := m.value(m.one_of(3, 4, 4))):
        return
    shape = m.shape(x)
    mode = m.one_of("nearest", "linear", "cubic")
    if mode == "cubic" and len(shape) != 4:
        return
    attrs: dict[str, Any] = {"mode": mode}
    kinds = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attrs["coordinate_transformation_mode"] = m.one_of(*kinds)
    if mode == "nearest":
        attrs["nearest_mode"] = m.one_of("floor", "ceil", "round_prefer_floor")
    # where lengths matter, ONNX counts parts of pixels, as scales make them; ONNX Runtime doesn't
    knows_lengths = attrs["coordinate_transformation_mode"] in kinds[2:]
    if knows_lengths or m.integer(0, 1):
        sizes = [*shape[:2], *(m.integer(1, 7) for _ in shape[2:])]
        m.add("Resize", x, "", "", m.ints(*sizes), **attrs)
    else:
        scales = [1, 1, *(m.one_of(0.5, 1.5, 2.0, 3.0) for _ in shape[2:])]
        m.add("Resize", x, "", m.constant(np.array(scales, np.float32)), **attrs)


@layer
def repeated(m: RandomModel) -> None:
    if x := m.value(None, 1):
        shape = m.shape(x)
        if m.integer(0, 1):
            m.add("Tile", x, m.ints(*(m.integer(1, 2) for _ in shape)))
        else:
            m.add("Expand", x, m.ints(*(m.integer(1, 3) if n == 1 else n for n in (1, *shape))))


@layer
def chosen(m: RandomModel) -> None:
    """TopK, and what gathers and scatters by an axis."""
    if not (x := m.value(None, 1)):
        return
    axis, shape = m.axis(x), m.shape(x)
    kind = m.integer(0, 3)
    if kind == 0:
        k = m.integer(1, shape[axis])
        m.add("TopK", x, m.ints(k), count=2, axis=axis, largest=m.integer(0, 1))
    elif kind == 1:
        m.add(m.one_of("ArgMax", "ArgMin"), x, axis=axis, keepdims=m.integer(0, 1))
    else:
        indices = m.random.randint(-shape[axis], shape[axis], shape).astype(np.int64)
        if kind == 2:
            m.add("GatherElements", x, m.constant(indices), axis=axis)
        else:
            updates = m.weight(*shape)
            m.add("ScatterElements", x, m.constant(indices), updates, axis=axis, reduction="add")


@layer
def spaced(m: RandomModel) -> None:
    if x := m.value(4):
        op = m.one_of("DepthToSpace", "SpaceToDepth")
        mode = {"mode": m.one_of("DCR", "CRD")} if op == "DepthToSpace" else {}
        m.add(op, x, blocksize=2, **mode)


@layer
def triangle(m: RandomModel) -> None:
    if x := m.value(None, 2):
        m.add("Trilu", x, m.constant(np.array(m.integer(-2, 2), np.int64)), upper=m.integer(0, 1))


@layer
def recurrent(m: RandomModel) -> None:
    """Both directions of a recurrent layer, with its last state."""
    if not (x := m.value(3)):
        return
    features, hidden = m.shape(x)[2], m.integer(1, 5)
    op = m.one_of("LSTM", "GRU", "RNN")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * hidden
    direction = m.one_of("forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    weights = [(ways, gates, features), (ways, gates, hidden), (ways, 2 * gates)]
    m.add(
        *(op, x, *(m.weight(*shape) for shape in weights)),
        count=2,
        hidden_size=hidden,
        direction=direction,
    )


@st.composite
def models(draw: Draw) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model, and inputs for it."""
    m = RandomModel(draw, random=np.random.RandomState(draw(st.integers(0, 1 << 16))))
    for number in range(draw(st.integers(1, 2))):
        rank = draw(st.sampled_from((4, 4, 3, 2, 1, 5)))
        shape = tuple(draw(st.integers(1, 7 if rank < 5 else 4)) for _ in range(rank))
        m.inputs[f"x{number}"] = shape
        m.types[f"x{number}"] = FLOAT, shape
    for name in draw(st.lists(st.sampled_from(sorted(LAYERS)), min_size=4, max_size=12)):
        LAYERS[name](m)
    if not m.nodes:
        m.add("Relu", "x0")
    feeds = {
        name: m.random.uniform(-2, 2, shape).astype(np.float32) for name, shape in m.inputs.items()
    }
    return m.model(), feeds
