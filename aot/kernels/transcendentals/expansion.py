"""Expands exp, log, tanh, erf, sin, pow and related functions into basic operations.

Owns the formulas and their error bounds; every backend uses `expand`, none calls a library. Only
add, sub, mul, div, fma, comparisons, selects, casts, bitcasts and integer operations of the float's
size come out, without branches, tables or memory, so that results vectorise and fit any target.

Bounds hold for round-to-nearest arithmetic with correctly rounded division, whether or not Fma
rounds once, if nothing else is contracted or reassociated. They are in units in the last place of
the exact result; denormal results count like others and are not flushed unless the target does.
"""

from __future__ import annotations

from aot.errors import UnsupportedError
from aot.ir.expr import Binary, Cast, Expr, Unary, rebuild
from aot.ir.types import DType
from aot.kernels.ir.scalar import schedule
from aot.kernels.transcendentals import float32 as math32
from aot.kernels.transcendentals import float64 as math64
from aot.kernels.transcendentals import remainder

# Largest error in units in the last place, by function and dtype; tests hold these over all of
# float32 (pow: over a grid). F16 is computed in F32 and rounded once more.
ULP_BOUNDS: dict[str, float] = {
    "exp": 1.1,
    "exp_nonpositive": 1.1,  # of normal results
    "expm1": 2.0,
    "log": 1.0,
    "log1p": 2.5,
    "tanh": 2.5,
    "erf": 1.75,
    "erfc": 4.0,
    "sigmoid": 2.5,
    "silu": 3.0,
    "mish": 4.0,
    "gelu": 4.0,
    "gelu_tanh": 3.0,
    "sin": 1.75,
    "cos": 1.75,
    "pow": 2.0,
    "fmod": 0.0,
}
F16_ULP_BOUND = 0.502
# of F64; sine and cosine up to 2^20
F64_ULP_BOUNDS: dict[str, float] = {
    "exp": 1.1,
    "exp_nonpositive": 1.1,
    "expm1": 2.0,
    "log": 1.0,
    "log1p": 2.5,
    "tanh": 2.5,
    "sigmoid": 2.5,
    "silu": 3.5,
    "mish": 5.0,
    "sin": 1.5,
    "cos": 1.5,
    "fmod": 0.0,
}


def expand(e: Expr, memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with every transcendental function expanded into basic operations.

    Args:
        memo: what earlier calls made of shared nodes; give one dict to all calls whose results
            are to share what their arguments share.

    Raises:
        UnsupportedError: erf or pow of f64, which have no formula yet.
    """
    done: dict[Expr, Expr] = {} if memo is None else memo
    for node in schedule([e]):
        if node not in done:
            done[node] = _expand_node(rebuild(node, done.__getitem__))
    return done[e]


def _expand_node(node: Expr) -> Expr:
    is_ours = isinstance(node, Unary | Binary) and node.op in ULP_BOUNDS
    if not is_ours:
        return node
    assert isinstance(node, Unary | Binary)
    args = (node.a,) if isinstance(node, Unary) else (node.a, node.b)
    if node.op == "fmod":
        return remainder.fmod(*args)
    match node.dtype:
        case DType.F32:
            return math32.FUNCTIONS[node.op](*args)
        case DType.F16:
            wide = math32.FUNCTIONS[node.op](*(Cast(a, DType.F32) for a in args))
            return Cast(wide, DType.F16)
        case DType.F64 if node.op in math64.FUNCTIONS:
            return math64.FUNCTIONS[node.op](*args)
    raise UnsupportedError("no formula for", [f"{node.op} of {node.dtype}"])
