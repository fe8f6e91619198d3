"""64-bit integer arithmetic in shaders without 64-bit types.

A 64-bit integer is a pair of 32-bit words, low word first. This module emits SPIR-V for addition,
subtraction, multiplication, shifts, bitwise operations and comparisons of pairs, all of which wrap
at 64 bits. Division and conversion to floats are expanded to these before
(`aot.kernels.transcendentals.wide_integers`).
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.vulkan.memory import Pair
from aot.backends.vulkan.spirv import Op
from aot.backends.vulkan.values import MASK, Values

_BY_WORD = {"and": Op.BITWISE_AND, "or": Op.BITWISE_OR, "xor": Op.BITWISE_XOR}


class WideIntegers:
    """Emits operations on pairs into the shader that `values` builds."""

    def __init__(self, values: Values) -> None:
        self.values = values

    # types of a shader have numbers in the order of their first use

    @property
    def u32(self) -> int:
        return self.values.asm.u32

    @property
    def boolean(self) -> int:
        return self.values.asm.boolean

    def unary(self, op: str, a: Pair, *, is_signed: bool) -> Pair | None:
        """`neg`, `abs` or `bitnot`; None for any other."""
        zero = self.values.u32(0)
        match op:
            case "neg":
                return self._sub((zero, zero), a)
            case "abs":
                if not is_signed:
                    return a
                is_negative = self.values.pure(Op.S_LESS_THAN, self.boolean, a[1], zero)
                return self.choose(is_negative, self._sub((zero, zero), a), a)
            case "bitnot":
                return self._not(a[0]), self._not(a[1])
        return None

    def binary(self, op: str, a: Pair, b: Pair, *, is_signed: bool) -> Pair | None:
        """Arithmetic that wraps; None where there is none of that name."""
        if op in _BY_WORD:
            low, high = (self._word(_BY_WORD[op], x, y) for x, y in zip(a, b, strict=True))
            return low, high
        if op in ("min", "max"):
            first, second = (a, b) if op == "min" else (b, a)
            return self.choose(self._less(first, second, is_signed=is_signed), a, b)
        table: dict[str, Callable[[Pair, Pair], Pair]] = {
            "add": self._add,
            "sub": self._sub,
            "mul": self._mul,
            "shl": self._shift_left,
            "shr": lambda x, y: self._shift_right(x, y, is_signed=is_signed),
        }
        return table[op](a, b) if op in table else None

    def compare(self, op: str, a: Pair, b: Pair, *, is_signed: bool) -> int:
        if op in ("eq", "ne"):
            is_same = [
                self.values.pure(Op.I_EQUAL, self.boolean, x, y) for x, y in zip(a, b, strict=True)
            ]
            both = self.values.pure(Op.LOGICAL_AND, self.boolean, *is_same)
            return both if op == "eq" else self._negated(both)
        first, second = (b, a) if op in ("gt", "le") else (a, b)
        is_less = self._less(first, second, is_signed=is_signed)
        return self._negated(is_less) if op in ("le", "ge") else is_less

    def choose(self, condition: int, a: Pair, b: Pair) -> Pair:
        low, high = (
            self.values.select(self.u32, condition, x, y) for x, y in zip(a, b, strict=True)
        )
        return low, high

    def _word(self, op: Op, a: int, b: int) -> int:
        return self.values.pure(op, self.u32, a, b)

    def _not(self, word: int) -> int:
        return self._word(Op.BITWISE_XOR, word, self.values.u32(MASK))

    def _negated(self, condition: int) -> int:
        return self.values.pure(Op.LOGICAL_NOT, self.boolean, condition)

    def _one_if(self, condition: int) -> int:
        return self.values.select(self.u32, condition, self.values.u32(1), self.values.u32(0))

    def _below(self, a: int, b: int) -> int:
        return self.values.pure(Op.U_LESS_THAN, self.boolean, a, b)

    def _less(self, a: Pair, b: Pair, *, is_signed: bool) -> int:
        pure, boolean = self.values.pure, self.boolean
        compare = Op.S_LESS_THAN if is_signed else Op.U_LESS_THAN
        is_high = pure(compare, boolean, a[1], b[1])
        is_equal = pure(Op.I_EQUAL, boolean, a[1], b[1])
        is_low = pure(Op.LOGICAL_AND, boolean, is_equal, self._below(a[0], b[0]))
        return pure(Op.LOGICAL_OR, boolean, is_high, is_low)

    def _add(self, a: Pair, b: Pair) -> Pair:
        low = self._word(Op.I_ADD, a[0], b[0])
        high = self._word(Op.I_ADD, a[1], b[1])
        return low, self._word(Op.I_ADD, high, self._one_if(self._below(low, a[0])))

    def _sub(self, a: Pair, b: Pair) -> Pair:
        low = self._word(Op.I_SUB, a[0], b[0])
        high = self._word(Op.I_SUB, a[1], b[1])
        return low, self._word(Op.I_SUB, high, self._one_if(self._below(a[0], b[0])))

    def _mul(self, a: Pair, b: Pair) -> Pair:
        """Schoolbook multiplication in halves of 16 bits, whose products fit a word.

        The high word of the result is that of `a[0] * b[0]` plus the low words of the products
        across; the product of the two high words is beyond 64 bits.
        """
        half, last = self.values.u32(16), self.values.u32(0xFFFF)
        (x0, x1), (y0, y1) = (
            (self._word(Op.BITWISE_AND, w, last), self._word(Op.SHIFT_RIGHT_LOGICAL, w, half))
            for w in (a[0], b[0])
        )
        low = self._word(Op.I_MUL, x0, y0)
        across = self._word(Op.I_MUL, x1, y0)
        across = self._word(Op.I_ADD, across, self._word(Op.SHIFT_RIGHT_LOGICAL, low, half))
        middle = self._word(Op.I_MUL, x0, y1)
        middle = self._word(Op.I_ADD, middle, self._word(Op.BITWISE_AND, across, last))
        high = self._word(Op.I_MUL, x1, y1)
        for part in (across, middle):
            high = self._word(Op.I_ADD, high, self._word(Op.SHIFT_RIGHT_LOGICAL, part, half))
        for x, y in ((a[0], b[1]), (a[1], b[0])):
            high = self._word(Op.I_ADD, high, self._word(Op.I_MUL, x, y))
        return self._word(Op.I_MUL, a[0], b[0]), high

    def _parts(self, amount: Pair) -> tuple[int, int, int, int]:
        """Splits the amount of a shift, which counts modulo 64.

        Returns:
            Whether it is 32 or more, the amount modulo 32, and two amounts, 1 and 31 less that,
            by which a word is shifted in turn to give the bits that cross into the other word. One
            shift by 32 less the amount would be undefined where the amount is 0.
        """
        bits = self._word(Op.BITWISE_AND, amount[0], self.values.u32(31))
        rest = self._word(Op.BITWISE_XOR, bits, self.values.u32(31))
        is_far = self.values.pure(
            Op.I_NOT_EQUAL,
            self.boolean,
            self._word(Op.BITWISE_AND, amount[0], self.values.u32(32)),
            self.values.u32(0),
        )
        return is_far, bits, self.values.u32(1), rest

    def _shift_left(self, a: Pair, amount: Pair) -> Pair:
        is_far, bits, one, rest = self._parts(amount)
        low = self._word(Op.SHIFT_LEFT_LOGICAL, a[0], bits)
        high = self._word(Op.SHIFT_LEFT_LOGICAL, a[1], bits)
        crossing = self._word(Op.SHIFT_RIGHT_LOGICAL, a[0], one)
        crossing = self._word(Op.SHIFT_RIGHT_LOGICAL, crossing, rest)
        near = (low, self._word(Op.BITWISE_OR, high, crossing))
        return self.choose(is_far, (self.values.u32(0), low), near)

    def _shift_right(self, a: Pair, amount: Pair, *, is_signed: bool) -> Pair:
        is_far, bits, one, rest = self._parts(amount)
        shift = Op.SHIFT_RIGHT_ARITHMETIC if is_signed else Op.SHIFT_RIGHT_LOGICAL
        high = self._word(shift, a[1], bits)
        low = self._word(Op.SHIFT_RIGHT_LOGICAL, a[0], bits)
        crossing = self._word(Op.SHIFT_LEFT_LOGICAL, a[1], one)
        crossing = self._word(Op.SHIFT_LEFT_LOGICAL, crossing, rest)
        near = (self._word(Op.BITWISE_OR, low, crossing), high)
        top = self._word(shift, a[1], self.values.u32(31)) if is_signed else self.values.u32(0)
        return self.choose(is_far, (high, top), near)
