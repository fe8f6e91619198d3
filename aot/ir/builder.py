"""The public builder: constructs graphs in Python, with one call per op.

Owns convenience only (numpy constants, text types, attribute spelling); every op is checked by its
record as it is made. Never optimises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from aot.errors import CompileError
from aot.ir import dims
from aot.ir.builtin import CONSTANT, RETURN, YIELD
from aot.ir.dim_parser import parse
from aot.ir.graph import Attr, Block, ConstantData, Function, FunctionRef, Module, Op, Value
from aot.ir.record import OpRecord, lookup
from aot.ir.rewriter import Rewriter
from aot.ir.text.attr_parser import AttrParser
from aot.ir.text.tokens import END, Tokens
from aot.ir.types import DType, TensorType

TypeLike = Union[str, TensorType]
OperandLike = Union[Value, np.ndarray[Any, Any], np.generic, int, float, bool, None]


def parse_type(text: TypeLike) -> TensorType:
    """The type of a text such as "f32[N, 3]"; a TensorType is returned as it is.

    Raises:
        CompileError: `text` is no type.
    """
    if isinstance(text, TensorType):
        return text
    tokens = Tokens(text)
    found = AttrParser(tokens, {}).type()
    if tokens.kind != END:
        raise tokens.expected("the end of the type")
    return found


class Builder:
    """Builds one function of a module.

        b = Builder()
        x = b.input("x", "f32[N, 3]")
        y = b.op("relu", b.op("add", x, np.ones(3, np.float32)))
        b.output("y", y)
        module = b.module()

    Args:
        name: the function's name.
        into: a module to add the function to; a fresh one by default.
        kind: "function", or "executable" for a dispatch's body.
        dim_names: an executable's dim parameters, in order.
    """

    def __init__(
        self,
        name: str = "main",
        into: Module | None = None,
        kind: str = "function",
        dim_names: Sequence[str] = (),
    ) -> None:
        self._module = into if into is not None else Module()
        self._function = Function(name, Block(), kind=kind)
        self._function.dim_names = tuple(dim_names)
        self._block = self._function.block
        self._outputs: list[Value] = []
        self._input_names: set[str] = set()
        self._output_names: set[str] = set()
        self._is_finished = False

    def input(self, name: str, type: TypeLike) -> Value:
        """A new input. Dims may be symbolic: "f32[N, 3, 2*W]"."""
        block = self._function.block
        if name and name in self._input_names:
            raise CompileError(f"there are two inputs named {name!r}")
        self._input_names.add(name)
        value = Value(parse_type(type), block, len(block.args), name)
        block.args.append(value)
        return value

    def output(self, name: str, value: Value) -> None:
        """Makes `value` the next result of the function."""
        if name in self._output_names:
            raise CompileError(f"there are two outputs named {name!r}")
        self._output_names.add(name)
        self._function.result_names.append(name)
        self._outputs.append(value)

    def constant(
        self, array: Any, dtype: str | DType | None = None, *, origin: str = "", name: str = ""
    ) -> Value:
        """A constant with a copy of `array`.

        Args:
            dtype: element type; without it Python numbers become f32, i64 and bool.
        """
        found = np.asarray(array)
        if dtype is not None:
            found = found.astype(DType(str(dtype)).numpy)
        elif found.dtype == np.float64 and not isinstance(array, (np.ndarray, np.generic)):
            found = found.astype(np.float32)
        op = self._insert(CONSTANT, [], {"value": ConstantData(found)}, origin=origin)
        op.result.name = name
        return op.result

    def op(
        self,
        name: str,
        *operands: OperandLike,
        origin: str = "",
        hint: str | Sequence[str] = "",
        blocks: Sequence[Block] = (),
        result_types: Sequence[TypeLike] = (),
        **attrs: Any,
    ) -> Any:
        """Creates op `name` and returns its result: a Value, or a tuple of them unless there is
        exactly one.

        Operands are values, None where an optional one is absent, arrays, or Python numbers, which
        take the dtype of the first operand that is a value. Attributes are given by name; a dtype,
        type or dim may be text, a sequence becomes a tuple.

        Args:
            origin: the model's node, for messages.
            hint: names for the results, for reading.
            blocks: bodies, made by `block`.
            result_types: for ops that run a function by name; others know their own.

        Raises:
            CompileError: there is no such op, or its record refuses the call.
        """
        record = lookup(name)
        values = [self._operand(v, operands) for v in operands]
        types = [parse_type(t) for t in result_types]
        made = self._insert(record, values, _attributes(record, attrs), types, blocks, origin)
        hints = [hint] if isinstance(hint, str) else hint
        for value, text in zip(made.results, hints, strict=False):
            value.name = text
        return made.results[0] if len(made.results) == 1 else tuple(made.results)

    def block(
        self,
        types: Sequence[TypeLike],
        body: Callable[..., Sequence[Value] | Value],
        names: Sequence[str] = (),
    ) -> Block:
        """A block for `op(..., blocks=[...])`: `body` receives its arguments and returns its
        results.

        inner = b.block(["f32[4]"], lambda v: b.op("relu", v))
        y = b.op("region", x, blocks=[inner])
        """
        block = Block([parse_type(t) for t in types], names)
        outer, self._block = self._block, block
        try:
            results = body(*block.args)
            found = [results] if isinstance(results, Value) else list(results)
            self._insert(YIELD, found, {})
        finally:
            self._block = outer
        return block

    def assume(self, left: dims.Dim | str, right: dims.Dim | str, reason: str) -> None:
        """Assumes `left == right`; it is checked before a run, with `reason` if it fails."""
        from aot.ir.graph import Assumption

        self._function.assumptions[Assumption(_dim(left), _dim(right), reason)] = None

    def function(self) -> Function:
        """Finishes the function and adds it to its module; nothing can be added to it
        afterwards."""
        if not self._is_finished:
            self._block = self._function.block
            self._insert(RETURN, self._outputs, {})
            self._module.add(self._function)
            self._is_finished = True
        return self._function

    def module(self) -> Module:
        """The module with the finished function."""
        self.function()
        return self._module

    def _operand(self, value: OperandLike, others: Sequence[OperandLike]) -> Value | None:
        if value is None or isinstance(value, Value):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, np.generic):
            like = next((v.type.dtype for v in others if isinstance(v, Value)), None)
            return self.constant(value, like)
        return self.constant(value)

    def _insert(
        self,
        record: OpRecord,
        operands: Sequence[Value | None],
        attrs: Mapping[str, Attr],
        types: Sequence[TensorType] = (),
        blocks: Sequence[Block] = (),
        origin: str = "",
    ) -> Op:
        if self._is_finished:
            raise CompileError(f"function {self._function.name!r} is finished")
        rewriter = Rewriter(self._function, self._block)
        if record.results_from == "rule":
            return rewriter.create(record, operands, attrs, origin, blocks)
        call = record.check([None if v is None else v.type for v in operands], attrs, origin)
        if record.body is not None and not types:
            yielded = [v.type for b in blocks[:1] for v in b.terminator.operands if v is not None]
            types = record.body.result_types(call, yielded)
        return rewriter.insert(Op(record, operands, call.attrs, types, blocks, origin))


def _attributes(record: OpRecord, given: Mapping[str, Any]) -> dict[str, Attr]:
    declared = {a.name: a.type for a in record.attributes}
    return {name: _attribute(declared.get(name, ""), value) for name, value in given.items()}


def _attribute(declared: str, value: Any) -> Attr:
    """Converts the Python value that a caller passes for an attribute to an attribute."""
    if declared == "data" and not isinstance(value, ConstantData):
        return ConstantData(np.asarray(value))
    if isinstance(value, np.ndarray):
        return _attribute(declared, value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        inner = {"dims": "dim", "ints": "int"}.get(declared, declared)
        return tuple(_attribute(inner, v) for v in value)
    if isinstance(value, str):
        if declared == "dtype":
            return DType(value)
        if declared == "dim":
            return _dim(value)
        if declared == "function":
            return FunctionRef(value)
    attr: Attr = value
    return attr


def _dim(value: dims.Dim | str) -> dims.Dim:
    return parse(value) if isinstance(value, str) else value
