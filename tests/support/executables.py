"""Executables of one op each, and of what is done with its result, checked against the graph
interpreter: convolutions, pools, products, rows, and whatever else a text says.

Operands are small whole numbers unless a test asks for others, so that sums are exact whatever
their order. An extent may be open: `opened` names the dims by their letters, which are parameters
then, and take their values from the sizes when the executable runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from aot.analysis.cost.plan import weight_layouts
from aot.backends.cpu.compile import emit_assembly
from aot.ir.builder import Builder
from aot.ir.dims import evaluate
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.record import Kind, call_of
from aot.ir.rewriter import Rewriter
from aot.ir.text.parser import parse_module
from aot.ir.types import DType, TensorType
from aot.kernels.ir.nodes import Kernel, Prefetch, walk
from aot.kernels.lowering import lower
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from aot.target.model import Target
from tests.support import cpu_running
from tests.support.kernel_backends import device, on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import Engine

Array = np.ndarray[Any, Any]
Extents = tuple[int, ...]
Along = int | Extents
"""Of a window: the same along all axes, or one for each."""

NATIVE = cpu_running.native_targets()
STRONGEST = cpu_running.native_targets(strongest=True)
PLANES, LAST = "", "{order=0:2:3:1}"
PACKED = "{splits=0/16 order=0:2:3:1:4}"
PANELS = "{splits=1/16 order=1:0:2}"
DEPTHWISE = "{order=2:3:1:0}"
PLANNED = "as planned"
"""The layout of weights that the plan for the target asks."""
EXACT = ("", "residual", "relu", "neg", "abs")


def numbers(type: TensorType, how: str, rng: np.random.Generator, largest: int = 1 << 16) -> Array:
    """Elements of a type: "small" whole numbers, which may be places, "negative" or "normal" ones,
    or integers no further from 0 than the largest one: "random", "least", "most", "extremes"."""
    dtype = type.dtype.numpy
    if how == "normal" and type.dtype.is_float:
        return rng.standard_normal(type.shape).astype(dtype)
    if how == "negative":
        return rng.integers(-9, -1, type.shape).astype(dtype)
    if how in ("small", "normal") or type.dtype.is_float:
        is_place = dtype.kind == "u" or (dtype.kind == "i" and dtype.itemsize > 2)
        return rng.integers(*((0, 3) if is_place else (-3, 4)), type.shape).astype(dtype)
    info = np.iinfo(dtype)
    least, most = max(info.min, -largest), min(info.max, largest)
    if type.dtype is DType.I32:  # a bias
        return rng.integers(-1000, 1000, type.shape).astype(dtype)
    if how == "random":
        return rng.integers(least, most + 1, type.shape).astype(dtype)
    ends = {"least": [least], "most": [most], "extremes": [least, most]}[how]
    return rng.choice(ends, type.shape).astype(dtype)


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A text of operands, %0, %1, ..., and of ops.

    Attributes:
        dims: values of the parameters.
        end: what is done with the result: nothing, a "residual" that is added, or a unary op.
        stored: the dtype that operands and result have in memory, if they are computed in f32.
        bindings: classes of the operands, where they are not the usual ones.
        largest: of the integers of a second operand.
    """

    end: str = ""
    stored: str = ""
    bindings: tuple[int, ...] = ()
    largest: int = 128

    @property
    def dims(self) -> Mapping[str, int]:
        return {}

    def operands(self) -> list[tuple[str, int]]:
        """Types, and classes of buffers: 0 for constants, 1 in the arena, 2 for inputs."""
        raise NotImplementedError

    def body(self) -> tuple[list[str], str]:
        """Ops, of which the last makes %y, and its type."""
        raise NotImplementedError

    def text(self) -> str:
        steps, result = self.body()
        operands, made = self.operands(), "%r" if self.end else "%y"
        if self.end == "residual":
            operands.append((result, 2))
            steps.append(f"%r = add(%y, %{len(operands) - 1}) : {result}")
        elif self.end:
            steps.append(f"%r = {self.end}(%y) : {result}")
        given = [(f"%{n}", type) for n, (type, _) in enumerate(operands)]
        if self.stored:
            casts = [f"{n} = cast(%s{n[1:]}) {{ to = f32 }} : {type}" for n, type in given]
            narrow = result.replace("f32", self.stored)
            last = f"%n = cast({made}) {{ to = {self.stored}, clamps = true }} : {narrow}"
            steps, made = [*casts, *steps, last], "%n"
            given = [(f"%s{n[1:]}", type.replace("f32", self.stored)) for n, type in given]
        bindings = self.bindings or (*(place for _, place in operands), 3)
        parameters = f"[{', '.join(self.dims)}]" if self.dims else ""
        listed = ", ".join(f"{n}: {type}" for n, type in given)
        ops = "\n".join([*steps, f"return({made})"])
        return (
            f'executable @e0{parameters}({listed}) -> ("r0") bindings {list(bindings)} {{ {ops} }}'
        )

    def function(self, target: str | Target = "") -> Function:
        """The executable; for a target, if its weights lie as the plan asks."""
        (function,) = parse_module(self.text().replace(PLANNED, "")).executables
        is_planned = target and PLANNED in self.text()
        return planned_weights(function, device(target)) if is_planned else function

    def lowered(self, target: str | Target, alignment: int = 1) -> Kernel:
        function = self.function(target)
        return lower(function, device(target), [alignment] * len(function.bindings))

    def rule(self, target: str | Target) -> str:
        """The name of the rule that builds the first stage."""
        return self.lowered(target).rules[0]

    def asks(self, target: str | Target) -> bool:
        """Whether the kernel prefetches anything."""
        return any(isinstance(s, Prefetch) for s in walk(self.lowered(target).body))

    def assembly(self, target: str | Target) -> str:
        return emit_assembly(self.lowered(target), device(target))

    def arrays(self, how: str = "small", seed: int = 3) -> list[Array]:
        """Operands, logical."""
        rng, made = np.random.default_rng(seed), []
        for n, value in enumerate(self.function().inputs):
            shape = tuple(evaluate(d, self.dims) for d in value.type.dims)
            largest = self.largest if n == 1 else 1 << 16
            made.append(numbers(TensorType(value.type.dtype, shape), how, rng, largest))
        return made

    def computed(
        self,
        target: str | Target,
        engine: Engine,
        arrays: Sequence[Array],
        alignment: int = 1,
        function: Function | None = None,
    ) -> Array:
        """The result of the executable for a target, or of one with another schedule."""
        function, machine = function or self.function(target), device(target)
        laid = zip(arrays, function.inputs, strict=True)
        memory = [to_memory(a, v.type, self.dims) for a, v in laid]
        sizes = [self.dims[name] for name in function.dim_names]
        known = [alignment] * len(function.bindings)
        (got,) = run_executable(function, machine, memory, sizes, engine, known)
        return got

    @property
    def tolerance(self) -> float:
        """Of a result, relative and a tenth of it absolute; 0 if it is exact."""
        return 2**-10 if self.stored else 0.0 if self.end in EXACT else 1e-5

    def check(
        self,
        target: str | Target,
        engine: Engine,
        arrays: Sequence[Array] | str = "small",
        *,
        tolerance: float | None = None,
        alignment: int = 1,
        rules: Sequence[str] = (),
        function: Function | None = None,
    ) -> None:
        """Runs the executable for a target, on arrays or on some by name; one of the rules builds
        it, if there are any."""
        given = self.arrays(arrays) if isinstance(arrays, str) else arrays

        def run_kernel(kernel: Kernel, buffers: Any, params: Any) -> None:
            assert not rules or kernel.rules[0] in rules, kernel.rules
            engine(kernel, buffers, params)

        (wanted,) = run(self.function(), [*given])
        got = self.computed(target, run_kernel, given, alignment, function)
        most = self.tolerance if tolerance is None else tolerance
        if most:
            wide = wanted.astype(np.float64)
            least = 1e-5 * float(np.abs(wide).max(initial=0)) if self.stored else most / 10
            np.testing.assert_allclose(got.astype(np.float64), wide, most, least)
        else:
            np.testing.assert_array_equal(got, wanted)

    def natively(self, arrays: Sequence[Array] | str = "small") -> Self:
        """Runs machine code for each length of vectors that this machine has."""
        for name in NATIVE:
            self.check(name, on_cpu(name), arrays)
        return self


def planned_weights(function: Function, target: Target) -> Function:
    """The executable with weights that lie as the plan for a target asks."""
    calls = [op for op in function.block if op.record.kind is Kind.CONTRACTION]
    for number, layout in weight_layouts(call_of(calls[0]), target).items():
        value = calls[0].operands[number]
        assert value is not None
        type = TensorType(value.type.dtype, value.type.dims, layout)
        Rewriter(function).set_type(value, type)
    return function


@dataclass(frozen=True)
class Ops(Executable):
    """What a text says: types of operands, ops, of which the last makes %y, the type of that, and
    values of parameters."""

    inputs: tuple[str, ...]
    ops: tuple[str, ...]
    result: str
    values: tuple[tuple[str, int], ...] = ()

    @property
    def dims(self) -> Mapping[str, int]:
        return dict(self.values)

    def operands(self) -> list[tuple[str, int]]:
        return [(type, 2) for type in self.inputs]

    def body(self) -> tuple[list[str], str]:
        return [*self.ops[:-1], f"%y = {self.ops[-1]} : {self.result}"], self.result


def _along(value: Along, rank: int) -> Extents:
    return (value,) * rank if isinstance(value, int) else value


@dataclass(frozen=True)
class Conv(Executable):
    """A convolution.

    Attributes:
        sizes: channels, filters and extents of the result, or of the image if that `is_image`.
        kernel: taps of a window; also its stride, padding (the same on both sides, or all begins,
            then all ends) and places from one tap to the next.
        left, result, weights: layouts.
        opened: which of the sizes are parameters, by letter: N for images, C, O, D, H, W.
        group: groups of channels.
        members: filters of each channel, which is by itself, instead of groups.
        dtype: of the image; integers have weights in i8, and results in i32.
        more: further attributes.
    """

    sizes: Extents
    kernel: Along = 1
    stride: Along = 1
    pad: Along = 0
    left: str = PLANES
    result: str = PLANES
    weights: str = PACKED
    opened: str = ""
    members: int = 0
    apart: Along = 1
    group: int = 1
    images: int = 2
    dtype: str = "f32"
    more: str = ""
    is_image: bool = False
    has_bias: bool = True

    @property
    def rank(self) -> int:
        return len(self.sizes) - 2

    @property
    def _sizes(self) -> dict[str, int]:
        names = "NCO" + "DHW"[3 - self.rank :]
        return dict(zip(names, (self.images, *self.sizes), strict=True))

    @property
    def dims(self) -> Mapping[str, int]:
        return {n: self._sizes[n] for n in self.opened}

    def _windows(self) -> list[tuple[int, int, int, int, int]]:
        """Kernel, stride, dilation and pads of each axis."""
        r = self.rank
        pads = _along(self.pad, 2 * r)
        each = (_along(v, r) for v in (self.kernel, self.stride, self.apart))
        return list(zip(*each, pads[:r], pads[r:], strict=True))

    def _extents(self) -> tuple[list[str], list[str]]:
        """Of the image, and of the result."""
        images, results = [], []
        for name, (k, s, d, begin, end) in zip(
            "DHW"[3 - self.rank :], self._windows(), strict=True
        ):
            size, span = self._sizes[name], d * (k - 1) + 1 - begin - end
            if self.is_image:
                images.append(str(size))
                results.append(str((size - span) // s + 1))
            elif name in self.opened:
                images.append(f"{s} * {name} + {span - s}")
                results.append(name)
            else:
                images.append(str(s * size + span - s))
                results.append(str(size))
        return images, results

    def _channels(self) -> tuple[str, str, str, str, str]:
        """Images, channels, channels of a group, filters and groups."""
        n, c, o = (x if x in self.opened else str(self._sizes[x]) for x in "NCO")
        if self.members:
            return n, c, "1", f"{self.members} * {c}" if c == "C" else str(self.members * int(c)), c
        return n, c, c if c == "C" else str(int(c) // self.group), o, str(self.group)

    def operands(self) -> list[tuple[str, int]]:
        n, c, inner, o, _ = self._channels()
        taps = ", ".join(str(w[0]) for w in self._windows())
        weight = self.dtype if self.dtype[0] in "fb" else "i8"
        bias = "f32" if self.dtype in ("f32", "bf16") else self.dtype if weight != "i8" else "i32"
        return [
            (f"{self.dtype}[{n}, {c}, {', '.join(self._extents()[0])}]{self.left}", 2),
            (f"{weight}[{o}, {inner}, {taps}]{self.weights}", 0),
            *([(f"{bias}[{o}]", 0)] if self.has_bias else []),
        ]

    def body(self) -> tuple[list[str], str]:
        n, _, _, o, groups = self._channels()
        _, strides, dilations, *pads = (list(v) for v in zip(*self._windows(), strict=True))
        name = {"f": "conv", "b": "conv_bf16"}.get(self.dtype[0], "conv_integer")
        made = {"conv": self.dtype, "conv_bf16": "f32"}.get(name, "i32")
        more = f", {self.more}" if self.more else ""
        result = f"{made}[{n}, {o}, {', '.join(self._extents()[1])}]{self.result}"
        op = f"""%y = {name}(%0, %1, {"%2" if self.has_bias else "_"}) {{ strides = {strides},
          dilations = {dilations}, pads = {pads[0] + pads[1]}, group = {groups}{more} }}"""
        return [f"{op} : {result}"], result


@dataclass(frozen=True)
class Pool(Executable):
    """A pool of images of a shape; `pad` is as a convolution's, `layout` of both sides, and
    `counts` says whether a mean is of padding too."""

    name: str
    shape: Extents
    kernel: Along
    stride: Along = 1
    pad: Along = 0
    apart: Along = 1
    layout: str = PLANES
    dtype: str = "f32"
    counts: bool = False

    def operands(self) -> list[tuple[str, int]]:
        return [(f"{self.dtype}{list(self.shape)}{self.layout}", 2)]

    def body(self) -> tuple[list[str], str]:
        channels, *extents = self.shape[1:]
        rank = len(extents)
        kernel, strides, apart = (_along(v, rank) for v in (self.kernel, self.stride, self.apart))
        pads = _along(self.pad, 2 * rank)
        made = [
            (n + pads[d] + pads[rank + d] - (kernel[d] - 1) * apart[d] - 1) // strides[d] + 1
            for d, n in enumerate(extents)
        ]
        counted = f", count_include_pad = {str(self.counts).lower()}"
        result = f"{self.dtype}{[self.shape[0], channels, *made]}{self.layout}"
        op = f"""%y = {self.name}(%0) {{ kernel = {list(kernel)}, strides = {list(strides)},
          dilations = {list(apart)}, pads = {list(pads)}
          {counted if self.name == "average_pool" else ""} }}"""
        return [f"{op} : {result}"], result

    @property
    def tolerance(self) -> float:
        return 0.0 if self.name == "max_pool" else 2e-5


@dataclass(frozen=True)
class Product(Executable):
    """A product of [batch, rows, terms] and [batch, terms, columns].

    Attributes:
        sizes: rows, terms and columns.
        batch: extents before them, of both sides unless the right one has panels.
        right: layout of the right side.
        opened: which of the sizes are parameters, by letter: M, K, N.
        dtype: of the left side; integers have weights in i8, and results in i32.
        has_bias: whether a number a column is added.
    """

    sizes: tuple[int, int, int]
    right: str = ""
    batch: Extents = ()
    opened: str = ""
    dtype: str = "f32"
    more: str = ""
    has_bias: bool = False

    @property
    def dims(self) -> Mapping[str, int]:
        return {n: size for n, size in zip("MKN", self.sizes, strict=True) if n in self.opened}

    def _extents(self) -> tuple[str, ...]:
        named = zip("MKN", self.sizes, strict=True)
        return (
            "".join(f"{n}, " for n in self.batch),
            *(letter if letter in self.opened else str(size) for letter, size in named),
        )

    def operands(self) -> list[tuple[str, int]]:
        b, m, k, n = self._extents()
        weight = self.dtype if self.dtype[0] in "fb" else "i8"
        is_shared = self.right == PANELS
        return [
            (f"{self.dtype}[{b}{m}, {k}]", 2),
            (f"{weight}[{'' if is_shared else b}{k}, {n}]{self.right}", 0 if is_shared else 2),
            *([(f"f32[{n}]", 0)] if self.has_bias else []),
        ]

    def body(self) -> tuple[list[str], str]:
        b, m, _, n = self._extents()
        name = {"f": "matmul", "b": "matmul_bf16"}.get(self.dtype[0], "matmul_integer")
        made = {"matmul": self.dtype, "matmul_bf16": "f32"}.get(name, "i32")
        result = f"{made}[{b}{m}, {n}]"
        more = f" {{ {self.more} }}" if self.more else ""
        if self.has_bias:
            product = f"%p = {name}(%0, %1){more} : {result}"
            return [product, f"%y = add(%p, %2) : {result}"], result
        return [f"%y = {name}(%0, %1){more} : {result}"], result


@dataclass(frozen=True)
class Rows(Executable):
    """A reduction or a norm of a tensor of a shape.

    Attributes:
        op: its name, and its attributes.
        axes: those that a result has no more; none of a norm.
        to: the dtype of the result.
        before: a unary op of the operand.
        is_open: whether all extents are parameters, d0, d1, ...
    """

    op: str
    attrs: str
    shape: Extents
    axes: Extents = ()
    dtype: str = "f32"
    to: str = ""
    layout: str = ""
    result: str = ""
    before: str = ""
    is_open: bool = False

    @property
    def dims(self) -> Mapping[str, int]:
        return {f"d{n}": size for n, size in enumerate(self.shape) if self.is_open}

    def operands(self) -> list[tuple[str, int]]:
        return [(f"{self.dtype}[{', '.join(self._extents())}]{self.layout}", 2)]

    def _extents(self) -> list[str]:
        return [*self.dims] or [str(n) for n in self.shape]

    def body(self) -> tuple[list[str], str]:
        left = ", ".join(n for axis, n in enumerate(self._extents()) if axis not in self.axes)
        result = f"{self.to or self.dtype}[{left}]{self.result}"
        first = [f"%x = {self.before}(%0) : {self.operands()[0][0]}"] if self.before else []
        given = "%x" if self.before else "%0"
        return [*first, f"%y = {self.op}({given}) {{ {self.attrs} }} : {result}"], result


def outlined(function: Function, target: str | Target = "") -> Function:
    """The only executable that fusing and outlining make of a function, for a target if there is
    one."""
    module = Module([function])
    fuse(function, target=device(target) if target else None)
    tie_operands(function)
    outline(module)
    (made,) = module.executables
    return made


def graph_of(
    operands: Sequence[str | TensorType | Array], *steps: tuple[str, Mapping[str, Any]]
) -> Function:
    """A graph of ops and their attributes, the first of operands, each next of what the one before
    makes; arrays among operands are constants."""
    b, given = Builder(), list[Any]()
    for n, operand in enumerate(operands):
        is_input = isinstance(operand, str | TensorType)
        given.append(b.input(f"x{n}", operand) if is_input else operand)  # type: ignore[arg-type]
    for name, attrs in steps:
        made = b.op(name, *given, **attrs)
        given = list(made) if isinstance(made, tuple | list) else [made]
    for n, value in enumerate(given):
        b.output(f"y{n}", value)
    return b.function()


def type_of(array: Array) -> TensorType:
    return TensorType(DType.of(array), array.shape)
