"""Changes of values that their users are not told of, for tests, and what resolving them gives."""

from __future__ import annotations

from aot.frontends.text import import_text
from aot.ir.clone import clone_module
from aot.ir.graph import Module, Op, Value
from aot.ir.index_map import IndexMap, Reshape, transposed
from aot.ir.record import count_shape_rules
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType, Layout, TensorType
from aot.ir.verifier import verify
from aot.ops.elementwise import CAST
from aot.ops.movement import RESHAPE, TRANSPOSE
from aot.passes.layout.resolve_shapes import resolve
from tests.support.graphs import assert_same_results

F16 = DType.F16

DIAMOND = """
func @main(%x: f32[2, 3]) -> ("y") {
  %0 = relu(%x) : f32[2, 3]
  %1 = sin(%0) : f32[2, 3]
  %2 = abs(%0) : f32[2, 3]
  %3 = add(%1, %2) : f32[2, 3]
  %4 = transpose(%3) {perm = [1, 0]} : f32[3, 2]
  return(%4)
}
"""


def value_of(module: Module, name: str, number: int = 0) -> Value:
    """The result of the `number`-th op of a name."""
    return [op for op in module.main.walk() if op.name == name][number].results[0]


def turn(module: Module, value: Value, perm: tuple[int, ...]) -> Value:
    """Lets `value` be computed in another order of dims, seen as it was by all its users."""
    assert value.op is not None and value.op.next is not None
    made = Rewriter(module.main).at(value.op.next).create(TRANSPOSE, [value], {"perm": perm})
    back = transposed(tuple(sorted(range(len(perm)), key=perm.__getitem__)))
    return Rewriter(module.main).replace_lazily(value, made.result, back)


def narrow(module: Module, value: Value) -> Value:
    """Lets `value` be f16, seen as it was by all its users."""
    assert value.op is not None and value.op.next is not None
    made = Rewriter(module.main).at(value.op.next).create(CAST, [value], {"to": F16})
    return Rewriter(module.main).replace_lazily(value, made.result)


def flatten(module: Module, value: Value) -> Value:
    made = Rewriter(module.main).at(value.op.next).create(RESHAPE, [value], {"shape": (6,)})
    return Rewriter(module.main).replace_lazily(value, made.result, IndexMap((Reshape((2, 3)),)))


def relay(module: Module, value: Value, order: tuple[int, ...] = (1, 0)) -> Value:
    """Lets the op that makes `value` write it in another order."""
    assert value.op is not None
    op = value.op
    type = TensorType(value.type.dtype, value.type.dims, Layout(order=order))
    fresh = Rewriter(module.main).at(op).insert(Op(op.record, op.operands, op.attrs, [type]))
    seen = Rewriter(module.main).replace_lazily(value, fresh.result)
    Rewriter(module.main).erase(op)
    return seen


def resolved(module: Module) -> tuple[dict[str, int], int]:
    """Resolves; checks that nothing is left, types are right and values what they were.

    Gives the counts and how many shape rules were called.
    """
    before = clone_module(module)
    with count_shape_rules() as rules:
        counts = resolve(module.main)
    verify(module, is_resolved=True)
    assert_same_results(before, module)
    return counts, rules.calls


def names(module: Module) -> list[str]:
    return [op.name for op in module.main.walk() if op.name not in ("constant", "return")]


def graph(text: str) -> Module:
    return import_text(text)
