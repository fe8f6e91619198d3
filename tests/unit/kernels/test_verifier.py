"""The verifier of kernel IR: each rule, on its exact message, beside a kernel that keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from aot.errors import InternalError
from aot.ir.dims import symbol
from aot.ir.expr import (
    Binary,
    Bitcast,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Param,
    Reduce,
    Select,
    Size,
    Unary,
    Var,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Barrier,
    Buffer,
    BufferClass,
    For,
    Kernel,
    KernelBuilder,
    LoopKind,
    MatrixDot,
    Prefetch,
    Scratch,
    Space,
    Stmt,
)
from aot.kernels.ir.verifier import verify
from tests.support.hard_kernels import HARD_KERNELS, HardKernel
from tests.support.kernel_terms import (
    BOOL,
    F32,
    I32,
    INDEX,
    add,
    f32,
    grid,
    ix,
    lane,
    let,
    load,
    op,
    parallel,
    serial,
    store,
    unrolled,
    vector,
    when,
)

K, LOOP = symbol("K"), Var("i")
F16, I64 = DType.F16, DType.I64


@dataclass
class Site:
    """Things that a rule's kernel is made of."""

    b: KernelBuilder
    x: Buffer
    y: Buffer
    s: Scratch
    w: Scratch

    @staticmethod
    def fresh() -> Site:
        b = KernelBuilder("k")
        return Site(
            b,
            b.buffer("x", F32, BufferClass.INPUTS, (8,), (1,)),
            b.buffer("y", F32, BufferClass.OUTPUTS, (8,), (1,), is_written=True),
            b.scratch("s", F32, (4,)),
            b.scratch("w", F32, (8,), Space.WORKGROUP),
        )

    def put(self, value: Expr, at: Expr | int = 0, guard: Expr | None = None) -> Stmt:
        return store(self.y, ix(at), value=value, guard=guard)


def matrices(k: Site, line: int, dtype: DType = DType.I8X4) -> MatrixDot:
    """Products into lines of so many sums, of words of bytes or of others."""
    sums = k.b.scratch("r", I32, (line,))
    bytes_ = k.b.scratch("bytes", dtype.part, (64,))
    words = Load(bytes_, (ix(0),), dtype)
    return MatrixDot(sums, (), words, (words, words))


Rule = Callable[[Site], tuple[Stmt, ...]]


def value(make: Callable[[Site], Expr]) -> Rule:
    """A kernel that stores the value."""
    return lambda k: (k.put(make(k)),)


ONE, TWO = f32(1), f32(2)
YES = Const(BOOL, True)

BROKEN: list[tuple[str, Rule]] = [
    # values
    ("variable i is not bound", value(lambda k: Cast(LOOP, F32))),
    ("f32 parameter a is not declared", value(lambda k: Param("a", F32))),
    ("a size uses K: no such index parameter", value(lambda k: Cast(Size(K), F32))),
    (
        "fma of i32",
        value(lambda k: Cast(Fma(Const(I32, 1), Const(I32, 1), Const(I32, 1), I32), F32)),
    ),
    ("fma of f16 gives f32", value(lambda k: Fma(ONE, Const(F16, 1), TWO, F32))),
    ("select by f32, expected bool", value(lambda k: Select(ONE, ONE, TWO, F32))),
    ("select of f32 and f16 as f32", value(lambda k: Select(YES, ONE, Const(F16, 1), F32))),
    ("bitcast of f32 to f16", value(lambda k: Cast(Bitcast(ONE, F16), F32))),
    (
        "a reduce stands in a kernel: expected loops",
        value(lambda k: Reduce("sum", ((LOOP, 4),), ONE, F32)),
    ),
    ("add of f32 and f16", value(lambda k: Binary("add", ONE, Const(F16, 1), F32))),
    ("add of f32 gives f16", value(lambda k: Cast(Binary("add", ONE, TWO, F16), F32))),
    ("lt of f32 gives f32", value(lambda k: Binary("lt", ONE, TWO, F32))),
    ("and of f32 gives f32", value(lambda k: Binary("and", ONE, TWO, F32))),
    ("floordiv of f32 gives f32", value(lambda k: Binary("floordiv", ONE, TWO, F32))),
    (
        "pow of i32 gives i32",
        value(lambda k: Cast(Binary("pow", Const(I32, 1), Const(I32, 1), I32), F32)),
    ),
    ("add of bool gives bool", value(lambda k: Cast(Binary("add", YES, YES, BOOL), F32))),
    ("unknown binary op 'plus'", value(lambda k: Binary("plus", ONE, TWO, F32))),
    ("unknown unary op 'cbrt'", value(lambda k: Unary("cbrt", ONE, F32))),
    ("exp of i32 gives i32", value(lambda k: Cast(Unary("exp", Const(I32, 1), I32), F32))),
    ("not of f32 gives bool", value(lambda k: Cast(Unary("not", ONE, BOOL), F32))),
    ("bitnot of f32 gives f32", value(lambda k: Unary("bitnot", ONE, F32))),
    ("isnan of f32 gives f32", value(lambda k: Unary("isnan", ONE, F32))),
    ("literal 300 of u8", value(lambda k: Cast(Const(DType.U8, 300), F32))),
    ("literal -1 of u32", value(lambda k: Cast(Const(DType.U32, -1), F32))),
    ("literal 1.5 of i32", value(lambda k: Cast(Const(I32, 1.5), F32))),
    ("literal 1 of bool", value(lambda k: Cast(Const(BOOL, 1), F32))),
    # accesses
    ("the value stored to y is f16, expected f32", value(lambda k: Const(F16, 1))),
    ("the guard of a store to y is f32, expected bool", lambda k: (k.put(ONE, 0, ONE),)),
    ("store to x, which is not marked as written", lambda k: (store(k.x, ix(0), value=ONE),)),
    ("load of f32 x as f16", value(lambda k: Cast(Load(k.x, (ix(0),), F16), F32))),
    ("2 indices of x of rank 1", value(lambda k: load(k.x, ix(0), ix(0)))),
    ("index 0 of x is i32, expected index", value(lambda k: load(k.x, Const(I32, 0)))),
    (
        "load of x has a guard without a value for where it fails, or the reverse",
        value(lambda k: Load(k.x, (ix(0),), F32, YES)),
    ),
    ("the guard of a load of x is f32", value(lambda k: Load(k.x, (ix(0),), F32, ONE, ONE))),
    ("load of f32 x or else f16", value(lambda k: Load(k.x, (ix(0),), F32, YES, Const(F16, 0)))),
    ("z is not declared", value(lambda k: load(Scratch("z", F32, (1,), Space.REGISTER), ix(0)))),
    ("access of 0, which is neither buffer nor scratch", value(lambda k: Load(0, (ix(0),), F32))),
    (
        "index 0 of register scratch s does not become a constant: expected variables of unrolled, "
        "vector or lane loops in serial loop i",
        lambda k: (serial(LOOP, 4, [store(k.s, LOOP, value=ONE)]),),
    ),
    # statements
    ("the condition of an if is f32, expected bool", lambda k: (when(ONE, []),)),
    ("the value of t is f32, expected i32", lambda k: (let(Var("t", I32), ONE),)),
    (
        "variable t is not bound",
        lambda k: (lambda t: (when(YES, [let(t, ONE)]), k.put(t)))(Var("t", F32)),
    ),
    (
        "variable i hides another of that name in serial loop i",
        lambda k: (serial(LOOP, 2, [let(Var("i", F32), ONE)]),),
    ),
    ("variable name '%0' is not an identifier", lambda k: (let(Var("%0", F32), ONE),)),
    ("loop variable i is f32, expected index", lambda k: (serial(Var("i", F32), 2, []),)),
    ("the extent of loop i uses K: no such index parameter", lambda k: (serial(LOOP, K, []),)),
    ("loop i has extent -1", lambda k: (serial(LOOP, -1, []),)),
    ("workgroup loop i is not outermost", lambda k: (k.put(ONE), *grid([(LOOP, 2, 0)], []))),
    (
        "workgroup loop i is not outermost in serial loop j",
        lambda k: (serial(Var("j"), 2, grid([(LOOP, 2, 0)], [])),),
    ),
    (
        "two workgroup loops on axis 0 in workgroup loop i",
        lambda k: grid([(LOOP, 2, 0), (Var("j"), 2, 0)], []),
    ),
    ("loop i is on axis 3: expected 0, 1 or 2", lambda k: grid([(LOOP, 2, 3)], [])),
    # lanes
    (
        "lane loop j has extent 4: expected 8, as others on axis 0",
        lambda k: (lane(LOOP, 8, []), lane(Var("j"), 4, [])),
    ),
    (
        "lane loop j stands inside another on axis 0 in lane loop i",
        lambda k: (lane(LOOP, 8, [lane(Var("j"), 8, [])]),),
    ),
    (
        "lane loop j stands inside a vector loop in vector loop i",
        lambda k: (vector(LOOP, 8, [lane(Var("j"), 8, [])]),),
    ),
    (
        "store to y outside the lane loops of axis 0: every lane would do it",
        lambda k: (lane(LOOP, 8, []), k.put(ONE)),
    ),
    (
        "store to y outside the lane loops of axis 1: every lane would do it in lane loop i",
        lambda k: (lane(LOOP, 8, [k.put(ONE)]), lane(Var("j"), 2, [], 1)),
    ),
    (
        "store to w outside the lane loops of axis 0: every lane would do it",
        lambda k: (lane(LOOP, 8, []), store(k.w, ix(0), value=ONE)),
    ),
    (
        "s differs from lane to lane and is read outside their loop",
        lambda k: (
            lane(LOOP, 8, [store(k.s, ix(0), value=ONE), k.put(ONE, LOOP)]),
            when(op("lt", load(k.s, ix(0)), 1), []),
        ),
    ),
    ("barrier inside a lane loop in lane loop i", lambda k: (lane(LOOP, 8, [Barrier()]),)),
    ("barrier inside a vector loop in vector loop i", lambda k: (vector(LOOP, 8, [Barrier()]),)),
    (
        "prefetch of x inside a vector or lane loop in vector loop i",
        lambda k: (vector(LOOP, 8, [Prefetch(k.x, LOOP)]),),
    ),
    (
        "the index of a prefetch of x is f32, expected index",
        lambda k: (Prefetch(k.x, ONE),),
    ),
    (
        "matrix products into r inside a vector or lane loop in vector loop i",
        lambda k: (vector(LOOP, 8, [matrices(k, 8)]),),
    ),
    ("r has no lines of 8 sums in registers", lambda k: (matrices(k, 4),)),
    (
        "matrix products into r of what are no such words",
        lambda k: (matrices(k, 8, DType.I16X2),),
    ),
    (
        "barrier inside a parallel loop in serial loop j",
        lambda k: (parallel(LOOP, 8, [serial(Var("j"), 2, [Barrier()])]),),
    ),
]


@pytest.mark.parametrize(("message", "rule"), BROKEN, ids=[message for message, _ in BROKEN])
def test_broken_kernels(message: str, rule: Rule) -> None:
    site = Site.fresh()
    with pytest.raises(InternalError) as caught:
        verify(site.b.build(rule(site)))
    assert str(caught.value) == f"kernel k: {message}"


SYMBOLIC = [LoopKind.UNROLLED, LoopKind.VECTOR, LoopKind.LANE]


@pytest.mark.parametrize("kind", SYMBOLIC)
def test_symbolic_extents(kind: LoopKind) -> None:
    site = Site.fresh()
    site.b.dim_param("K")
    made = site.b.build((For(LOOP, K, kind, ()),))
    with pytest.raises(InternalError) as caught:
        verify(made)
    assert str(caught.value) == (f"kernel k: {kind.value} loop i has extent K: expected a constant")


KEPT: list[tuple[str, Rule]] = [
    ("a grid of one", lambda k: (k.put(ONE),)),
    ("no statement", lambda k: ()),
    (
        "three axes",
        lambda k: grid([(Var(n), 2, a) for n, a in (("p", 2), ("q", 0), ("r", 1))], [k.put(ONE)]),
    ),
    (
        "one variable in two loops",
        lambda k: (serial(LOOP, 2, [k.put(ONE, LOOP)]), serial(LOOP, 2, [k.put(ONE, LOOP)])),
    ),
    (
        "register indices through a let",
        lambda k: (
            unrolled(LOOP, 2, [let(j := Var("j"), add(LOOP, 2)), store(k.s, j, value=ONE)]),
        ),
    ),
    (
        "uniform registers in lanes",
        lambda k: (store(k.s, ix(0), value=ONE), lane(LOOP, 8, [k.put(load(k.s, ix(0)), LOOP)])),
    ),
    (
        "a barrier in a serial loop",
        lambda k: (serial(Var("j"), 2, [lane(LOOP, 8, [store(k.w, LOOP, value=ONE)]), Barrier()]),),
    ),
    (
        "a barrier under a uniform condition",
        lambda k: (when(op("lt", load(k.w, ix(0)), 1), [Barrier()]), lane(LOOP, 8, [])),
    ),
    ("workgroup scratch by any index", lambda k: (serial(LOOP, 8, [store(k.w, LOOP, value=ONE)]),)),
    (
        "logic on bool",
        value(lambda k: Cast(Binary("xor", YES, Unary("not", YES, BOOL), BOOL), F32)),
    ),
    ("bits", value(lambda k: Bitcast(Binary("shl", Bitcast(ONE, I32), Const(I32, 1), I32), F32))),
]


@pytest.mark.parametrize("rule", [rule for _, rule in KEPT], ids=[name for name, _ in KEPT])
def test_kept(rule: Rule) -> None:
    site = Site.fresh()
    verify(site.b.build(rule(site)))


def _with(
    buffers: tuple[Buffer, ...] = (),
    params: tuple[Param, ...] = (),
    scratch: tuple[Scratch, ...] = (),
    name: str = "k",
) -> Kernel:
    return Kernel(name, params, buffers, scratch, ())


def _buffer(**changes: Any) -> Buffer:
    facts: dict[str, Any] = {
        "name": "x",
        "dtype": F32,
        "binding": BufferClass.ARENA,
        "offset": Param("o", INDEX),
        "shape": (4,),
        "strides": (1,),
    }
    return Buffer(**{**facts, **changes})


OFFSET = Param("o", INDEX)
DECLARATIONS: list[tuple[str, Kernel]] = [
    ("buffer x has True for a dim", _with((_buffer(shape=(True,)),), (OFFSET,))),
    (
        "index parameter c is not declared",
        _with((_buffer(class_param=Param("c", INDEX)),), (OFFSET,)),
    ),
    ("int is not a statement", Kernel("k", (), (), (), (3,))),  # type: ignore[arg-type]
    ("'a b' is not an identifier", _with(name="a b")),
    ("parameter name n is used twice", _with(params=(Param("n", INDEX), Param("n", F32)))),
    ("parameter name '1' is not an identifier", _with(params=(Param("1", F32),))),
    ("index parameter o is not declared", _with((_buffer(),))),
    (
        "the offset of buffer x is i64, expected index",
        _with((_buffer(offset=Param("o", I64)),), (Param("o", I64),)),
    ),
    (
        "buffer or scratch name x is used twice",
        _with((_buffer(),), (OFFSET,), (Scratch("x", F32, (1,), Space.REGISTER),)),
    ),
    (
        "two buffers share an offset parameter",
        _with((_buffer(offset=OFFSET), _buffer(name="y", offset=OFFSET)), (OFFSET,)),
    ),
    (
        "buffer x has dtype index, which has no size in memory",
        _with((_buffer(dtype=INDEX),), (OFFSET,)),
    ),
    ("buffer x has 2 dims and 1 strides", _with((_buffer(shape=(4, 4)),), (OFFSET,))),
    ("buffer x uses K: no such index parameter", _with((_buffer(shape=(K,)),), (OFFSET,))),
    (
        "buffer x of class CONSTANTS is written",
        _with((_buffer(binding=BufferClass.CONSTANTS, is_written=True),), (OFFSET,)),
    ),
    (
        "buffer x of class INPUTS is written",
        _with((_buffer(binding=BufferClass.INPUTS, is_written=True),), (OFFSET,)),
    ),
    (
        "scratch s has shape (0,): expected positive integers",
        _with(scratch=(Scratch("s", F32, (0,), Space.REGISTER),)),
    ),
]


@pytest.mark.parametrize(("message", "kernel"), DECLARATIONS, ids=[m for m, _ in DECLARATIONS])
def test_broken_declarations(message: str, kernel: Kernel) -> None:
    with pytest.raises(InternalError) as caught:
        verify(kernel)
    assert str(caught.value) == f"kernel k: {message}".replace(
        "kernel k: 'a b'", "kernel a b: 'a b'"
    )


def test_a_deep_expression_needs_no_recursion() -> None:
    site = Site.fresh()
    e: Expr = load(site.x, ix(0))
    for _ in range(5000):
        e = add(e, ONE)
    verify(site.b.build((site.put(e),)))


def test_builder_names_are_unique() -> None:
    b = KernelBuilder("k")
    names = [b.unique(name) for name in ("x", "x_1", "x", "x", "x_1", "x_1_1", "x")]
    assert len(set(names)) == len(names)
    assert names == ["x", "x_1", "x_2", "x_3", "x_1_1", "x_1_1_1", "x_4"]


@pytest.mark.parametrize("case", HARD_KERNELS, ids=lambda case: case.name)
def test_hard_kernels_are_kept(case: HardKernel) -> None:
    verify(case.make())
