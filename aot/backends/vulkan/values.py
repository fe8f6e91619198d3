"""Values of a shader under construction: folding, value numbering, hoisting, integer ranges.

Owns which scope a pure value is computed in (the outermost one where its operands exist) and the
linear form of index arithmetic. Integers of every type are u32 ids; signedness is in the opcodes.
Knows nothing of expressions or memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import gcd

from aot.backends.vulkan.assembler import Assembler, Chunk, FunctionBody
from aot.backends.vulkan.spirv import Decoration, Glsl, Op
from aot.base.records import dataclass
from aot.errors import InternalError

Interval = tuple[int | None, int | None]
UNKNOWN: Interval = (None, None)
MASK = 0xFFFFFFFF

# May not run where the program would not have run them: a divisor could be zero.
_PINNED = frozenset((Op.S_DIV, Op.U_DIV))
# Decorated so that drivers neither contract, reassociate nor cancel them: an optimiser may
# otherwise fold (x * y) / y, or what a compensated sum subtracts on purpose.
_EXACT = frozenset((Op.F_ADD, Op.F_SUB, Op.F_MUL, Op.F_DIV))
_LOGIC = frozenset((Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_NOT))
_COMMUTATIVE = frozenset(
    (
        Op.I_ADD,
        Op.I_MUL,
        Op.F_ADD,
        Op.F_MUL,
        Op.BITWISE_AND,
        Op.BITWISE_OR,
        Op.BITWISE_XOR,
        Op.LOGICAL_AND,
        Op.LOGICAL_OR,
        Op.I_EQUAL,
        Op.I_NOT_EQUAL,
    )
)


def signed(bits: int) -> int:
    """The two's complement value of 32 bits."""
    return bits - (1 << 32) if bits & 0x80000000 else bits


_FOLD: dict[Op, Callable[[int, int], int]] = {
    Op.I_ADD: lambda a, b: a + b,
    Op.I_SUB: lambda a, b: a - b,
    Op.I_MUL: lambda a, b: a * b,
    Op.BITWISE_AND: lambda a, b: a & b,
    Op.BITWISE_OR: lambda a, b: a | b,
    Op.BITWISE_XOR: lambda a, b: a ^ b,
    Op.SHIFT_LEFT_LOGICAL: lambda a, b: a << (b & 31),
    Op.SHIFT_RIGHT_LOGICAL: lambda a, b: a >> (b & 31),
    Op.SHIFT_RIGHT_ARITHMETIC: lambda a, b: signed(a) >> (b & 31),
    Op.I_EQUAL: lambda a, b: a == b,
    Op.I_NOT_EQUAL: lambda a, b: a != b,
    Op.S_LESS_THAN: lambda a, b: signed(a) < signed(b),
    Op.S_LESS_THAN_EQUAL: lambda a, b: signed(a) <= signed(b),
    Op.S_GREATER_THAN: lambda a, b: signed(a) > signed(b),
    Op.S_GREATER_THAN_EQUAL: lambda a, b: signed(a) >= signed(b),
    Op.U_LESS_THAN: lambda a, b: a < b,
    Op.U_GREATER_THAN: lambda a, b: a > b,
    Op.LOGICAL_AND: lambda a, b: a & b,
    Op.LOGICAL_OR: lambda a, b: a | b,
    Op.LOGICAL_EQUAL: lambda a, b: a == b,
    Op.LOGICAL_NOT_EQUAL: lambda a, b: a != b,
}
# (op, bits of the right operand) -> the left operand is the result.
_NEUTRAL_RIGHT = frozenset(
    (
        (Op.I_ADD, 0),
        (Op.I_SUB, 0),
        (Op.I_MUL, 1),
        (Op.BITWISE_OR, 0),
        (Op.BITWISE_XOR, 0),
        (Op.SHIFT_LEFT_LOGICAL, 0),
        (Op.SHIFT_RIGHT_LOGICAL, 0),
        (Op.SHIFT_RIGHT_ARITHMETIC, 0),
        (Op.BITWISE_AND, MASK),
        (Op.LOGICAL_AND, 1),
        (Op.LOGICAL_OR, 0),
        (Op.U_DIV, 1),
        (Op.S_DIV, 1),
    )
)
# (op, bits of the right operand) -> the right operand is the result.
_ABSORBING_RIGHT = frozenset(
    ((Op.I_MUL, 0), (Op.BITWISE_AND, 0), (Op.LOGICAL_AND, 0), (Op.LOGICAL_OR, 1))
)


@dataclass(frozen=True)
class Linear:
    """An index: `constant + sum(coefficient * id)`; terms are sorted by id, without zeros."""

    terms: tuple[tuple[int, int], ...]
    constant: int = 0

    def __add__(self, other: Linear) -> Linear:
        sums = dict(self.terms)
        for value, coefficient in other.terms:
            sums[value] = sums.get(value, 0) + coefficient
        return Linear(_sorted_terms(sums), self.constant + other.constant)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Linear:
        if factor == 0:
            return Linear(())
        return Linear(tuple((v, c * factor) for v, c in self.terms), self.constant * factor)

    @property
    def number(self) -> int | None:
        """The number that it is, if it is one."""
        return None if self.terms else self.constant


def _sorted_terms(sums: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((v, c) for v, c in sums.items() if c))


def _without_factor(index: Linear) -> tuple[Linear, int]:
    """(index without its coefficient, coefficient) of an index that is one term; (index, 1)
    otherwise.
    """
    if len(index.terms) != 1 or index.constant:
        return index, 1
    ((value, factor),) = index.terms
    return Linear(((value, 1),)), factor


@dataclass
class Scope:
    """A region of code in which values stay valid.

    Attributes:
        chunk: where code may still be added once an inner scope is open.
        values: what was made here, by opcode, type and operands.
        facts: conditions that hold (True) or fail in the whole scope.
    """

    chunk: Chunk | None = None
    values: dict[tuple[int, ...], int] = field(default_factory=dict)
    facts: dict[int, bool] = field(default_factory=dict)


class Values:
    """Makes values: each pure one once, in the outermost scope that has its operands."""

    def __init__(self, asm: Assembler, body: FunctionBody) -> None:
        self.asm = asm
        self.body = body
        self._scopes = [Scope()]
        self._depth: dict[int, int] = {}
        self._ranges: dict[int, Interval] = {}
        self._multiples: dict[int, int] = {}
        self._logic: dict[int, tuple[Op, tuple[int, ...]]] = {}

    # Scopes

    @property
    def depth(self) -> int:
        return len(self._scopes) - 1

    def open_scope(self, condition: int | None = None) -> None:
        """Opens a scope of known values. Call it right before a construct is opened in the body; in
        the scope `condition` holds.
        """
        self._scopes[-1].chunk = self.body.tail
        self._scopes.append(Scope())
        if condition is not None:
            self._assume(condition, True)

    def close_scope(self) -> None:
        """Call right after the construct was closed."""
        self._scopes.pop()
        self._scopes[-1].chunk = None

    def reopen_scope(self, condition: int) -> None:
        """Forgets the innermost scope's values: the side where `condition` fails starts."""
        self._scopes[-1] = Scope()
        self._assume(condition, False)

    def _assume(self, condition: int, holds: bool) -> None:
        """Notes a fact of the innermost scope, and what follows from it."""
        self._scopes[-1].facts[condition] = holds
        op, operands = self._logic.get(condition, (None, ()))
        if op is Op.LOGICAL_NOT:
            self._assume(operands[0], not holds)
        elif op is (Op.LOGICAL_AND if holds else Op.LOGICAL_OR):
            for operand in operands:
                self._assume(operand, holds)

    def define(self, value: int, interval: Interval = UNKNOWN) -> int:
        """Registers a value that was made at the tail, and so belongs to the innermost scope."""
        self._depth[value] = self.depth
        if interval != UNKNOWN:
            self._ranges[value] = interval
        return value

    def cached(self, key: tuple[int, ...], make: Callable[[], int]) -> int:
        """A value of the innermost scope or an outer one, made at the tail where there is none."""
        for scope in reversed(self._scopes):
            if key in scope.values:
                return scope.values[key]
        made = self._scopes[-1].values[key] = self.define(make())
        return made

    # Constants

    def u32(self, value: int) -> int:
        return self.asm.constant(self.asm.u32, value & MASK)

    def f32_bits(self, bits: int) -> int:
        return self.asm.constant(self.asm.f32, bits)

    def boolean(self, value: bool) -> int:
        return self.asm.constant(self.asm.boolean, int(value))

    def bits(self, value: int) -> int | None:
        """The bits of a constant, or of a condition that is settled here; else None."""
        found = self.asm.constant_bits.get(value)
        if found is not None:
            return found[1]
        for scope in self._scopes:
            if value in scope.facts:
                return int(scope.facts[value])
        return None

    # Pure values

    def pure(self, op: Op, type_id: int, *operands: int, literals: tuple[int, ...] = ()) -> int:
        """`op` of values; `literals` follow them."""
        if op in _COMMUTATIVE:
            operands = tuple(sorted(operands, key=lambda v: (self.bits(v) is not None, v)))
        folded = self._fold(op, type_id, operands)
        if folded is not None:
            return folded
        return self._numbered(op, type_id, operands, (*operands, *literals))

    def glsl(self, number: Glsl, type_id: int, *operands: int) -> int:
        return self._numbered(Op.EXT_INST, type_id, operands, (self.asm.glsl, number, *operands))

    def _numbered(
        self, op: Op, type_id: int, operands: tuple[int, ...], words: tuple[int, ...]
    ) -> int:
        level = max((self._depth.get(v, 0) for v in operands), default=0)
        key = (op, type_id, *words)
        for scope in self._scopes[level:]:
            if key in scope.values:
                return scope.values[key]
        if op in _PINNED and not self.bits(operands[1]):
            level = self.depth
        scope = self._scopes[level]
        made = self.body.result(op, type_id, *words, into=scope.chunk)
        if op in _LOGIC:
            self._logic[made] = op, operands
        if op in _EXACT or (op is Op.EXT_INST and words[1] == Glsl.FMA):
            self.asm.decorate(made, Decoration.NO_CONTRACTION)
        scope.values[key] = made
        self._depth[made] = level
        return made

    def _fold(self, op: Op, type_id: int, operands: tuple[int, ...]) -> int | None:
        if op is Op.SELECT:
            return self._fold_select(operands)
        if op is Op.LOGICAL_NOT:
            bits = self.bits(operands[0])
            return None if bits is None else self.boolean(not bits)
        if len(operands) != 2:
            return None
        left, right = self.bits(operands[0]), self.bits(operands[1])
        if right is None:
            return None
        if (op, right) in _NEUTRAL_RIGHT:
            return operands[0]
        if (op, right) in _ABSORBING_RIGHT:
            return self.asm.constant(type_id, right)
        if left is None or op not in _FOLD or not all(map(self._is_word, operands)):
            return None
        return self.asm.constant(type_id, _FOLD[op](left, right) & MASK)

    def _is_word(self, value: int) -> bool:
        """Whether a number is a u32 or a BOOL, not one of fewer bits or a float."""
        found = self.asm.constant_bits.get(value)
        return found is None or found[0] in (self.asm.u32, self.asm.boolean)

    def _fold_select(self, operands: tuple[int, ...]) -> int | None:
        condition, a, b = operands
        bits = self.bits(condition)
        if a == b:
            return a
        return None if bits is None else (a if bits else b)

    def select(self, type_id: int, condition: int, a: int, b: int) -> int:
        return self.pure(Op.SELECT, type_id, condition, a, b)

    # Indices

    def atom(self, value: int) -> Linear:
        """A u32 id as an index, read as signed."""
        bits = self.bits(value)
        return Linear((), signed(bits)) if bits is not None else Linear(((value, 1),))

    def range_of(self, index: Linear) -> Interval:
        """Inclusive bounds; None is unbounded. Index arithmetic never overflows."""
        low: int | None = index.constant
        high: int | None = index.constant
        for value, coefficient in index.terms:
            a, b = self._ranges.get(value, UNKNOWN)
            if coefficient < 0:
                a, b = b, a
            low = None if low is None or a is None else low + a * coefficient
            high = None if high is None or b is None else high + b * coefficient
        return low, high

    def id_of(self, index: Linear) -> int:
        """The value of an index; outer scopes' terms are summed first, so that they leave loops."""
        if len(index.terms) == 1 and not index.constant and index.terms[0][1] == 1:
            return index.terms[0][0]
        total: int | None = None
        u32 = self.asm.u32
        for value, coefficient in sorted(
            index.terms, key=lambda t: (self._depth.get(t[0], 0), t[1] < 0, t[0])
        ):
            negative = coefficient < 0 and total is not None
            factor = -coefficient if negative else coefficient
            term = self.pure(Op.I_MUL, u32, value, self.u32(factor))
            if total is None:
                total = term
            else:
                total = self.pure(Op.I_SUB if negative else Op.I_ADD, u32, total, term)
        if total is None:
            return self.u32(index.constant)
        made = self.pure(Op.I_ADD, u32, total, self.u32(index.constant))
        self.remember(made, self.range_of(index))
        return made

    def remember(self, value: int, interval: Interval) -> None:
        """Notes the bounds of an index."""
        if interval != UNKNOWN and value not in self.asm.constant_bits:
            self._ranges.setdefault(value, interval)

    def remember_multiple(self, value: int, factor: int) -> None:
        """Notes that an index is a multiple of `factor`."""
        if value not in self.asm.constant_bits:
            self._multiples[value] = factor

    def multiple_of(self, index: Linear) -> int:
        """A number that an index is a multiple of; 0 for the number 0."""
        factors = (c * self._multiples.get(v, 1) for v, c in index.terms)
        return gcd(index.constant, *factors)

    def multiply(self, a: Linear, b: Linear) -> Linear:
        for x, y in ((a, b), (b, a)):
            factor = y.number
            if factor is not None:
                return x.scaled(factor)
        # i*(24*n) as 24*(i*n): strides of several operands share the product of what is unknown
        (a, left), (b, right) = _without_factor(a), _without_factor(b)
        made = self.pure(Op.I_MUL, self.asm.u32, self.id_of(a), self.id_of(b))
        self.remember(made, _product(self.range_of(a), self.range_of(b)))
        return self.atom(made).scaled(left * right)

    def extremum(self, a: Linear, b: Linear, *, is_max: bool) -> Linear:
        low, high = self.range_of(a - b)
        if low is not None and low >= 0:
            return a if is_max else b
        if high is not None and high <= 0:
            return b if is_max else a
        made = self.signed_extremum(self.id_of(a), self.id_of(b), is_max=is_max)
        (low_a, high_a), (low_b, high_b) = self.range_of(a), self.range_of(b)
        pick_low = _strict(min, low_a, low_b) if not is_max else _loose(max, low_a, low_b)
        pick_high = _strict(max, high_a, high_b) if is_max else _loose(min, high_a, high_b)
        self.remember(made, (pick_low, pick_high))
        return self.atom(made)

    def signed_extremum(self, a: int, b: int, *, is_max: bool, type: int | None = None) -> int:
        """The signed minimum or maximum of two i32 values, or of integers of another `type`, by
        comparison: SPIRV-Tools, which drivers use, folds SMin and SMax of u32 as unsigned.
        """
        compare = Op.S_GREATER_THAN if is_max else Op.S_LESS_THAN
        is_first = self.pure(compare, self.asm.boolean, a, b)
        return self.select(type or self.asm.u32, is_first, a, b)

    def floor_divide(self, a: Linear, b: Linear) -> Linear:
        """`a // b`, rounding down, and no division where `a` shows that it needs none."""
        divisor = b.number
        if divisor is None:
            return self._quotient(a, b)
        if divisor <= 0:
            raise InternalError(f"an index is divided by {divisor}")
        whole = Linear(
            tuple((v, c // divisor) for v, c in a.terms if c % divisor == 0), a.constant // divisor
        )
        rest = Linear(tuple((v, c) for v, c in a.terms if c % divisor), a.constant % divisor)
        low, high = self.range_of(rest)
        if low is not None and high is not None and low // divisor == high // divisor:
            return whole + Linear((), low // divisor)
        return whole + self._quotient(rest, b)

    def floor_modulo(self, a: Linear, b: Linear) -> Linear:
        """`a - a // b * b`, in 0..b-1."""
        divisor = b.number
        if divisor is None:
            return self._remainder(a, b)
        if divisor <= 0:
            raise InternalError(f"an index is divided by {divisor}")
        rest = Linear(tuple((v, c) for v, c in a.terms if c % divisor), a.constant % divisor)
        low, high = self.range_of(rest)
        if low is not None and high is not None and low // divisor == high // divisor:
            return rest - Linear((), low // divisor * divisor)
        return self._remainder(rest, b)

    def _quotient(self, a: Linear, b: Linear) -> Linear:
        dividend, (least, most) = self.range_of(a), self.range_of(b)
        x, y, u32 = self.id_of(a), self.id_of(b), self.asm.u32
        shift = _shift_of(b)
        if shift is not None:
            quotient = self.pure(Op.SHIFT_RIGHT_ARITHMETIC, u32, x, self.u32(shift))
        elif _is_natural(dividend) and _is_natural((least, most)):
            quotient = self.pure(Op.U_DIV, u32, x, y)
        else:
            quotient = self.signed_floor_division(x, y)[0]
        if least is not None and least >= 0:
            self.remember(quotient, _quotient_range(dividend, max(least, 1), most))
        return self.atom(quotient)

    def _remainder(self, a: Linear, b: Linear) -> Linear:
        least, most = self.range_of(b)
        x, y, u32 = self.id_of(a), self.id_of(b), self.asm.u32
        if _shift_of(b) is not None:
            rest = self.pure(Op.BITWISE_AND, u32, x, self.u32(b.constant - 1))
        elif _is_natural(self.range_of(a)) and _is_natural((least, most)):
            rest = self._rest(x, self.pure(Op.U_DIV, u32, x, y), y)
        else:
            rest = self.signed_floor_division(x, y)[1]
        if least is not None and least >= 0:
            self.remember(rest, (0, None if most is None else most - 1))
        self.remember_multiple(rest, gcd(self.multiple_of(a), self.multiple_of(b)))
        return self.atom(rest)

    def _rest(self, x: int, quotient: int, y: int) -> int:
        product = self.pure(Op.I_MUL, self.asm.u32, quotient, y)
        return self.pure(Op.I_SUB, self.asm.u32, x, product)

    def signed_floor_division(self, x: int, y: int) -> tuple[int, int]:
        """Quotient and remainder of i32 values, rounding down.

        Only OpSDiv is well defined for negative operands on every driver; OpSRem and OpSMod are
        not.
        """
        u32, boolean = self.asm.u32, self.asm.boolean
        quotient = self.pure(Op.S_DIV, u32, x, y)
        rest = self._rest(x, quotient, y)
        signs = self.pure(Op.BITWISE_XOR, u32, rest, y)
        is_inexact = self.pure(Op.I_NOT_EQUAL, boolean, rest, self.u32(0))
        differ = self.pure(Op.S_LESS_THAN, boolean, signs, self.u32(0))
        is_low = self.pure(Op.LOGICAL_AND, boolean, is_inexact, differ)
        down = self.pure(Op.I_SUB, u32, quotient, self.u32(1))
        up = self.pure(Op.I_ADD, u32, rest, y)
        return self.select(u32, is_low, down, quotient), self.select(u32, is_low, up, rest)

    def compare(self, op: str, a: Linear, b: Linear) -> int:
        """A BOOL, folded where the ranges decide it."""
        low, high = self.range_of(a - b)
        decided = _decide(op, low, high)
        if decided is not None:
            return self.boolean(decided)
        return self.pure(SIGNED_COMPARE[op], self.asm.boolean, self.id_of(a), self.id_of(b))


SIGNED_COMPARE = {
    "eq": Op.I_EQUAL,
    "ne": Op.I_NOT_EQUAL,
    "lt": Op.S_LESS_THAN,
    "le": Op.S_LESS_THAN_EQUAL,
    "gt": Op.S_GREATER_THAN,
    "ge": Op.S_GREATER_THAN_EQUAL,
}
_OPPOSITE = {"ge": "lt", "gt": "le", "ne": "eq"}


def _decide(op: str, low: int | None, high: int | None) -> bool | None:
    """`difference op 0` for a difference in low..high, if they settle it."""
    if op in _OPPOSITE:
        opposite = _decide(_OPPOSITE[op], low, high)
        return None if opposite is None else not opposite
    if op == "eq":
        if low == 0 and high == 0:
            return True
        is_apart = (low is not None and low > 0) or (high is not None and high < 0)
        return False if is_apart else None
    limit = -1 if op == "lt" else 0
    if high is not None and high <= limit:
        return True
    return False if low is not None and low > limit else None


def _product(a: Interval, b: Interval) -> Interval:
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], None if a[1] is None or b[1] is None else a[1] * b[1]
    if a[0] is None or a[1] is None or b[0] is None or b[1] is None:
        return UNKNOWN
    corners = [x * y for x in (a[0], a[1]) for y in (b[0], b[1])]
    return min(corners), max(corners)


def _shift_of(divisor: Linear) -> int | None:
    """n where the divisor is the number 2^n; shifting and masking round down for every sign."""
    number = divisor.number
    is_power = number is not None and number > 0 and number & (number - 1) == 0
    return number.bit_length() - 1 if is_power and number is not None else None


def _is_natural(interval: Interval) -> bool:
    return interval[0] is not None and interval[0] >= 0


def _quotient_range(dividend: Interval, least: int, most: int | None) -> Interval:
    """Bounds of `dividend // divisor` for a divisor in least..most, least >= 1."""
    low, high = dividend
    if low is not None:
        low = low // least if low < 0 else (0 if most is None else low // most)
    if high is not None:
        high = high // least if high >= 0 else (-1 if most is None else high // most)
    return low, high


def _strict(pick: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else pick(a, b)


def _loose(pick: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    known = [x for x in (a, b) if x is not None]
    return None if not known else known[0] if len(known) == 1 else pick(*known)
