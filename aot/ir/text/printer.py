"""Prints the text form of modules, functions and single ops.

The form is for people and for tests: deterministic, no addresses, paths or times, and
`aot.ir.text.parser` reads it back to an equal module. Grammar: docs/internals/text-ir.md. Never
changes the IR.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from aot.errors import InternalError
from aot.ir.compare import attr_key
from aot.ir.dims import DimExpr
from aot.ir.graph import Attr, Block, ConstantData, Function, FunctionRef, Module, Op, Value
from aot.ir.types import DType, Layout

INLINE_ELEMENTS = 16
KEYWORDS = {"function": "func", "executable": "executable"}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def print_module(module: Module, *, elide_blobs: bool = False) -> str:
    """The text form of a module.

    With `elide_blobs` contents of large constants are left out, for reading; such text does not
    parse.
    """
    blobs: dict[str, ConstantData] = {}
    parts = [_FunctionPrinter(f, blobs).text() for f in module.functions.values()]
    if blobs:
        parts.append("".join(_blob(digest, data, elide_blobs) for digest, data in blobs.items()))
    return "\n".join(parts)


def print_function(function: Function) -> str:
    """The text of one function; contents of large constants are only named by digest."""
    return _FunctionPrinter(function, {}).text()


def print_op(op: Op) -> str:
    """The text of one op, with the names that its function's text uses; for messages."""
    function = _function_of(op)
    printer = _FunctionPrinter(function, {}) if function is not None else _Printer({})
    if function is not None:
        printer.name_block(function.block)
    printer.op(op)
    return "".join(printer.lines).rstrip("\n").strip()


def print_attr(value: Attr) -> str:
    """The text of an attribute; contents of a large constant are only named by digest."""
    return _Printer({}).attr(value)


def quote(text: str) -> str:
    """`text` as a string of the text form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def function_name(name: str) -> str:
    """`@name`, quoted unless it is an identifier."""
    return f"@{name}" if _PLAIN_NAME.fullmatch(name) else f"@{quote(name)}"


def float_text(value: float | np.floating[Any]) -> str:
    """The shortest text that parses to exactly `value` in its own precision."""
    if not isinstance(value, np.floating) or not np.isfinite(value):
        return repr(float(value))
    # numpy's own text of a half or single differs between its versions
    for digits in range(1, 17):
        short = float(f"{float(value):.{digits}g}")
        with np.errstate(over="ignore"):
            if type(value)(short).tobytes() == value.tobytes():
                return repr(short)
    return repr(float(value))


def _function_of(op: Op) -> Function | None:
    at: Op | Function | None = op
    while isinstance(at, Op):
        at = at.parent.owner if at.parent is not None else None
    return at


def _blob(digest: str, data: ConstantData, elide: bool) -> str:
    if elide:
        return f"blob {quote(digest)} elided {len(data.bytes)} bytes\n"
    return f"blob {quote(digest)} = {quote(base64.b64encode(data.bytes).decode('ascii'))}\n"


class _Printer:
    """Prints ops line by line, with names for their values."""

    def __init__(self, blobs: dict[str, ConstantData]) -> None:
        self.lines: list[str] = []
        self.blobs = blobs
        self.names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        self._count = 0

    def name_block(self, block: Block) -> None:
        """Names all values of `block` and of nested blocks, in the order of the text."""
        for value in block.args:
            self.define(value)
        for op in block:
            for value in op.results:
                self.define(value)
            for inner in op.blocks:
                self.name_block(inner)

    def define(self, value: Value) -> None:
        if not _NAME.fullmatch(value.name):
            self.names[value] = str(self._count)
            self._count += 1
            return
        name = value.name
        while name in self._taken:
            number = self._next.get(value.name, 1)
            self._next[value.name] = number + 1
            name = f"{value.name}_{number}"
        self._taken.add(name)
        self.names[value] = name

    def value(self, value: Value | None) -> str:
        if value is None:
            return "_"
        # a value without a name is one that the verifier is about to complain of
        return f"%{self.names.get(value, f'<unknown {value.name or value.index}>')}"

    def op(self, op: Op, indent: str = "  ") -> None:
        self.lines.append(indent)
        if op.results:
            self.lines.append(f"{', '.join(map(self.value, op.results))} = ")
        self.lines.append(op.name)
        if op.operands:
            self.lines.append(f"({', '.join(map(self.value, op.operands))})")
        attrs = self.attrs(op)
        if attrs:
            self.lines.append(f" {{{', '.join(attrs)}}}")
        if op.results:
            self.lines.append(f" : {', '.join(str(v.type) for v in op.results)}")
        if op.origin:
            self.lines.append(f" @{quote(op.origin)}")
        for block in op.blocks:
            self.block(block, indent)
        self.lines.append("\n")

    def block(self, block: Block, indent: str) -> None:
        args = ", ".join(f"{self.value(v)}: {v.type}" for v in block.args)
        self.lines.append(f" ^({args}) {{\n")
        for op in block:
            self.op(op, indent + "  ")
        self.lines.append(f"{indent}}}")

    def attrs(self, op: Op) -> list[str]:
        defaults = {a.name: a.default for a in op.record.attributes if not a.is_required}
        order = [a.name for a in op.record.attributes if a.name in op.attrs]
        order += [name for name in op.attrs if name not in order]
        return [
            f"{name} = {self.attr(op.attrs[name])}"
            for name in order
            if name not in defaults or attr_key(defaults[name]) != attr_key(op.attrs[name])
        ]

    def attr(self, value: Attr) -> str:
        match value:
            case bool():
                return "true" if value else "false"
            case int() | DType() | DimExpr() | Layout():
                return str(value)
            case float():
                return float_text(value)
            case str():
                return quote(value)
            case FunctionRef():
                return function_name(value.name)
            case tuple():
                return f"[{', '.join(map(self.attr, value))}]"
            case ConstantData():
                return f"{value.type} <{self.data(value)}>"
        raise InternalError(f"{value!r} of type {type(value).__name__} is no attribute")

    def data(self, data: ConstantData) -> str:
        """The text of constant data in memory order: a repeated element once, large contents by
        digest.
        """
        flat = data.array.reshape(-1)
        if flat.size and _is_printable(flat):
            if flat.size > 1 and _is_splat(flat):
                return f"splat {_element(flat[0])}"
            if flat.size <= INLINE_ELEMENTS:
                return ", ".join(map(_element, flat))
        if not flat.size:
            return ""
        self.blobs.setdefault(data.digest, data)
        return f"blob {quote(data.digest)}"


def _is_splat(flat: np.ndarray[Any, Any]) -> bool:
    words = flat.view(f"u{flat.dtype.itemsize}")
    return bool((words == words[0]).all())


def _is_printable(flat: np.ndarray[Any, Any]) -> bool:
    """Whether the text form can represent the elements: the only NaN that it knows is numpy's."""
    if not DType.of(flat.dtype).is_float:
        return True
    nans = flat[np.isnan(flat)]
    return bool(nans.tobytes() == np.full(nans.shape, np.nan, flat.dtype).tobytes())


def _element(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    if value.dtype == DType.BF16.numpy:  # which is none of numpy's floats
        value = np.float32(value)
    return float_text(value) if isinstance(value, np.floating) else str(int(value))


class _FunctionPrinter(_Printer):
    def __init__(self, function: Function, blobs: dict[str, ConstantData]) -> None:
        super().__init__(blobs)
        self.function = function

    def text(self) -> str:
        function = self.function
        self.name_block(function.block)
        dims = f"[{', '.join(function.dim_names)}]" if function.dim_names else ""
        inputs = ", ".join(map(self.input, function.inputs))
        results = (
            f" -> ({', '.join(map(quote, function.result_names))})"
            if (function.result_names)
            else ""
        )
        self.lines.append(
            f"{KEYWORDS[function.kind]} {function_name(function.name)}{dims}({inputs}){results}"
        )
        if function.updates:
            listed = (
                f"{quote(result)}: {quote(name)}" for result, name in function.updates.items()
            )
            self.lines.append(f" updates [{', '.join(listed)}]")
        if function.strings is not None:
            names, table = (
                ", ".join(map(quote, listed))
                for listed in (function.strings.names, function.strings.table)
            )
            self.lines.append(f" strings [{names}] of [{table}]")
        if function.bindings:
            self.lines.append(f" bindings [{', '.join(map(str, function.bindings))}]")
        if function.schedule:
            self.lines.append(f" schedule [{', '.join(map(str, function.schedule))}]")
        if function.assumptions:
            self.lines.append(f" assume [\n{_lines_of(function)}]")
        self.lines.append(" {\n")
        for op in function.block:
            self.op(op)
        self.lines.append("}\n")
        return "".join(self.lines)

    def input(self, value: Value) -> str:
        name = self.names[value]
        quoted = f" {quote(value.name)}" if value.name and value.name != name else ""
        return f"%{name}{quoted}: {value.type}"


def _lines_of(function: Function) -> str:
    lines: Iterable[str] = (
        f"  {a.left} == {a.right} {quote(a.reason)},\n" for a in function.assumptions
    )
    return "".join(lines)
