"""Sums of the products of the bytes of two words: by one instruction, or part by part.

Owns which instruction that is, and its capabilities; sums are exact and wrap in 32 bits either way.
"""

from __future__ import annotations

from aot.backends.vulkan.elements import Elements
from aot.backends.vulkan.spirv import PACKED_VECTOR_FORMAT_4X8BIT, Capability, Op
from aot.errors import InternalError
from aot.ir.expr import Dot
from aot.ir.types import DType

_IS_SIGNED = {DType.I8X4: True, DType.U8X4: False}
_CAPABILITIES = Capability.DOT_PRODUCT, Capability.DOT_PRODUCT_INPUT_4X8BIT_PACKED


class DotProducts:
    """The dot products of one shader."""

    def __init__(self, name: str, elements: Elements, *, has_instruction: bool) -> None:
        self.name = name
        self.elements = elements
        self.values = elements.values
        self.has_instruction = has_instruction

    def sum(self, e: Dot, a: int, b: int, total: int) -> int:
        """`total` plus the dot product of words `a` and `b`, whose dtypes `e` says."""
        left, right = e.a.dtype, e.b.dtype
        if e.dtype is not DType.I32 or left not in _IS_SIGNED or right not in _IS_SIGNED:
            raise InternalError(
                f"kernel {self.name}: a dot of {left} and {right} in {e.dtype} cannot be a shader"
            )
        if self.has_instruction:
            return self._by_instruction(_IS_SIGNED[left], _IS_SIGNED[right], a, b, total)
        # parts are unpacked once for all words that they are multiplied by
        pure, u32 = self.values.pure, self.elements.asm.u32
        for number in range(left.parts):
            shift = self.values.u32(left.part.bits * number)
            x = self.elements.wide.from_bits(a, left.part, shift)
            y = self.elements.wide.from_bits(b, right.part, shift)
            total = pure(Op.I_ADD, u32, total, pure(Op.I_MUL, u32, x, y))
        return total

    def _by_instruction(self, a_signed: bool, b_signed: bool, a: int, b: int, total: int) -> int:
        asm = self.elements.asm
        for capability in _CAPABILITIES:
            asm.capability(capability)
        op = Op.S_DOT if a_signed and b_signed else Op.S_U_DOT if a_signed or b_signed else Op.U_DOT
        if op is Op.S_U_DOT and not a_signed:
            a, b = b, a  # the signed one is the first
        literals = (PACKED_VECTOR_FORMAT_4X8BIT,)
        product = self.values.pure(op, asm.u32, a, b, literals=literals)
        return self.values.pure(Op.I_ADD, asm.u32, total, product)
