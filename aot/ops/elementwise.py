"""Elementwise ops: one result element from one element of each operand.

Operands broadcast as in numpy: aligned at the last dim, extents 1 repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.ir import dim_semantics as ds
from aot.ir import dims, wide_functions
from aot.ir import expr as e
from aot.ir.arrays import cast_array
from aot.ir.dim_ratios import map_ratios
from aot.ir.dims import Dim
from aot.ir.graph import BROADCAST
from aot.ir.record import (
    ANY,
    BOOL,
    FLOATS,
    NUMBERS,
    SIGNED,
    Attribute,
    Call,
    Compute,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops import layout_rules

F32 = DType.F32


def broadcast_dims(call: Call, shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The numpy broadcast of `shapes`; unknown dims are assumed to be equal where they meet.

    Raises:
        CompileError: extents differ and none is 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for position in range(-rank, 0):
        extent: Dim = 1
        for shape in shapes:
            dim = shape[position] if -position <= len(shape) else 1
            if dim == 1 or dim == extent:
                continue
            if extent == 1:
                extent = dim
            elif not call.equal(extent, dim, f"{call.record.name}: {BROADCAST}"):
                texts = " and ".join(f"({', '.join(map(str, s))})" for s in shapes)
                raise call.error(
                    f"operands do not broadcast: shapes {texts}, "
                    f"dim {position} is {extent} and {dim}"
                )
            elif isinstance(dim, int):
                extent = dim
        result.append(extent)
    return tuple(result)


def result_indices(rank: int) -> tuple[e.Var, ...]:
    """Fresh index variables for a result of `rank` dims."""
    return tuple(e.Var(f"i{d}") for d in range(rank))


def broadcast_load(call: Call, operand: int, indices: Sequence[e.Expr]) -> e.Load:
    """The load of `operand`'s element that a broadcast result's element `indices` reads."""
    type = call.operand(operand)
    tail = indices[len(indices) - type.rank :]
    chosen = tuple(
        e.index(0) if extent == 1 else i for extent, i in zip(type.dims, tail, strict=True)
    )
    return e.Load(operand, chosen, type.dtype)


def elementwise_compute(call: Call, body: Callable[..., e.Expr]) -> Sequence[Compute]:
    """The `compute` of an elementwise op, whose element is `body` of the present operands' elements
    (None where absent)."""
    (result,) = call.result_types
    indices = result_indices(result.rank)
    loads = [
        broadcast_load(call, i, indices) if call.has(i) else None for i in range(len(call.operands))
    ]
    return [Compute(indices, body(*loads))]


def _same_dtype(call: Call) -> Sequence[TensorType]:
    types = [t for t in call.operands if t is not None]
    return [TensorType(types[0].dtype, broadcast_dims(call, [t.dims for t in types]))]


def _to_bool(call: Call) -> Sequence[TensorType]:
    types = [t for t in call.operands if t is not None]
    return [TensorType(DType.BOOL, broadcast_dims(call, [t.dims for t in types]))]


def _f32(*dims: Dim) -> TensorType:
    return TensorType(F32, dims)


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, computed in float64 and rounded once for f16 and f32.

    Rounding hides the last-bit differences between CPUs' math libraries, so that a folded
    constant is the same on every machine.
    """

    def call(*arrays: Array) -> Any:
        dtype = arrays[0].dtype
        if dtype.kind == "f" and dtype.itemsize < 8:
            return function(*(a.astype(np.float64) for a in arrays)).astype(dtype)
        return function(*arrays)

    return call


def _unary(
    name: str,
    summary: str,
    numpy: Callable[..., Any],
    body: Callable[[e.Expr], e.Expr],
    dtypes: frozenset[DType] = FLOATS,
    *,
    to_bool: bool = False,
    of_dims: Callable[[Dim], Dim] | None = None,
    low: float = -2.0,
    high: float = 2.0,
    is_cheap: bool = True,
    of_ratios: bool = False,
    jumps: bool = False,
    has_edge: bool = False,
) -> OpRecord:
    takes_dims = of_dims is not None or of_ratios

    def reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
        if takes_dims and ds.has_dims(*inputs):
            if call.operand(0).dtype.is_float:
                return [map_ratios(name, *inputs)]
            assert of_dims is not None
            return [ds.map_dims(of_dims, *inputs)]
        with np.errstate(all="ignore"):
            return [numpy(inputs[0])]

    sample = (
        _f32(2, 3, 5)
        if F32 in dtypes
        else TensorType(sorted(dtypes, key=lambda d: d.value)[0], (2, 3, 5))
    )
    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=(Operand("x", dtypes),),
            infer=_to_bool if to_bool else _same_dtype,
            reference=reference,
            compute=lambda call: elementwise_compute(call, body),
            kind=Kind.ELEMENTWISE,
            propagate=layout_rules.elementwise,
            is_cheap=is_cheap,
            jumps=(0,) if jumps else (),
            edges=(0,) if has_edge else (),
            is_approximate=not is_cheap,
            takes_dims=takes_dims,
            samples=(Sample((sample,), low=low, high=high),),
        )
    )


def _by_name(op: str) -> Callable[[e.Expr], e.Expr]:
    return lambda x: e.unary(op, x)


def _arc_tangent(x: e.Expr) -> e.Expr:
    """Cephes' atanf: |x| reduced to [-tan(pi/8), tan(pi/8)], then an odd polynomial; 2 ulp."""
    if x.dtype is not x.dtype.accumulator:
        return e.cast(_arc_tangent(e.cast(x, x.dtype.accumulator)), x.dtype)

    def number(value: float) -> e.Expr:
        return e.const(value, F32)

    size = e.unary("abs", x)
    is_large = e.binary("gt", size, number(2.414213562373095))
    is_middle = e.binary("gt", size, number(0.4142135623730950))
    middle = e.binary("div", e.sub(size, number(1.0)), e.add(size, number(1.0)))
    inner = e.select(
        is_large, e.binary("div", number(-1.0), size), e.select(is_middle, middle, size)
    )
    start = e.select(
        is_large, number(math.pi / 2), e.select(is_middle, number(math.pi / 4), number(0.0))
    )
    square = e.mul(inner, inner)
    total = number(8.05374449538e-2)
    for c in (-1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1):
        total = e.add(e.mul(total, square), number(c))
    value = e.add(start, e.add(e.mul(e.mul(total, square), inner), inner))
    sign = e.binary("and", e.Bitcast(x, DType.U32), e.const(1 << 31, DType.U32))
    return e.Bitcast(e.binary("or", e.Bitcast(value, DType.U32), sign), F32)


def _hard_swish(x: e.Expr) -> e.Expr:
    # x + 3 cancels exactly near -3; 6 times the rounded sixth is 1
    low = e.binary("max", e.add(x, e.const(3, x.dtype)), e.const(0, x.dtype))
    gate = e.mul(e.binary("min", low, e.const(6, x.dtype)), e.const(1 / 6, x.dtype))
    return e.mul(x, gate)


NEG = _unary(
    "neg",
    "-x",
    np.negative,
    _by_name("neg"),
    FLOATS | SIGNED,
    of_dims=lambda x: dims.multiply(x, -1),
)
ABS = _unary("abs", "|x|", np.abs, _by_name("abs"), FLOATS | SIGNED)
SQRT = _unary(
    "sqrt",
    "Square root; NaN for negative x.",
    np.sqrt,
    _by_name("sqrt"),
    low=0.0,
    high=4.0,
    has_edge=True,
)
EXP = _unary("exp", "e to the x.", _wide(np.exp), _by_name("exp"), is_cheap=False)
EXPM1 = _unary(
    "expm1",
    "e to the x, less 1; small results keep their digits.",
    _wide(np.expm1),
    _by_name("expm1"),
    is_cheap=False,
)
LOG = _unary(
    "log",
    "Natural logarithm.",
    _wide(np.log),
    _by_name("log"),
    low=0.01,
    high=9.0,
    is_cheap=False,
    has_edge=True,
)
LOG1P = _unary(
    "log1p",
    "Natural logarithm of 1 + x; small results keep their digits.",
    _wide(np.log1p),
    _by_name("log1p"),
    low=-0.9,
    high=9.0,
    is_cheap=False,
    has_edge=True,
)
TANH = _unary("tanh", "Hyperbolic tangent.", _wide(np.tanh), _by_name("tanh"), is_cheap=False)
ERF = _unary("erf", "Error function.", _wide(wide_functions.erf), _by_name("erf"), is_cheap=False)
ERFC = _unary(
    "erfc",
    "1 less the error function; small results keep their digits.",
    _wide(wide_functions.erfc),
    _by_name("erfc"),
    high=4.0,
    is_cheap=False,
)
SIGMOID = _unary(
    "sigmoid",
    "1 / (1 + exp(-x))",
    _wide(wide_functions.sigmoid),
    _by_name("sigmoid"),
    is_cheap=False,
)
SIN = _unary("sin", "Sine of radians.", _wide(np.sin), _by_name("sin"), is_cheap=False)
COS = _unary("cos", "Cosine of radians.", _wide(np.cos), _by_name("cos"), is_cheap=False)
ATAN = _unary(
    "atan",
    "Arc tangent, in radians.",
    _wide(np.arctan),
    _arc_tangent,
    FLOATS - {DType.F64},
    low=-9.0,
    high=9.0,
    is_cheap=False,
)
FLOOR = _unary(
    "floor",
    "Largest integer not above x.",
    np.floor,
    _by_name("floor"),
    of_ratios=True,
    jumps=True,
)
CEIL = _unary(
    "ceil",
    "Smallest integer not below x.",
    np.ceil,
    _by_name("ceil"),
    of_ratios=True,
    jumps=True,
)
ROUND = _unary("round", "Nearest integer, halves to even.", np.rint, _by_name("round"), jumps=True)
TRUNC = _unary("trunc", "x without its fraction.", np.trunc, _by_name("trunc"), jumps=True)
NOT = _unary("not", "Logical negation.", np.logical_not, _by_name("not"), BOOL)
IS_NAN = _unary("is_nan", "Whether x is NaN.", np.isnan, _by_name("isnan"), to_bool=True)
RELU = _unary(
    "relu",
    "max(x, 0); NaN stays.",
    lambda x: np.maximum(x, x.dtype.type(0)),
    lambda x: e.binary("max", x, e.const(0, x.dtype)),
    FLOATS | SIGNED,
)


def _gated(name: str, summary: str, numpy: Callable[..., Any]) -> OpRecord:
    """A record of x times a gate between 0 and 1, with samples where the gate changes."""
    return _unary(name, summary, _wide(numpy), _by_name(name), low=-6.0, high=6.0, is_cheap=False)


GELU = _gated("gelu", "x / 2 * (1 + erf(x / sqrt(2)))", wide_functions.gelu)
GELU_TANH = _gated(
    "gelu_tanh",
    "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))",
    wide_functions.gelu_tanh,
)
SILU = _gated("silu", "x / (1 + exp(-x))", wide_functions.silu)
MISH = _gated("mish", "x * tanh(log(1 + exp(x)))", wide_functions.mish)
HARD_SWISH = _unary(
    "hard_swish",
    "x * min(max(x + 3, 0), 6) / 6",
    _wide(lambda x: x * (np.clip(x + 3, 0, 6) / 6)),
    _hard_swish,
    low=-5.0,
    high=5.0,
)


def _binary(
    name: str,
    summary: str,
    numpy: Callable[..., Any],
    op: str,
    dtypes: frozenset[DType],
    of_dims: Callable[[Dim, Dim], Dim] | None = None,
    *,
    compare: bool = False,
    commutes: bool = False,
    low: float = -2.0,
    high: float = 2.0,
    is_cheap: bool = True,
    clamps: bool = False,
    jumps: tuple[int, ...] = (),
    edges: tuple[int, ...] = (),
    is_approximate: bool = False,
) -> OpRecord:
    def reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
        if of_dims is not None and ds.has_dims(*inputs):
            is_float = call.operand(0).dtype.is_float
            result = map_ratios(name, *inputs) if is_float else ds.map_dims(of_dims, *inputs)
            return [result.astype(bool) if compare else result]
        with np.errstate(all="ignore"):
            result = np.asarray(numpy(*inputs))
        if not call.result_types:
            return [result]
        return [result.astype(call.result_types[0].dtype.numpy, copy=False)]

    shapes = (((2, 3, 5), (3, 1)), ((17,), ()))
    dtype = DType.BOOL if dtypes == BOOL else F32
    samples = [
        Sample((TensorType(dtype, a), TensorType(dtype, b)), low=low, high=high) for a, b in shapes
    ]
    if dtypes >= NUMBERS:
        # from 1, as integers have no quotient by 0
        samples.append(
            Sample((TensorType(DType.I64, (3, 7)), TensorType(DType.I64, (7,))), low=1.0, high=9.0)
        )
    return register(
        OpRecord(
            name=name,
            summary=summary,
            operands=(
                Operand("a", dtypes, clamps=clamps),
                Operand("b", dtypes, same_as="a", clamps=clamps),
            ),
            infer=_to_bool if compare else _same_dtype,
            reference=reference,
            compute=lambda call: elementwise_compute(call, lambda x, y: e.binary(op, x, y)),
            kind=Kind.ELEMENTWISE,
            propagate=layout_rules.elementwise,
            is_commutative=commutes,
            is_cheap=is_cheap,
            jumps=jumps,
            edges=edges,
            is_approximate=is_approximate,
            takes_dims=of_dims is not None,
            samples=tuple(samples),
        )
    )


def _div(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        # C's truncating division; by zero is undefined there, and 0 here; the least integer has no
        # magnitude, so that quotients are corrected where they were rounded down
        safe = np.where(b == 0, 1, b).astype(b.dtype)
        quotient = a // safe
        is_low = ((a < 0) != (safe < 0)) & (quotient * safe != a)
        return np.asarray(np.where(b == 0, 0, quotient + is_low), a.dtype)
    return np.asarray(np.divide(a, b))


ADD = _binary("add", "a + b", np.add, "add", NUMBERS, dims.add, commutes=True)
SUB = _binary(
    "sub", "a - b", np.subtract, "sub", NUMBERS, lambda a, b: dims.add(a, dims.multiply(b, -1))
)
MUL = _binary("mul", "a * b", np.multiply, "mul", NUMBERS, dims.multiply, commutes=True)
DIV = _binary(
    "div",
    "a / b; integers truncate towards zero.",
    _div,
    "div",
    NUMBERS,
    ds.divide,
    low=0.5,
    high=3.0,
    edges=(1,),
)
POW = _binary(
    "pow",
    "a to the power b, as C's powf.",
    _wide(np.power),
    "pow",
    FLOATS,
    low=0.25,
    high=3.0,
    is_cheap=False,
    edges=(0, 1),
    is_approximate=True,
)
FMOD = _binary(
    "fmod",
    "What is left of a division that truncates, exactly, as C's fmod.",
    np.fmod,
    "fmod",
    FLOATS,
    low=0.25,
    high=3.0,
    is_cheap=False,
    jumps=(0, 1),
)
MINIMUM = _binary(
    "minimum",
    "The smaller; NaN if either is.",
    np.minimum,
    "min",
    NUMBERS,
    dims.minimum,
    commutes=True,
    clamps=True,
)
MAXIMUM = _binary(
    "maximum",
    "The larger; NaN if either is.",
    np.maximum,
    "max",
    NUMBERS,
    dims.maximum,
    commutes=True,
    clamps=True,
)
EQUAL = _binary("equal", "a == b", np.equal, "eq", ANY, ds.is_equal, compare=True, commutes=True)
LESS = _binary("less", "a < b", np.less, "lt", NUMBERS, ds.is_less, compare=True)
LESS_EQUAL = _binary(
    "less_equal", "a <= b", np.less_equal, "le", NUMBERS, ds.is_less_equal, compare=True
)
AND = _binary("and", "Logical and.", np.logical_and, "and", BOOL, commutes=True)
OR = _binary("or", "Logical or.", np.logical_or, "or", BOOL, commutes=True)
XOR = _binary("xor", "Logical exclusive or.", np.logical_xor, "xor", BOOL, commutes=True)


def _cast_type(call: Call) -> Sequence[TensorType]:
    to = call.attrs["to"]
    assert isinstance(to, DType)
    return [TensorType(to, call.operand(0).dims)]


def clamp_array(x: Array, to: DType) -> Array:
    """`x` with finite numbers clamped to the range of a narrower float type."""
    limit = np.asarray(np.finfo(to.numpy).max, x.dtype)
    return np.where(np.isfinite(x), np.clip(x, -limit, limit), x)


def narrowed(x: e.Expr, to: DType) -> e.Expr:
    """`x` converted to `to` as by a clamping cast."""
    if not to.is_float or not x.dtype.is_float or to.bits >= x.dtype.bits:
        return e.cast(x, to)
    limit = float(np.finfo(to.numpy).max)
    high, low = e.const(limit, x.dtype), e.const(-limit, x.dtype)
    inner = e.select(e.binary("gt", x, high), high, x)
    inner = e.select(e.binary("lt", inner, low), low, inner)
    is_finite = e.binary("lt", e.unary("abs", x), e.const(float("inf"), x.dtype))
    return e.cast(e.select(is_finite, inner, x), to)


def _cast_clamps(call: Call) -> bool:
    to = call.attrs["to"]
    assert isinstance(to, DType)
    source = call.operand(0).dtype
    return bool(call.attrs["clamps"]) and (
        source.is_float and to.is_float and to.bytes < source.bytes
    )


def _cast_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    to = call.attrs["to"]
    assert isinstance(to, DType)
    is_clamped = _cast_clamps(call) and not ds.has_dims(inputs[0])
    x = clamp_array(inputs[0], to) if is_clamped else inputs[0]
    return [cast_array(x, to)]


def _cast_body(call: Call) -> Sequence[Compute]:
    to = call.attrs["to"]
    assert isinstance(to, DType)
    clamps = _cast_clamps(call)
    return elementwise_compute(call, lambda x: narrowed(x, to) if clamps else e.cast(x, to))


CAST = register(
    OpRecord(
        name="cast",
        summary="Conversion by value: float to int truncates and saturates, NaN gives 0.",
        operands=(Operand("x", ANY),),
        attributes=(
            Attribute("to", "dtype"),
            Attribute(
                "clamps",
                "bool",
                False,
                "finite numbers beyond a narrower float's largest become that one, not infinite",
            ),
        ),
        infer=_cast_type,
        reference=_cast_reference,
        compute=_cast_body,
        kind=Kind.ELEMENTWISE,
        propagate=layout_rules.cast,
        is_cheap=True,
        takes_dims=True,
        samples=(
            Sample((_f32(3, 4),), {"to": DType.I32}),
            Sample((TensorType(DType.I32, (3, 4)),), {"to": F32}),
            Sample((TensorType(DType.BOOL, (5,)),), {"to": F32}),
            Sample((_f32(40),), {"to": DType.F16, "clamps": True}, low=-1e5, high=1e5),
            Sample((TensorType(DType.F16, (3, 4)),), {"to": F32}),
        ),
    )
)


def _where_type(call: Call) -> Sequence[TensorType]:
    types = [call.operand(i) for i in range(3)]
    return [TensorType(types[1].dtype, broadcast_dims(call, [t.dims for t in types]))]


WHERE = register(
    OpRecord(
        name="where",
        summary="condition ? a : b, by element.",
        operands=(Operand("condition", BOOL), Operand("a", ANY), Operand("b", ANY, same_as="a")),
        infer=_where_type,
        reference=lambda call, inputs: [np.where(*inputs)],
        compute=lambda call: elementwise_compute(call, e.select),
        kind=Kind.ELEMENTWISE,
        propagate=layout_rules.elementwise,
        is_cheap=True,
        takes_dims=True,
        samples=(Sample((TensorType(DType.BOOL, (3, 1)), _f32(3, 4), _f32(4))),),
    )
)
