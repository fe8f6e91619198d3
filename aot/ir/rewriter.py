"""The rewriter: the only API that changes a finished function.

Keeps use lists and notifies listeners of every change. Must not decide what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aot.errors import InternalError
from aot.ir.builtin import CONSTANT, PENDING
from aot.ir.graph import Attr, Block, ConstantData, Function, Listener, Op, Value, casts_as_one
from aot.ir.index_map import IndexMap
from aot.ir.record import OpRecord
from aot.ir.types import Layout, TensorType


class Rewriter:
    """The mutation API of a function. Insertion happens before `anchor`, or at the block's end.

    Types never change silently: replacing a value by one of another type is an error.
    """

    def __init__(
        self, function: Function, block: Block | None = None, anchor: Op | None = None
    ) -> None:
        self.function = function
        self.block = block if block is not None else function.block
        self.anchor = anchor

    def at(self, anchor: Op) -> Rewriter:
        """A rewriter that inserts before `anchor`."""
        if anchor.parent is None:
            raise InternalError(f"{anchor} is in no block")
        return Rewriter(self.function, anchor.parent, anchor)

    def insert(self, op: Op) -> Op:
        """Puts a fresh op at the insertion point."""
        self.block._link(op, self.anchor)
        self._notify(lambda listener: listener.op_created(op))
        return op

    def create(
        self,
        record: OpRecord,
        operands: Sequence[Value | None],
        attrs: Mapping[str, Attr] | None = None,
        origin: str = "",
        blocks: Sequence[Block] = (),
    ) -> Op:
        """Makes an op, its result types by the record's shape rule, and inserts it.

        Raises:
            CompileError: a constraint of the record does not hold.
        """
        call = record.call([None if v is None else v.type for v in operands], attrs or {}, origin)
        for assumption in call.assumptions:
            self.function.assumptions[assumption] = None
        return self.insert(Op(record, operands, call.attrs, call.result_types, blocks, origin))

    def set_operand(self, op: Op, index: int, value: Value | None) -> None:
        """Rewires one operand to a value of the same type."""
        old = op.operands[index]
        if old is value:
            return
        if old is not None and value is not None and old.type != value.type:
            raise InternalError(
                f"operand {index} of {op} has type {old.type}, the new value has {value.type}"
            )
        self.rewire(op, index, value)

    def rewire(self, op: Op, index: int, value: Value | None) -> None:
        """Rewires one operand to a value of any type; the caller must keep the op valid."""
        old = op.operands[index]
        if old is not None:
            del old.uses[(op, index)]
        op.operands[index] = value
        if value is not None:
            value.uses[(op, index)] = None
        self._notify(lambda listener: listener.operand_changed(op, index, old))

    def replace(self, old: Value, fresh: Value) -> None:
        """Replaces all uses of `old` by `fresh`, which must have the same type."""
        if old.type != fresh.type:
            raise InternalError(
                f"replacing a value of type {old.type} by one of {fresh.type}: "
                "replace_lazily takes the index map from the one to the other"
            )
        self._rewire(old, fresh, fresh)

    def replace_lazily(self, old: Value, fresh: Value, map: IndexMap = IndexMap()) -> Value:  # noqa: B008
        """Replaces all uses of `old` by `fresh` mapped by `map`, whatever the type of `fresh`.

        Users are not updated: where the types differ, they get a `pending_shape_change` of old's
        type whose element i is `fresh[map(i)]`, for resolve-shapes to carry on. A chain of pending
        changes is one. Costs as much as `old` has uses; no shape rule runs. Gives what the users
        got.

        Raises:
            InternalError: `map` does not lead from the dims of `fresh` to those of `old`.
        """
        source = fresh
        while source.op is not None and source.op.record.name == "pending_shape_change":
            before, wide = source.op.operands[0], source.type.dtype
            assert before is not None
            types = before.type.dtype, wide, old.type.dtype
            if not casts_as_one(*types) and wide is not old.type.dtype:
                break  # the dtype between changes values
            map = IndexMap.of_attr(source.op.attrs["map"]).then(map, before.type.dims)
            source = before
        if map.is_identity and source.type == old.type:
            self.replace(old, source)
            return source
        seen = self.pending(source, old.type, map)
        self._rewire(old, seen, source)
        self._notify(lambda listener: listener.pending_made(seen))
        return seen

    def pending(self, source: Value, type: TensorType, map: IndexMap) -> Value:
        """Inserts a pending shape change from `source` to `type` by `map`, next to the source, so
        that all users come after it.

        Raises:
            InternalError: `map` does not lead from the one's dims to the other's.
        """
        if map.result_dims(source.type.dims) != type.dims:
            raise InternalError(f"no {map} leads from {source.type} to {type}")
        attrs: dict[str, Attr] = {
            "map": map.to_attr(),
            "dtype": type.dtype,
            "layout": type.layout or Layout(),
        }
        origin = ""
        if source.op is None:
            assert isinstance(source.owner, Block)
            block, anchor = source.owner, source.owner.first
        else:
            assert source.op.parent is not None
            block, anchor, origin = source.op.parent, source.op.next, source.op.origin
        made = Op(PENDING, [source], attrs, [type], (), origin)
        return Rewriter(self.function, block, anchor).insert(made).result

    def _rewire(self, old: Value, fresh: Value, source: Value) -> None:
        """Replaces all uses of `old` by `fresh`, except in the op that defines `source`."""
        if not fresh.name and old.name and fresh.op is not None:
            fresh.name = old.name
        self._notify(lambda listener: listener.value_replaced(old, fresh))
        for op, index in list(old.uses):
            if op is not source.op:
                self.set_operand(op, index, fresh)

    def replace_op(self, op: Op, values: Sequence[Value]) -> None:
        """Replaces all results of `op` and erases it."""
        if len(values) != len(op.results):
            raise InternalError(f"{op} has {len(op.results)} results, got {len(values)}")
        for old, fresh in zip(op.results, values, strict=True):
            self.replace(old, fresh)
        self.erase(op)

    def carry(self, loop: Op, value: Value) -> tuple[Value, Value]:
        """Adds a value that a loop carries; its block yields the value unchanged.

        Returns:
            The block's argument and the loop's result, behind those that it carries already.
        """
        body = loop.record.body
        assert body is not None and body.is_loop
        (block,) = loop.blocks
        count = len(loop.operands) - body.first
        argument = Value(value.type, block, len(block.args))
        block.args.append(argument)
        _insert_operand(loop, len(loop.operands), value)
        _insert_operand(block.terminator, len(body.steering) + count, argument)
        result = Value(value.type, loop, count)
        loop.results.insert(count, result)
        for index, other in enumerate(loop.results):
            other.index = index
        self._notify(lambda listener: listener.op_widened(loop))
        return argument, result

    def add_choice(self, op: Op, values: Sequence[Value]) -> Value:
        """Adds a result to an op that chooses between blocks; `values` are what each block yields
        for it."""
        for block, value in zip(op.blocks, values, strict=True):
            _insert_operand(block.terminator, len(block.terminator.operands), value)
        result = Value(values[0].type, op, len(op.results))
        op.results.append(result)
        self._notify(lambda listener: listener.op_widened(op))
        return result

    def erase(self, op: Op) -> None:
        """Removes an op without uses."""
        for value in op.results:
            if value.uses:
                raise InternalError(f"{op} is erased but its result {value.index} is used")
        self._notify(lambda listener: listener.op_erased(op))
        for block in op.blocks:
            for inner in reversed(block):
                Rewriter(self.function, block).erase(inner)
        for index, operand in enumerate(op.operands):
            if operand is not None:
                del operand.uses[(op, index)]
        op.operands = []
        if op.parent is not None:
            op.parent._unlink(op)

    def erase_input(self, value: Value) -> None:
        """Removes an unused input of the function."""
        args = self.function.block.args
        if value not in args or value.uses:
            raise InternalError(f"{value!r} is no unused input of {self.function.name!r}")
        args.remove(value)
        for index, other in enumerate(args):
            other.index = index
        self._notify(lambda listener: listener.input_erased(value))

    def move_before(self, op: Op, anchor: Op) -> None:
        """Moves `op` before `anchor`; the caller must preserve dominance."""
        if op.parent is None or anchor.parent is None:
            raise InternalError("moving an op that is in no block")
        op.parent._unlink(op)
        anchor.parent._link(op, anchor)
        self._notify(lambda listener: listener.op_moved(op))

    def splice(self, block: Block) -> None:
        """Moves the ops of a detached block to the insertion point."""
        for op in block:
            block._unlink(op)
            self.insert(op)

    def set_attr(self, op: Op, name: str, value: Attr) -> None:
        """Changes an attribute that does not change the results' types."""
        op.attrs[name] = value
        self._notify(lambda listener: listener.attr_changed(op, name))

    def set_type(self, value: Value, type: TensorType) -> None:
        """Changes a value's type; the caller must keep its users valid."""
        old, value.type = value.type, type
        self._notify(lambda listener: listener.type_changed(value, old))

    def _notify(self, event: Callable[[Listener], None]) -> None:
        for listener in self.function.listeners:
            event(listener)


def _insert_operand(op: Op, index: int, value: Value) -> None:
    """Inserts an operand before operand `index`."""
    for number in range(index, len(op.operands)):
        old = op.operands[number]
        if old is not None:
            del old.uses[(op, number)]
    op.operands.insert(index, value)
    for number in range(index, len(op.operands)):
        now = op.operands[number]
        if now is not None:
            now.uses[(op, number)] = None


def insert_constant(rewriter: Rewriter, data: ConstantData, origin: str = "") -> Value:
    """Inserts a constant at the insertion point; no shape rule is called, as the data has a
    type."""
    return rewriter.insert(Op(CONSTANT, [], {"value": data}, [data.type], (), origin)).result
