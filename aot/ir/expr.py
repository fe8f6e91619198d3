"""Scalar expressions: what an op computes per element, and what a kernel evaluates.

One language for both: the op table writes an op's meaning in it (loads address operands), kernel
IR wraps it in loops (loads address buffers). Expressions are immutable and compared by identity
unless stated; sharing a node means computing it once. Knows nothing of tensors' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Union

from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.types import DType

# float unary: neg abs sqrt exp expm1 log log1p tanh erf erfc sigmoid silu mish gelu gelu_tanh sin
# cos floor ceil trunc round (half to even)
# exp_nonpositive is exp of what is not above 0, or NaN; it may be 0 where exp is below 2^-126.
# integer unary: neg abs bitnot; bool unary: not; float -> bool: isnan
UNARY_OPS = frozenset(
    {
        "neg",
        "abs",
        "sqrt",
        "exp",
        "exp_nonpositive",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "erf",
        "erfc",
        "sigmoid",
        "silu",
        "mish",
        "gelu",
        "gelu_tanh",
        "sin",
        "cos",
        "floor",
        "ceil",
        "trunc",
        "round",
        "bitnot",
        "not",
        "isnan",
    }
)
# div on integers truncates towards zero, floordiv and floormod round down; min and max propagate
# NaN as numpy's minimum and maximum do; pow and fmod are C's; shr is arithmetic on signed types.
# Integers: arithmetic wraps, a zero divisor gives 0, shifts are by less than the width.
# and/or/xor are bitwise on integers, logical on bool. Comparisons give bool; ne is true on NaN.
BINARY_OPS = frozenset(
    {
        "add",
        "sub",
        "mul",
        "div",
        "floordiv",
        "floormod",
        "min",
        "max",
        "pow",
        "fmod",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
    }
)
# Functions without an instruction anywhere: kernels compute them in basic arithmetic.
TRANSCENDENTAL_OPS = frozenset(
    {
        "exp",
        "exp_nonpositive",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "erf",
        "erfc",
        "sigmoid",
        "silu",
        "mish",
        "gelu",
        "gelu_tanh",
        "sin",
        "cos",
        "pow",
        "fmod",
    }
)
# Those of which kernels have a formula in f64, too.
WIDE_TRANSCENDENTAL_OPS = TRANSCENDENTAL_OPS - {"erf", "erfc", "gelu", "gelu_tanh", "pow"}
COMPARE_OPS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


@dataclass(frozen=True, eq=False)
class Const:
    """A literal of `dtype`; floats are given as Python floats and rounded to it."""

    dtype: DType
    value: float | int | bool


@dataclass(frozen=True, eq=False)
class Var:
    """A variable: a loop index or a `Let`. Its identity is the object; `name` is for printing."""

    name: str
    dtype: DType = DType.INDEX


@dataclass(frozen=True, eq=False)
class Size:
    """The value of a dim, of dtype INDEX; in a kernel its symbols are INDEX parameters."""

    dim: Dim
    dtype: DType = field(default=DType.INDEX, init=False)


@dataclass(frozen=True, eq=False)
class Param:
    """A word of the parameter block. INDEX parameters are also symbols of dims, by name."""

    name: str
    dtype: DType


@dataclass(frozen=True, eq=False)
class Load:
    """An element of `source`: an operand number (op table) or a Buffer or Scratch (kernel IR).

    Where `guard` (bool) is false nothing is read and the value is `other`. In kernels a packed
    `dtype` takes neighbours along the last index from there on, as many as it has parts.
    """

    source: Any
    indices: tuple[Expr, ...]
    dtype: DType
    guard: Expr | None = None
    other: Expr | None = None


@dataclass(frozen=True, eq=False)
class Unary:
    op: str
    a: Expr
    dtype: DType


@dataclass(frozen=True, eq=False)
class Binary:
    """Arithmetic or comparison of two values of one dtype; comparisons have dtype BOOL."""

    op: str
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, eq=False)
class Fma:
    """`a * b + c`, fused where the target has it in one instruction, else two roundings."""

    a: Expr
    b: Expr
    c: Expr
    dtype: DType


@dataclass(frozen=True, eq=False)
class Dot:
    """The dot product of two packed words, added to `c`, in i32, which wraps.

    Both words have as many parts, but signs of their own. Words of bytes may be summed as I16X2, to
    which each half of their parts adds its own sum, wrapping in 16 bits. Words of bf16 are summed
    in f32, in any order and rounded at any of its steps; subnormal numbers may count as 0. In
    kernels only.

    Attributes:
        is_narrow: whether the products of any two parts fit 16 bits together, whatever `a` holds.
    """

    a: Expr
    b: Expr
    c: Expr
    dtype: DType = DType.I32
    is_narrow: bool = False


@dataclass(frozen=True, eq=False)
class Unpack:
    """Two of the four parts of a packed word, each widened to twice its bits. In kernels only."""

    a: Expr
    parts: tuple[int, int]
    dtype: DType = DType.I16X2


@dataclass(frozen=True, eq=False)
class Select:
    """`condition ? a : b`; both sides may be evaluated."""

    condition: Expr
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, eq=False)
class Cast:
    """Conversion by value: float to int truncates and saturates (NaN gives 0), int to float
    rounds to nearest even, to bool is `!= 0`, bool to number is 0 or 1, int to int wraps."""

    a: Expr
    dtype: DType


@dataclass(frozen=True, eq=False)
class Bitcast:
    """Reinterpretation between types of one size."""

    a: Expr
    dtype: DType


@dataclass(frozen=True, eq=False)
class Reduce:
    """A reduction of `body` by `op` over all values of `axes`; only in the op table, as kernels
    have loops instead."""

    op: str
    axes: tuple[tuple[Var, Dim], ...]
    body: Expr
    dtype: DType


Expr = Union[
    Const,
    Var,
    Size,
    Param,
    Load,
    Unary,
    Binary,
    Fma,
    Dot,
    Unpack,
    Select,
    Cast,
    Bitcast,
    Reduce,
]


def const(value: float | int | bool, dtype: DType) -> Const:
    """A literal of type `dtype`."""
    return Const(dtype, value)


def index(value: Dim | Expr) -> Expr:
    """A dim, an int or an expression as an INDEX expression."""
    if isinstance(value, int):
        return Const(DType.INDEX, value)
    return value if not _is_dim(value) else Size(value)  # type: ignore[arg-type, return-value]


def _is_dim(value: object) -> bool:
    from aot.ir.dims import DimExpr

    return isinstance(value, DimExpr)


def unary(op: str, a: Expr) -> Unary:
    """`op(a)`; isnan and not give BOOL."""
    if op not in UNARY_OPS:
        raise ValueError(f"unknown unary op {op!r}")
    return Unary(op, a, DType.BOOL if op in ("isnan", "not") else a.dtype)


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """`a op b` of one dtype, with literals folded on INDEX."""
    if a.dtype is not b.dtype:
        raise ValueError(f"{op} of {a.dtype} and {b.dtype}")
    if op in COMPARE_OPS:
        return Binary(op, a, b, DType.BOOL)
    if op not in BINARY_OPS:
        raise ValueError(f"unknown binary op {op!r}")
    if a.dtype is DType.INDEX:
        folded = _fold_index(op, a, b)
        if folded is not None:
            return folded
    return Binary(op, a, b, a.dtype)


_ON_DIMS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "add": dims.add,
    "sub": lambda x, y: dims.add(x, dims.multiply(y, -1)),
    "mul": dims.multiply,
    "floordiv": dims.floor_divide,
    "floormod": dims.modulo,
    "min": dims.minimum,
    "max": dims.maximum,
}


def _fold_index(op: str, a: Expr, b: Expr) -> Expr | None:
    """Index arithmetic, simplified: dims are folded, and x+0, x*1, x*0, x//1 disappear. None where
    nothing applies.
    """
    da, db = dim_of(a), dim_of(b)
    if (
        da is not None
        and db is not None
        and op in _ON_DIMS
        and not (op in ("floordiv", "floormod") and db == 0)
    ):
        return index(_ON_DIMS[op](da, db))
    if db == 0 and op in ("add", "sub"):
        return a
    if da == 0 and op == "add":
        return b
    if db == 1 and op in ("mul", "floordiv"):
        return a
    if da == 1 and op == "mul":
        return b
    if op == "mul" and (da == 0 or db == 0):
        return index(0)
    if op == "floormod" and db == 1:
        return index(0)
    return None


def dim_of(e: Expr) -> Dim | None:
    """The dim of an INDEX literal or Size; None for other expressions."""
    if isinstance(e, Size):
        return e.dim
    if isinstance(e, Const) and e.dtype is DType.INDEX:
        return int(e.value)
    return None


def add(a: Expr, b: Expr) -> Expr:
    return binary("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return binary("mul", a, b)


def linear(*terms: Expr | Dim | tuple[Expr, Dim]) -> Expr:
    """The sum of INDEX terms, from left to right; a pair is an expression times a dim."""
    total = index(0)
    for term in terms:
        total = add(total, mul(term[0], index(term[1])) if isinstance(term, tuple) else index(term))
    return total


def all_of(conditions: Iterable[Expr | None]) -> Expr | None:
    """The conjunction of BOOL expressions, where None is true; None if all are None."""
    result: Expr | None = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else binary("and", result, condition)
    return result


def conditions_of(guard: Expr) -> Iterator[Expr]:
    """The conjuncts of `guard`."""
    if isinstance(guard, Binary) and guard.op == "and":
        yield from conditions_of(guard.a)
        yield from conditions_of(guard.b)
    else:
        yield guard


def select(condition: Expr, a: Expr, b: Expr) -> Select:
    if a.dtype is not b.dtype:
        raise ValueError(f"select of {a.dtype} and {b.dtype}")
    return Select(condition, a, b, a.dtype)


def cast(a: Expr, dtype: DType) -> Expr:
    """`a` converted by value; `a` itself if it has the dtype."""
    return a if a.dtype is dtype else Cast(a, dtype)


def _children_of_load(e: Load) -> tuple[Expr, ...]:
    if e.guard is None and e.other is None:
        return e.indices
    return (*e.indices, *(x for x in (e.guard, e.other) if x is not None))


# of each sort of node but the leaves; a table, as passes ask millions of times
_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Load: _children_of_load,
    **dict.fromkeys((Unary, Cast, Bitcast, Unpack), lambda e: (e.a,)),
    Binary: lambda e: (e.a, e.b),
    **dict.fromkeys((Fma, Dot), lambda e: (e.a, e.b, e.c)),
    Select: lambda e: (e.condition, e.a, e.b),
    Reduce: lambda e: (e.body,),
}


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions of `e`."""
    found = _CHILDREN.get(type(e))
    return () if found is None else found(e)


def nodes(e: Expr) -> list[Expr]:
    """Every node of `e`, each once."""
    seen: dict[Expr, None] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            stack.extend(children(node))
    return list(seen)


def loads(e: Expr) -> list[Load]:
    """Every Load in `e`, each once."""
    return [node for node in nodes(e) if isinstance(node, Load)]


def rebuild(e: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """`e` with `fn` applied to its direct subexpressions; `e` itself if none changed."""
    old = children(e)
    fresh = tuple(fn(c) for c in old)
    if fresh == old:  # nodes are equal where they are one
        return e
    match e:
        case Load():
            n = len(e.indices)
            rest = list(fresh[n:])
            guard = rest.pop(0) if e.guard is not None else None
            other = rest.pop(0) if e.other is not None else None
            return replace(e, indices=fresh[:n], guard=guard, other=other)
        case Unary() | Cast() | Bitcast() | Unpack():
            return replace(e, a=fresh[0])
        case Binary():
            return binary(e.op, fresh[0], fresh[1])
        case Fma() | Dot():
            return replace(e, a=fresh[0], b=fresh[1], c=fresh[2])
        case Select():
            return replace(e, condition=fresh[0], a=fresh[1], b=fresh[2])
        case Reduce():
            return replace(e, body=fresh[0])
        case _:
            return e


def transform(
    e: Expr, fn: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None
) -> Expr:
    """A top-down rewrite: where `fn` returns an expression it replaces the node, else its children
    are rewritten.

    Shared nodes stay shared (one memo per call, or the caller's).
    """
    seen: dict[Expr, Expr] = {} if memo is None else memo

    def go(x: Expr) -> Expr:
        if x not in seen:
            fresh = fn(x)
            seen[x] = fresh if fresh is not None else rebuild(x, go)
        return seen[x]

    return go(e)


def substitute(e: Expr, values: Mapping[Var, Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with variables replaced by `values`; calls with one `memo` share result nodes."""
    return transform(e, lambda x: values.get(x) if isinstance(x, Var) else None, memo)


def free_vars(e: Expr) -> set[Var]:
    """Variables of `e` that are not bound by a Reduce inside it."""
    memo: dict[Expr, set[Var]] = {}

    def go(x: Expr) -> set[Var]:
        if x not in memo:
            found: set[Var] = {x} if isinstance(x, Var) else set()
            for child in children(x):
                found = found | go(child)
            if isinstance(x, Reduce):
                found = found - {v for v, _ in x.axes}
            memo[x] = found
        return memo[x]

    return go(e)


def coefficient(e: Expr, var: Var) -> Dim | None:
    """d such that `e == d * var + (something without var)`, or None if `e` is not linear in it."""
    if e is var:
        return 1
    if not children(e):
        return 0
    if isinstance(e, Binary) and e.op in ("add", "sub"):
        a, b = coefficient(e.a, var), coefficient(e.b, var)
        if a is None or b is None:
            return None
        return dims.add(a, b if e.op == "add" else dims.multiply(b, -1))
    if isinstance(e, Binary) and e.op == "mul":
        for x, y in ((e.a, e.b), (e.b, e.a)):
            scale = dim_of(y)
            inner = coefficient(x, var) if scale is not None else None
            if inner is not None and scale is not None:
                return dims.multiply(inner, scale)
    return None if var in free_vars(e) else 0
