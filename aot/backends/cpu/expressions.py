"""Emits expressions, each node once: as a scalar while all lanes agree, else as a vector.

Owns the dispatch from expression nodes to arithmetic, conversions, indices and memory. Statements
and loops are `statements`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.cpu import arithmetic, dot_products, quantising
from aot.backends.cpu.assembler import Type, Value, integer, real
from aot.backends.cpu.convert import convert, type_bits
from aot.backends.cpu.lanes import Affine, Laned, Lanes, PerLane, is_uniform
from aot.backends.cpu.memory import Memory
from aot.backends.cpu.picked import is_picked, picked
from aot.backends.cpu.ranges import LinearForm, interval
from aot.backends.cpu.scopes import Scopes
from aot.backends.cpu.traits import Traits
from aot.errors import CompileError, InternalError
from aot.ir import dims
from aot.ir.dims import Interval
from aot.ir.expr import (
    COMPARE_OPS,
    Binary,
    Bitcast,
    Cast,
    Const,
    Dot,
    Expr,
    Fma,
    Load,
    Param,
    Select,
    Size,
    Unary,
    Unpack,
    Var,
    children,
)
from aot.ir.types import DType


class Expressions:
    """The values of expressions at the current position; `mask` has the active lanes (None:
    all)."""

    def __init__(self, lanes: Lanes, scopes: Scopes) -> None:
        self.lanes = lanes
        self.asm = lanes.asm
        self.traits: Traits = lanes.traits
        self.scopes = scopes
        self.mask: Value | None = None
        self.memory: Memory  # set by its owner: memory needs `evaluate` for indices
        self._expanded: dict[Expr, Expr] = {}
        self._narrowed: dict[Expr, Expr] = {}

    def evaluate(self, root: Expr) -> Laned:
        """Emits the value of `root`."""
        known = self.scopes.known
        stack = [root]
        while stack:
            e = stack[-1]
            if e in known:
                stack.pop()
                continue
            operands = _operands(e)
            missing = [c for c in operands if c not in known]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.scopes.put(e, self._emit(e, [known[c] for c in operands]))
        return known[root]

    def root(self, e: Expr) -> Laned:
        """The value of a statement's expression, with operators without instructions expanded."""
        return self.evaluate(self.expand(e))

    def condition(self, e: Expr | None) -> Value | None:
        """A bool expression as i1 or a vector of i1; None if it is always true."""
        if e is None:
            return None
        value = self.root(e)
        assert isinstance(value, Value)
        return value

    def expand(self, e: Expr) -> Expr:
        """`e` rewritten to operators that have instructions."""
        if self.scopes.facts(e).needs_expansion:
            from aot.kernels.transcendentals.expansion import expand

            e = expand(e, self._expanded)
        if not self.traits.has_wide_integers:
            from aot.kernels.transcendentals import wide_integers

            e = wide_integers.expand(e, self._narrowed)
        return e

    def _emit(self, e: Expr, args: list[Laned]) -> Laned:
        match e:
            case Const():
                return self._constant(e)
            case Size():
                return self.memory.addresses.dims.value(e.dim)
            case Param():
                return self.memory.addresses.param(e)
            case Load():
                return self._load(e)
            case Unary():
                return self._unary(e, args[0])
            case Binary():
                return self._binary(e, args[0], args[1])
            case Fma():
                return self._fma(e, args)
            case Dot():
                dtypes = e.a.dtype, e.b.dtype
                asm, traits, is_narrow = self.asm, self.traits, e.is_narrow

                def made(a: Value, b: Value, c: Value) -> Value:
                    if e.dtype is DType.I16X2:
                        return dot_products.dot_of_pairs(asm, traits, a, b, c, dtypes)
                    return dot_products.dot(asm, traits, a, b, c, dtypes, is_narrow=is_narrow)

                return self._lift(made, args)
            case Unpack():
                return self._lift(
                    lambda a: dot_products.unpack(self.asm, self.traits, a, e.parts, e.a.dtype),
                    args,
                )
            case Select():
                return self._select(e, args)
            case Cast():
                return self._cast(e, args[0])
            case Bitcast():
                element = self.traits.element(e.dtype)
                if e.dtype.bytes != e.a.dtype.bytes:
                    raise InternalError(f"bitcast of {e.a.dtype} to {e.dtype}")
                return self._lift(lambda v: self.asm.cast("bitcast", v, element), args)
            case Var():
                raise InternalError(f"variable {e.name} is used outside its scope")
        raise InternalError(f"{type(e).__name__} in a kernel")

    def _constant(self, e: Const) -> Value:
        type_ = Type(self.traits.element(e.dtype))
        if e.dtype is DType.F16 and not type_.is_float:
            bits = real(float(e.value), Type("half")).ref.removeprefix("0xH")
            return integer(int(bits, 16), type_)
        if type_.is_float:
            return real(float(e.value), type_)
        if e.dtype is DType.INDEX and integer(int(e.value), type_).number != int(e.value):
            raise CompileError(
                f"an index of {e.value} does not fit the target's {type_.bits} bits; compile for "
                "a target of 64 bits"
            )
        return integer(int(e.value), type_)

    def _lift(self, fn: Callable[..., Value], args: list[Laned]) -> Value:
        """`fn` on scalars where all lanes agree, else on vectors."""
        if all(is_uniform(a) for a in args):
            return fn(*args)
        return fn(*(self.lanes.vector(a) for a in args))

    def _unary(self, e: Unary, a: Laned) -> Laned:
        if e.a.dtype is DType.INDEX and not is_uniform(a):
            if e.op == "neg":
                return self.lanes.index_binary(
                    "sub", self.lanes.constant(0), a, is_nonnegative=False
                )
            return self.lanes.per_lane(
                lambda i: arithmetic.unary(
                    self.asm, self.traits, e.op, self.lanes.lane(a, i), DType.INDEX
                )
            )
        return self._lift(
            lambda v: arithmetic.unary(self.asm, self.traits, e.op, v, e.a.dtype), [a]
        )

    def _binary(self, e: Binary, a: Laned, b: Laned) -> Laned:
        dtype = e.a.dtype
        if dtype is DType.INDEX:
            if e.op in COMPARE_OPS:
                known = dims.decided(e.op, self._difference(e.a, e.b))
                if known is not None:
                    return integer(int(known), Type("i1"))
                return self.lanes.index_compare(e.op, a, b)
            is_nonnegative = (
                self.scopes.facts(e.a).is_nonnegative and self.scopes.facts(e.b).is_nonnegative
            )
            return self.lanes.index_binary(e.op, a, b, is_nonnegative=is_nonnegative)
        if e.op in COMPARE_OPS:
            return self._lift(
                lambda x, y: arithmetic.compare(self.asm, self.traits, e.op, x, y, dtype), [a, b]
            )
        if e.op == "and" and dtype is DType.BOOL:
            both = self.lanes.mask_and(a, b)
            assert both is not None
            return both
        return self._lift(
            lambda x, y: arithmetic.binary(self.asm, self.traits, e.op, x, y, dtype), [a, b]
        )

    def _difference(self, a: Expr, b: Expr) -> Interval:
        """The interval of `a - b` over all iterations of the surrounding loops."""
        constant, terms = self.memory.addresses.resolved(LinearForm.of((a, b), (1, -1)))
        return interval(constant, terms, self.scopes.ranges)

    def _fma(self, e: Fma, args: list[Laned]) -> Laned:
        if e.dtype is DType.INDEX:
            product = self.lanes.index_binary("mul", args[0], args[1], is_nonnegative=False)
            return self.lanes.index_binary("add", product, args[2], is_nonnegative=False)
        return self._lift(
            lambda a, b, c: arithmetic.fma(self.asm, self.traits, a, b, c, e.dtype), args
        )

    def _select(self, e: Select, args: list[Laned]) -> Laned:
        condition, a, b = args
        assert isinstance(condition, Value)
        if condition.number is not None:
            return a if condition.number else b
        if is_uniform(a) and is_uniform(b) and is_uniform(condition):
            return self._lift(self.asm.select, args)
        if self.traits.has_nan_extrema and (extremum := _limit(e)) is not None:
            limit, value = self.lanes.vector(a), self.lanes.vector(b)
            return arithmetic.binary(self.asm, self.traits, extremum, value, limit, e.dtype)
        if e.dtype is not DType.INDEX:
            chosen = self.lanes.vector(condition) if condition.type.lanes else condition
            return self.asm.select(chosen, self.lanes.vector(a), self.lanes.vector(b))
        if is_uniform(condition) and isinstance(a, Affine) and isinstance(b, Affine):
            return Affine(
                self.asm.select(condition, a.base, b.base),
                a.step
                if a.step.number is not None and a.step.number == b.step.number
                else self.asm.select(condition, a.step, b.step),
            )
        return self.lanes.per_lane(
            lambda i: self.asm.select(
                self.lanes.lane(condition, i), self.lanes.lane(a, i), self.lanes.lane(b, i)
            )
        )

    def _cast(self, e: Cast, a: Laned) -> Laned:
        source, to = e.a.dtype, e.dtype
        quick = self._quantised(e)
        if quick is not None:
            return quick

        def one(value: Value) -> Value:
            return convert(self.asm, self.traits, value, source, to)

        if to is DType.INDEX and not is_uniform(a):
            return self.lanes.per_lane(lambda i: one(self.lanes.lane(a, i)))
        if isinstance(a, PerLane):
            return self.asm.gather([one(v) for v in a.values])
        if isinstance(a, Affine) and to.is_integer:
            narrow = Affine(one(a.base), one(a.step))
            type_ = Type(self.traits.element(to), self.lanes.count)
            if type_bits(type_.element) <= self.lanes.index.bits:
                return self._stepped(narrow, type_)
        return self._lift(one, [a])

    def _quantised(self, e: Cast) -> Value | None:
        """Emits a cast that quantises or dequantises by x86's rounding instructions; None for other
        casts.
        """
        if self.traits.target.arch != "x86_64" or not self.traits.has_rounding:
            return None
        found, made = quantising.centred(e), quantising.quantise_centred
        if found is None:
            found, made = quantising.quantised(e), quantising.quantise
        if found is None:
            return None
        number, *zeros = (self.evaluate(x) for x in found.operands)
        if is_uniform(number) or not all(isinstance(z, Value) for z in zeros):
            return None
        zero = zeros[0] if zeros else None
        assert zero is None or isinstance(zero, Value)
        return made(self.asm, self.traits, found, self.lanes.vector(number), zero)

    def _stepped(self, a: Affine, type_: Type) -> Value:
        """The vector `base + step * lane` in a narrower integer type."""
        from aot.backends.cpu.assembler import iota

        splat = self.asm.splat(a.base, type_.lanes)
        if a.step.number is not None:
            return self.asm.op("add", splat, iota(type_, a.step.number))
        steps = self.asm.op("mul", self.asm.splat(a.step, type_.lanes), iota(type_))
        return self.asm.op("add", splat, steps)

    def _load(self, e: Load) -> Laned:
        known = self.scopes.known
        guard = None if e.guard is None else known[e.guard]
        assert guard is None or isinstance(guard, Value)
        other = None if e.other is None else known[e.other]
        if e.source.dtype not in (e.dtype, e.dtype.part):
            raise InternalError(f"load of {e.source.name} as {e.dtype}, it is {e.source.dtype}")
        if is_picked(self.memory, e):
            found = picked(self.memory, e)
            if found is not None:
                return found
        return self.memory.load(e.source, e.indices, e.dtype, guard, other, self.mask)


def _operands(e: Expr) -> tuple[Expr, ...]:
    """Expressions that must be evaluated before `e`; a load's indices become an address instead."""
    if isinstance(e, Load):
        return tuple(x for x in (e.guard, e.other) if x is not None)
    return children(e)


def _limit(e: Select) -> str | None:
    """The op, "max" or "min", of a selection that limits a float by a constant other than 0 and
    keeps NaN; None for others."""
    ask, number = e.condition, e.a
    if not isinstance(ask, Binary) or not isinstance(number, Const) or not e.dtype.is_float:
        return None
    is_same = isinstance(ask.b, Const) and ask.b.value == number.value
    if number.value == 0 or not is_same or ask.a is not e.b:
        return None
    return {"lt": "max", "gt": "min"}.get(ask.op)
