"""Numbers among the operands of `Place`: constants of the type that the values beside them have."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from aot.analysis.dim_values import DimValues
from aot.builder import parse_type
from aot.errors import CompileError
from aot.frontends.lib.builder import Operand, UnsupportedNodeError
from aot.frontends.lib.place import Place
from aot.ir.builtin import RETURN
from aot.ir.graph import Block, Function, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.rewriter import Rewriter
from aot.ir.types import Array, DType


class _Here(Place):
    def __init__(self, function: Function) -> None:
        self.label = "here"
        self.rewriter = Rewriter(function)
        self.values = DimValues(function)

    def error(self, message: str) -> CompileError:
        return CompileError(message)


def built(op: str, operands: Sequence[Operand | str]) -> tuple[Value, Function]:
    """An op on inputs of the types that texts among the operands name."""
    texts = [x for x in operands if isinstance(x, str)]
    block = Block([parse_type(x) for x in texts])
    function = Function("main", block, ["y"])
    inputs = iter(function.inputs)
    taken = [next(inputs) if isinstance(x, str) else x for x in operands]
    place = _Here(function)
    made = place.emit(op, *taken)
    place.rewriter.create(RETURN, [made])
    return made, function


MASK = np.array([True, False])
HALVES = np.array([1.5, -2.0], np.float16)
WHOLES = np.array([3, -4], np.int64)
NARROW = np.array([1.5, -2.0], ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("op", "operands", "inputs", "dtype", "expected"),
    [
        ("mul", ("f16[2]", 2.5), [HALVES], DType.F16, [3.75, -5.0]),
        ("sub", (1, "f16[2]"), [HALVES], DType.F16, [-0.5, 3.0]),
        ("add", ("i64[2]", 2), [WHOLES], DType.I64, [5, -2]),
        ("less", ("f16[2]", 0), [HALVES], DType.BOOL, [False, True]),
        ("where", ("bool[2]", "i64[2]", 7), [MASK, WHOLES], DType.I64, [3, 7]),
        ("where", ("bool[2]", 7, "i64[2]"), [MASK, WHOLES], DType.I64, [7, -4]),
        ("and", ("bool[2]", True), [MASK], DType.BOOL, [True, False]),
        # computed in f32 with all of the number, then rounded: 1.3 as bfloat16 gives 1.9453125
        ("mul", ("bf16[2]", 1.3), [NARROW], DType.BF16, [1.953125, -2.59375]),
    ],
)
def test_numbers_have_the_type_of_the_values(
    op: str, operands: Sequence[Operand | str], inputs: list[Array], dtype: DType, expected: object
) -> None:
    made, function = built(op, operands)
    assert made.type.dtype is dtype
    (found,) = run(function, inputs)
    assert found.tolist() == expected


def test_a_number_that_the_type_has_not_is_refused() -> None:
    with pytest.raises(UnsupportedNodeError, match=r"^300 is no number of u8$"):
        built("add", ("u8[2]", 300))
