"""Emits scalar expressions: what each node of `aot.ir.expr` is in SPIR-V.

Owns the semantics that GLSL's instructions do not have (NaN-propagating extrema, saturating casts,
wrapping narrow integers) and what must not reach this backend. Transcendentals are rewritten by
`aot.kernels.transcendentals.expansion`, so that a shader computes what the CPU's code computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.backends.vulkan.dot_products import DotProducts
from aot.backends.vulkan.limits import LimitError
from aot.backends.vulkan.memory import WIDE_INTEGERS, Memory, Pair
from aot.backends.vulkan.quotients import beside_halves, exact_inverse
from aot.backends.vulkan.spirv import Glsl, Op
from aot.backends.vulkan.values import MASK, SIGNED_COMPARE, UNKNOWN, Linear, Values
from aot.backends.vulkan.wide_integers import WideIntegers
from aot.errors import InternalError, UnsupportedError
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
    Var,
    children,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, Scratch
from aot.kernels.transcendentals import wide_integers
from aot.kernels.transcendentals.expansion import expand

# An INDEX is a Linear, a 64-bit integer a Pair, everything else an id.
Value = int | Linear | Pair

_FLOAT_COMPARE = {
    "eq": Op.F_ORD_EQUAL,
    "ne": Op.F_UNORD_NOT_EQUAL,
    "lt": Op.F_ORD_LESS_THAN,
    "le": Op.F_ORD_LESS_THAN_EQUAL,
    "gt": Op.F_ORD_GREATER_THAN,
    "ge": Op.F_ORD_GREATER_THAN_EQUAL,
}
_UNSIGNED_COMPARE = SIGNED_COMPARE | {
    "lt": Op.U_LESS_THAN,
    "le": Op.U_LESS_THAN_EQUAL,
    "gt": Op.U_GREATER_THAN,
    "ge": Op.U_GREATER_THAN_EQUAL,
}
_FLOAT_BINARY = {"add": Op.F_ADD, "sub": Op.F_SUB, "mul": Op.F_MUL, "div": Op.F_DIV}
_FLOAT_UNARY = {
    "abs": Glsl.F_ABS,
    "sqrt": Glsl.SQRT,
    "floor": Glsl.FLOOR,
    "ceil": Glsl.CEIL,
    "trunc": Glsl.TRUNC,
    "round": Glsl.ROUND_EVEN,
}
_INTEGER_BINARY = {
    "add": Op.I_ADD,
    "sub": Op.I_SUB,
    "mul": Op.I_MUL,
    "and": Op.BITWISE_AND,
    "or": Op.BITWISE_OR,
    "xor": Op.BITWISE_XOR,
    "shl": Op.SHIFT_LEFT_LOGICAL,
}
_BOOL_BINARY = {
    "and": Op.LOGICAL_AND,
    "or": Op.LOGICAL_OR,
    "xor": Op.LOGICAL_NOT_EQUAL,
    "eq": Op.LOGICAL_EQUAL,
    "ne": Op.LOGICAL_NOT_EQUAL,
    "min": Op.LOGICAL_AND,
    "max": Op.LOGICAL_OR,
}
_UNSIGNED_EXTREMUM = {"min": Glsl.U_MIN, "max": Glsl.U_MAX}


def _widened(dtype: DType) -> DType:
    """The 32-bit dtype that holds values of a narrow one."""
    return DType.F32 if dtype.is_float else DType.I32 if dtype.is_signed else DType.U32


def float_bits(value: float) -> int:
    """The bits of `value` rounded to f32."""
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32))


class Expressions:
    """Evaluates expressions at the tail; equal pure values are made once."""

    def __init__(
        self, name: str, values: Values, memory: Memory, *, has_dot_product: bool = False
    ) -> None:
        self.name = name
        self.values = values
        self.memory = memory
        self.elements = memory.elements
        self.params = memory.params
        self.asm = values.asm
        self.dots = DotProducts(name, memory.elements, has_instruction=has_dot_product)
        self.wide = WideIntegers(values)
        self.environment: dict[Var, Value] = {}
        self._memo: dict[Expr, Value] = {}
        self._expansions: dict[Expr, Expr] = {}
        self._narrowed: dict[Expr, Expr] = {}

    def fail(self, what: str) -> InternalError:
        return InternalError(
            f"kernel {self.name}: {what} cannot be a shader; legalisation should have removed it"
        )

    # Entry points

    def start_statement(self) -> None:
        """A node is evaluated once a statement; memory may change between statements."""
        self._memo.clear()

    def value(self, root: Expr) -> Value:
        """The value of `root`; operands come before their users, without recursion."""
        if root in self._memo:  # of an expanded one, whose operands are not to be gone over again
            return self._memo[root]
        root = self._expanded(root)
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._memo:
                stack.pop()
                continue
            missing = [c for c in self._operands(node) if c not in self._memo]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self._memo[node] = self._node(node)
        return self._memo[root]

    def _operands(self, node: Expr) -> Sequence[Expr]:
        """The subexpressions to evaluate before a node."""
        load = self._converted_load(node)
        if load is None:
            return children(node)
        return [c for c in children(load) if not isinstance(c, Const)]

    def _converted_load(self, e: Expr) -> Load | None:
        """A load of a native narrow type that `e` converts: it comes out in 32 bits, so that no
        arithmetic in that type is needed."""
        if not isinstance(e, Cast) or not isinstance(e.a, Load) or e.dtype is DType.BOOL:
            return None
        is_native = self.elements.is_native(e.a.dtype) and e.dtype is not e.a.dtype
        return e.a if is_native and isinstance(e.a.source, Buffer) else None

    def _expanded(self, e: Expr) -> Expr:
        try:
            return wide_integers.expand(expand(e, self._expansions), self._narrowed)
        except UnsupportedError as error:
            raise self.fail(str(error)) from error

    def scalar(self, e: Expr) -> int:
        """The id of a value of up to 32 bits."""
        return self._id(self.value(e), e.dtype)

    def index(self, e: Expr) -> Linear:
        found = self.value(e)
        if not isinstance(found, Linear):
            raise InternalError(f"kernel {self.name}: an index is {e.dtype}")
        return found

    def stored(self, e: Expr) -> int | Pair:
        """A value in the form that memory takes."""
        found = self.value(e)
        return found if isinstance(found, tuple) else self._id(found, e.dtype)

    def _id(self, value: Value, dtype: DType) -> int:
        if isinstance(value, Linear):
            return self.values.id_of(value)
        if isinstance(value, tuple):
            raise self.fail(f"arithmetic on {dtype}")
        return value

    def _wrap(self, value: int, dtype: DType) -> Value:
        return self.values.atom(value) if dtype is DType.INDEX else value

    # Nodes

    def _node(self, e: Expr) -> Value:
        match e:
            case Const():
                return self._const(e)
            case Var():
                if e not in self.environment:
                    raise InternalError(f"kernel {self.name}: variable {e.name} is not bound")
                return self.environment[e]
            case Size():
                return self.params.dim(e.dim)
            case Param():
                return self._param(e)
            case Load():
                return self._load(e)
            case Unary():
                return self._unary(e)
            case Binary():
                return self._binary(e)
            case Fma():
                return self._fma(e)
            case Dot():
                return self.dots.sum(e, *(self.scalar(x) for x in (e.a, e.b, e.c)))
            case Select():
                return self._select(e)
            case Cast():
                return self._cast(e)
            case Bitcast():
                return self._bitcast(e)
        raise self.fail(f"a {type(e).__name__.lower()}")

    def _const(self, e: Const) -> Value:
        if e.dtype is DType.INDEX:
            if not -(1 << 31) <= e.value < 1 << 32:
                raise LimitError(self.name, f"an index of {e.value} does not fit 32 bits")
            return Linear((), int(e.value))
        if e.dtype in WIDE_INTEGERS:
            return self.values.u32(int(e.value)), self.values.u32(int(e.value) >> 32)
        if e.dtype is DType.BOOL:
            return self.values.boolean(bool(e.value))
        if e.dtype is DType.F16:
            with np.errstate(over="ignore"):
                half = np.float16(e.value)
            if self.elements.is_native(DType.F16):
                return self.asm.constant(self._type(e.dtype), int(half.view(np.uint16)))
            return self.values.f32_bits(float_bits(float(half)))
        if e.dtype is DType.F32:
            return self.values.f32_bits(float_bits(float(e.value)))
        if e.dtype is DType.F64:
            raise self.fail("an f64 literal")
        if self.elements.is_native(e.dtype):
            bits = int(e.value) & (1 << e.dtype.bits) - 1
            return self.asm.constant(self._type(e.dtype), bits)
        return self.values.u32(int(e.value))

    def _param(self, e: Param) -> Value:
        word = self.params.word(e.name)
        if e.dtype is DType.INDEX:
            return self.values.atom(word)
        if e.dtype in WIDE_INTEGERS:
            return word, self._sign(word) if e.dtype is DType.I64 else self.values.u32(0)
        if e.dtype is DType.F32:
            return self.values.pure(Op.BITCAST, self.asm.f32, word)
        if e.dtype is DType.F16:
            return self.elements.from_bits(word, e.dtype)
        if e.dtype is DType.BOOL:
            return self.values.pure(Op.I_NOT_EQUAL, self.asm.boolean, word, self.values.u32(0))
        if e.dtype is DType.F64:
            raise self.fail("an f64 parameter")
        return self._normalise(word, e.dtype)

    def _load(self, e: Load, *, is_wide: bool = False) -> Value:
        if e.dtype is DType.F64:
            raise self.fail(f"a load of f64 {e.source.name}")
        guard = None if e.guard is None else self.scalar(e.guard)
        if guard is not None and self.values.bits(guard) is not None:
            if not self.values.bits(guard):
                assert e.other is not None
                return self._other(e.other, is_wide=is_wide)
            guard = None
        indices = [self.index(i) for i in e.indices]
        if isinstance(e.source, Scratch):
            loaded: int | Pair = self.memory.load_scratch(e.source, indices, guard)
        elif e.dtype.is_packed:
            loaded = self.memory.load_word(e.source, indices, guard)
        else:
            loaded = self.memory.load_buffer(e.source, indices, guard, is_wide=is_wide)
        value: Value = loaded if isinstance(loaded, tuple) else self._wrap(loaded, e.dtype)
        if guard is None or e.other is None:
            return value
        other = self._other(e.other, is_wide=is_wide)
        dtype = _widened(e.dtype) if is_wide else e.dtype
        return self._choose(guard, value, other, dtype)

    def _other(self, e: Expr, *, is_wide: bool) -> Value:
        """The value of a load whose guard fails."""
        if not is_wide:
            return self.value(e)
        if isinstance(e, Const):
            value = np.array(e.value, e.dtype.numpy).item()
            return self._const(Const(_widened(e.dtype), value))
        return self.elements.widened(self.scalar(e), e.dtype)

    def _choose(self, condition: int, a: Value, b: Value, dtype: DType) -> Value:
        known = self.values.bits(condition)
        if known is not None:
            return a if known else b
        if isinstance(a, tuple) and isinstance(b, tuple):
            low, high = (
                self.values.select(self.asm.u32, condition, x, y) for x, y in zip(a, b, strict=True)
            )
            return low, high
        chosen = self.values.select(
            self._type(dtype), condition, self._id(a, dtype), self._id(b, dtype)
        )
        if isinstance(a, Linear) and isinstance(b, Linear):
            return self._chosen_index(chosen, a, b)
        return self._wrap(chosen, dtype)

    def _chosen_index(self, chosen: int, a: Linear, b: Linear) -> Linear:
        (low_a, high_a), (low_b, high_b) = self.values.range_of(a), self.values.range_of(b)
        low = None if low_a is None or low_b is None else min(low_a, low_b)
        high = None if high_a is None or high_b is None else max(high_a, high_b)
        if (low, high) != UNKNOWN:
            self.values.remember(chosen, (low, high))
        return self.values.atom(chosen)

    def _select(self, e: Select) -> Value:
        return self._choose(self.scalar(e.condition), self.value(e.a), self.value(e.b), e.dtype)

    def _type(self, dtype: DType) -> int:
        if dtype is DType.F64:
            raise self.fail("f64")
        return self.asm.u32 if dtype in WIDE_INTEGERS else self.elements.value_type(dtype)

    def _fma(self, e: Fma) -> Value:
        result = self.values.glsl(
            Glsl.FMA, self._type(e.dtype), self.scalar(e.a), self.scalar(e.b), self.scalar(e.c)
        )
        return self._round(result, e.dtype)

    def _round(self, value: int, dtype: DType) -> int:
        """The result of an operation on values of `dtype`, rounded to it where they are f32."""
        return value if self.elements.is_native(dtype) else self.elements.narrowed(value, dtype)

    def _normalise(self, value: int, dtype: DType) -> int:
        """A u32 result wrapped to the integer `dtype`."""
        return self.elements.narrowed(value, dtype)

    def _sign(self, word: int) -> int:
        return self.values.pure(Op.SHIFT_RIGHT_ARITHMETIC, self.asm.u32, word, self.values.u32(31))

    # Unary

    def _unary(self, e: Unary) -> Value:
        if e.op == "not":
            return self.values.pure(Op.LOGICAL_NOT, self.asm.boolean, self.scalar(e.a))
        if e.op == "isnan":
            return self.is_nan(self.scalar(e.a), e.a.dtype)
        if e.a.dtype.is_float:
            return self._float_unary(e)
        if e.a.dtype is DType.INDEX and e.op == "neg":
            return self.index(e.a).scaled(-1)
        if e.a.dtype in WIDE_INTEGERS:
            made_wide = self.wide.unary(e.op, self._pair(e.a), is_signed=e.dtype.is_signed)
            if made_wide is None:
                raise self.fail(f"{e.op} of {e.a.dtype}")
            return made_wide
        table = {"neg": Op.S_NEGATE, "bitnot": Op.NOT}
        a, type = self.scalar(e.a), self._type(e.dtype)
        if e.op in table:
            made = self.values.pure(table[e.op], type, a)
        elif e.op == "abs" and not e.dtype.is_signed:
            made = a
        elif e.op == "abs":
            negated = self.values.pure(Op.S_NEGATE, type, a)
            made = self.values.signed_extremum(a, negated, is_max=True, type=type)
        else:
            raise self.fail(f"{e.op} of {e.a.dtype}")
        return self._wrap(self._round(made, e.dtype), e.dtype)

    def _float_unary(self, e: Unary) -> Value:
        a, type = self.scalar(e.a), self._type(e.dtype)
        if e.op == "neg":
            return self.values.pure(Op.F_NEGATE, type, a)
        if e.op not in _FLOAT_UNARY:
            raise self.fail(f"{e.op} of {e.dtype}")
        if e.op == "round" and isinstance(e.a, Binary) and e.a.op == "div" and e.dtype is DType.F32:
            a = beside_halves(self.values, a, self.scalar(e.a.a), self.scalar(e.a.b))
        return self._round(self.values.glsl(_FLOAT_UNARY[e.op], type, a), e.dtype)

    def is_nan(self, value: int, dtype: DType = DType.F32) -> int:
        """By integers: a driver may assume that OpIsNan and comparisons never meet a NaN."""
        magnitude, infinity = self.elements.magnitude(value, dtype)
        return self.values.pure(
            Op.U_GREATER_THAN, self.asm.boolean, magnitude, self.values.u32(infinity)
        )

    # Binary

    def _binary(self, e: Binary) -> Value:
        dtype = e.a.dtype
        if dtype is DType.INDEX:
            found = self._index_binary(e)
            if found is not None:
                return found
        if dtype in WIDE_INTEGERS:
            return self._wide_binary(e)
        a, b = self.scalar(e.a), self.scalar(e.b)
        if dtype is DType.BOOL:
            if e.op not in _BOOL_BINARY:
                raise self.fail(f"{e.op} of bool")
            return self.values.pure(_BOOL_BINARY[e.op], self.asm.boolean, a, b)
        if dtype.is_float:
            return self._float_binary(e, a, b)
        return self._wrap(self._integer_binary(e.op, a, b, dtype), e.dtype)

    def _pair(self, e: Expr) -> Pair:
        found = self.value(e)
        if not isinstance(found, tuple):
            raise self.fail(f"a word of {e.dtype}")
        return found

    def _wide_binary(self, e: Binary) -> Value:
        a, b, is_signed = self._pair(e.a), self._pair(e.b), e.a.dtype.is_signed
        if e.op in COMPARE_OPS:
            return self.wide.compare(e.op, a, b, is_signed=is_signed)
        found = self.wide.binary(e.op, a, b, is_signed=is_signed)
        if found is None:
            raise self.fail(f"{e.op} of {e.dtype}")
        return found

    def _index_binary(self, e: Binary) -> Value | None:
        a, b = self.index(e.a), self.index(e.b)
        if e.op in COMPARE_OPS:
            return self.values.compare(e.op, a, b)
        match e.op:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                return self.values.multiply(a, b)
            case "floordiv":
                return self.values.floor_divide(a, b)
            case "floormod":
                return self.values.floor_modulo(a, b)
            case "min" | "max":
                return self.values.extremum(a, b, is_max=e.op == "max")
        return None

    def _float_binary(self, e: Binary, a: int, b: int) -> Value:
        type = self._type(e.a.dtype)
        if e.op in COMPARE_OPS:
            return self._float_comparison(e.op, a, b, dtype=e.a.dtype)
        if e.op in ("min", "max"):
            return self._float_extremum(e.op, a, b, dtype=e.dtype)
        if e.op not in _FLOAT_BINARY:
            raise self.fail(f"{e.op} of {e.dtype}")
        op = _FLOAT_BINARY[e.op]
        if op is Op.F_DIV and not self.elements.is_native(e.dtype):
            inverse = exact_inverse(self.values, b)
            if inverse is not None:
                op, b = Op.F_MUL, inverse
        return self._round(self.values.pure(op, type, a, b), e.dtype)

    def _float_comparison(self, op: str, a: int, b: int, dtype: DType) -> int:
        """A comparison of floats; with a NaN it fails, and `ne` holds."""
        pure, boolean = self.values.pure, self.asm.boolean
        made = pure(_FLOAT_COMPARE[op], boolean, a, b)
        for value in dict.fromkeys((a, b)):
            if self.elements.is_literal_number(value, dtype):
                continue
            is_nan = self.is_nan(value, dtype)
            if op == "ne":
                made = pure(Op.LOGICAL_OR, boolean, made, is_nan)
            else:
                made = pure(Op.LOGICAL_AND, boolean, made, pure(Op.LOGICAL_NOT, boolean, is_nan))
        return made

    def _float_extremum(self, op: str, a: int, b: int, dtype: DType) -> int:
        """The smaller or larger of two floats, or the one that is NaN.

        GLSL's NMin and NMax drop a NaN, FMin and FMax may, and a comparison with one may have
        either result.
        """
        compare = Op.F_ORD_LESS_THAN if op == "min" else Op.F_ORD_GREATER_THAN
        type = self._type(dtype)
        for literal, other in ((a, b), (b, a)):
            exceeds = self._exceeds(op, other, literal, dtype)
            if exceeds is not None:
                return self.values.select(type, exceeds, literal, other)
        is_first = self.values.pure(compare, self.asm.boolean, a, b)
        extremum = self.values.select(type, is_first, a, b)
        for value in dict.fromkeys((a, b)):
            if not self.elements.is_literal_number(value, dtype):
                is_nan = self.is_nan(value, dtype)
                extremum = self.values.select(type, is_nan, value, extremum)
        return extremum

    def _exceeds(self, op: str, value: int, literal: int, dtype: DType) -> int | None:
        """Whether a value is beyond a literal that is a bound by `op`, and not NaN, in one
        comparison of its bits: floats beyond a bound on its own side of zero are one range of
        integers. None where they are not, or what is given is no literal.
        """
        if self.elements.is_native(dtype) or not self.elements.is_literal_number(literal, dtype):
            return None
        bits, sign, infinity = self.values.bits(literal), 0x80000000, 0x7F800000
        assert bits is not None
        if bits & ~sign == 0:
            bits = sign if op == "max" else 0
        if (bits >= sign) != (op == "max"):
            return None
        first, last = bits + 1, infinity | (sign & bits)
        u32, pure = self.asm.u32, self.values.pure
        word = self.elements.as_u32(value)
        above = pure(Op.I_SUB, u32, word, self.values.u32(first))
        return pure(Op.U_LESS_THAN, self.asm.boolean, above, self.values.u32(last - first + 1))

    def _integer_binary(self, op: str, a: int, b: int, dtype: DType) -> int:
        type, is_native = self._type(dtype), self.elements.is_native(dtype)
        if op in COMPARE_OPS:
            table = SIGNED_COMPARE if dtype.is_signed else _UNSIGNED_COMPARE
            return self.values.pure(table[op], self.asm.boolean, a, b)
        if op in ("min", "max"):
            if dtype.is_signed:
                return self.values.signed_extremum(a, b, is_max=op == "max", type=type)
            if is_native:  # the extended set's are for 32 bits
                compare = _UNSIGNED_COMPARE["gt" if op == "max" else "lt"]
                is_first = self.values.pure(compare, self.asm.boolean, a, b)
                return self.values.select(type, is_first, a, b)
            return self.values.glsl(_UNSIGNED_EXTREMUM[op], type, a, b)
        if op in _INTEGER_BINARY and (op != "shl" or not is_native):
            return self._round(self.values.pure(_INTEGER_BINARY[op], type, a, b), dtype)
        # shifts by more than the width, and quotients that round down, are what 32 bits make them
        a, b = self.elements.widened(a, dtype), self.elements.widened(b, dtype)
        return self._normalise(self._word_binary(op, a, b, dtype), dtype)

    def _word_binary(self, op: str, a: int, b: int, dtype: DType) -> int:
        """Shifts and divisions of integers of `dtype`, extended to 32 bits."""
        u32 = self.asm.u32
        if op == "shl":
            return self.values.pure(_INTEGER_BINARY[op], u32, a, b)
        if op == "shr":
            shift = Op.SHIFT_RIGHT_ARITHMETIC if dtype.is_signed else Op.SHIFT_RIGHT_LOGICAL
            return self.values.pure(shift, u32, a, b)
        if op in ("div", "floordiv", "floormod"):
            return self._division(op, a, b, is_signed=dtype.is_signed)
        raise self.fail(f"{op} of {dtype}")

    def _division(self, op: str, a: int, b: int, *, is_signed: bool) -> int:
        """Division of words where a divisor of 0 gives 0, and the least one by -1 wraps: SPIR-V
        defines neither. By both the quotient is the product, and the rest 0."""
        values, u32 = self.values, self.asm.u32
        number = values.bits(b)
        is_special = None
        divisor = b
        if number is None or number in (0, MASK):
            # -1 and 0, or 0 alone
            shifted = values.pure(Op.I_ADD, u32, b, values.u32(1)) if is_signed else b
            least = values.u32(2 if is_signed else 1)
            is_special = values.pure(Op.U_LESS_THAN, self.asm.boolean, shifted, least)
            divisor = values.select(u32, is_special, values.u32(1), b)
        if not is_signed or op == "div":
            made = values.pure(Op.S_DIV if is_signed else Op.U_DIV, u32, a, divisor)
            if op == "floormod":
                product = values.pure(Op.I_MUL, u32, made, divisor)
                made = values.pure(Op.I_SUB, u32, a, product)
        else:
            quotient, rest = values.signed_floor_division(a, divisor)
            made = rest if op == "floormod" else quotient
        if is_special is None:
            return made
        other = values.u32(0) if op == "floormod" else values.pure(Op.I_MUL, u32, a, b)
        return values.select(u32, is_special, other, made)

    # Casts

    def _cast(self, e: Cast) -> Value:
        source, target = e.a.dtype, e.dtype
        if DType.F64 in (source, target):
            raise self.fail(f"a cast of {source} to {target}")
        if source in WIDE_INTEGERS or target in WIDE_INTEGERS:
            return self._wide_cast(e)
        if source is DType.INDEX and target is DType.INDEX:
            return self.value(e.a)
        load = self._converted_load(e)
        a = self.scalar(e.a) if load is None else self._id(self._load(load, is_wide=True), source)
        if target is DType.BOOL:
            return self._to_bool(a, source)
        if source is DType.BOOL:
            one = self._const(Const(target, 1))
            zero = self._const(Const(target, 0))
            return self._choose(a, one, zero, target)
        if source is target:
            return self._wrap(a, target)
        a = a if load is not None else self.elements.widened(a, source)
        if source.is_float:
            if target.is_float:
                return self.elements.narrowed(a, target)
            integer = self._float_to_integer(a, target)
            is_narrow = self.elements.is_native(target)
            return self._wrap(self._normalise(integer, target) if is_narrow else integer, target)
        if target.is_float:
            return self.elements.narrowed(self._integer_to_float(a, source), target)
        return self._wrap(self._normalise(a, target), target)

    def _to_bool(self, a: int, source: DType) -> int:
        if source is DType.BOOL:
            return a
        if source.is_float:  # a comparison of floats may take a denormal for zero
            a, _ = self.elements.magnitude(a, source)
        else:
            a = self.elements.widened(a, source)
        return self.values.pure(Op.I_NOT_EQUAL, self.asm.boolean, a, self.values.u32(0))

    def _integer_to_float(self, a: int, source: DType) -> int:
        """Converts an integer to f32, rounded to nearest even if the driver's OpConvertSToF and
        OpFAdd do so.
        """
        f32, u32, pure = self.asm.f32, self.asm.u32, self.values.pure
        if source is not DType.U32:  # narrower unsigned types are extended, and not negative
            return pure(Op.CONVERT_S_TO_F, f32, a)
        # In halves, which are exact: SwiftShader rounds twice in OpConvertUToF.
        high = pure(
            Op.CONVERT_S_TO_F, f32, pure(Op.SHIFT_RIGHT_LOGICAL, u32, a, self.values.u32(16))
        )
        low = pure(Op.CONVERT_S_TO_F, f32, pure(Op.BITWISE_AND, u32, a, self.values.u32(0xFFFF)))
        scaled = pure(Op.F_MUL, f32, high, self.values.f32_bits(float_bits(65536.0)))
        return pure(Op.F_ADD, f32, scaled, low)

    def _float_to_integer(self, a: int, target: DType) -> int:
        """Truncates and saturates; NaN gives 0. The instruction is undefined out of range."""
        bits = 32 if target is DType.INDEX else target.bits
        is_signed = target.is_signed
        lowest = -(1 << bits - 1) if is_signed else 0
        highest = (1 << bits - 1) - 1 if is_signed else (1 << bits) - 1
        f32, u32, pure = self.asm.f32, self.asm.u32, self.values.pure
        # The largest f32 that is not above `highest`; what is above it converts to `highest`.
        top = float(np.float32(highest))
        below = top if top <= highest else float(np.nextafter(np.float32(top), np.float32(0)))
        number = self.values.select(f32, self.is_nan(a), self.values.f32_bits(0), a)
        clamped = self.values.glsl(
            Glsl.F_CLAMP,
            f32,
            number,
            self.values.f32_bits(float_bits(float(lowest))),
            self.values.f32_bits(float_bits(below)),
        )
        op = Op.CONVERT_F_TO_S if is_signed else Op.CONVERT_F_TO_U
        converted = pure(op, u32, clamped)
        if below == top:
            return converted
        is_above = pure(
            Op.F_ORD_GREATER_THAN, self.asm.boolean, number, self.values.f32_bits(float_bits(below))
        )
        return self.values.select(u32, is_above, self.values.u32(highest & MASK), converted)

    def _wide_cast(self, e: Cast) -> Value:
        """Between a 64-bit integer and what a 32-bit target has."""
        source, target = e.a.dtype, e.dtype
        value = self.value(e.a)
        if isinstance(value, tuple):
            low, high = value
            if target in WIDE_INTEGERS:
                return value
            if target is DType.BOOL:
                either = self.values.pure(Op.BITWISE_OR, self.asm.u32, low, high)
                return self._to_bool(either, DType.U32)
            if target.is_float:
                raise self.fail(f"a cast of {source} to {target}")
            return self._wrap(self._normalise(low, target), target)
        if source.is_float:
            raise self.fail(f"a cast of {source} to {target}")
        if source is DType.BOOL:
            low = self.values.select(
                self.asm.u32, self._id(value, source), self.values.u32(1), self.values.u32(0)
            )
            return low, self.values.u32(0)
        low = self.elements.widened(self._id(value, source), source)
        return low, self._sign(low) if source.is_signed else self.values.u32(0)

    def _bitcast(self, e: Bitcast) -> Value:
        source, target = e.a.dtype, e.dtype
        if source in WIDE_INTEGERS and target in WIDE_INTEGERS:
            return self.value(e.a)
        if source.bytes != target.bytes or source.bytes > 4 or DType.BOOL in (source, target):
            raise self.fail(f"a bitcast of {source} to {target}")
        a = self.scalar(e.a)
        if source is target:
            return a
        if DType.F16 in (source, target):
            return self.elements.from_bits(self.elements.to_bits(a, source), target)
        if source.is_float != target.is_float:
            return self.values.pure(Op.BITCAST, self._type(target), a)
        return self._normalise(self.elements.widened(a, source), target)
