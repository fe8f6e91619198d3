"""The shape part of a program: what each symbol is, and the checks of what was taken for granted.

Owns the messages that a user reads when shapes disagree. Bounds of dims of inputs that are linear
in one symbol are not checked here: the runtime does that when an input is set, by its declaration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aot.errors import CompileError
from aot.ir import dims
from aot.ir.bounds import bound_of, bounds_of, linear
from aot.ir.core import Assumption, Function, Op, Value
from aot.ir.dims import Dim, DimExpr, Interval, Symbol
from aot.link.emitter import Emitter

MOST_VALUES = 10  # of a message


def emit_shape_part(function: Function, out: Emitter) -> tuple[str, ...]:
    """Registers for the symbols of `function`'s dims, and checks; gives the checks' messages.

    Raises:
        CompileError: the inputs' dims can't be solved for their symbols.
    """
    part = _ShapePart(function, out)
    part.find_symbols()
    for found in part.extents:
        part.check_input(found)
    for assumption in function.assumptions:
        part.check_assumption(assumption)
    known = bounds_of(function.assumptions)
    for op in function.block:
        part.check_extents(op, known)
    return tuple(part.messages)


@dataclass(frozen=True)
class _Extent:
    """A symbolic dim of an input, and the register with its extent."""

    value: Value
    axis: int
    dim: DimExpr
    register: int

    def __str__(self) -> str:
        return f'axis {self.axis} of input "{self.value.name}"'


@dataclass
class _Message:
    """Text of a message with places for values, as `fail_check` of the runtime reads it."""

    text: str = ""
    registers: list[int] = field(default_factory=list)

    def add(self, text: str) -> _Message:
        self.text += text.replace("{", "{{").replace("}", "}}")
        return self

    def value(self, register: int) -> _Message:
        if register not in self.registers:
            self.registers.append(register)
        self.text += f"{{{self.registers.index(register)}}}"
        return self


class _ShapePart:
    def __init__(self, function: Function, out: Emitter) -> None:
        self.out = out
        self.messages: dict[str, int] = {}  # and their numbers
        self.extents: list[_Extent] = []
        self.origins: dict[str, _Extent] = {}  # where a symbol's value comes from
        self.checked: set[Dim] = set()  # not to be negative
        for number, value in enumerate(function.inputs):
            for axis, dim in enumerate(value.type.dims):
                if isinstance(dim, DimExpr):
                    self.extents.append(_Extent(value, axis, dim, out.register()))
                    out.emit("INPUT_DIM", self.extents[-1].register, number, axis)

    def find_symbols(self) -> None:
        """A symbol is an extent itself, or what an extent leaves for it where the other symbols of
        the dim are known."""
        for found in self.extents:
            symbol = linear(found.dim)
            if symbol is not None and symbol[1:] == (1, 0):
                self._define(symbol[0], found, found.register)
        pending = self.extents
        while pending:
            left = [found for found in pending if not self._solve(found)]
            if len(left) == len(pending):
                break
            pending = left
        for found in self.extents:
            for name in self._unknown(found.dim):
                raise CompileError(
                    f"input {found.value.name!r}: dim {found.axis} is {found.dim}, which does not "
                    f"say what {name} is; bind it with --input-shape"
                )

    def _define(self, name: str, origin: _Extent, register: int) -> None:
        if name not in self.origins:
            self.out.known[Symbol(name)] = register
            self.origins[name] = origin

    def _unknown(self, dim: Dim) -> list[str]:
        return sorted(dims.symbols(dim) - self.origins.keys())

    def _solve(self, found: _Extent) -> bool:
        """Defines the one unknown symbol of a dim `a * symbol + rest`; whether none is unknown."""
        unknown = self._unknown(found.dim)
        if len(unknown) != 1:
            return not unknown
        (name,) = unknown
        factor = dict(found.dim.terms).get((Symbol(name),), 0)
        rest = dims.add(found.dim, dims.multiply(dims.symbol(name), -factor))
        if factor < 1 or name in dims.symbols(rest):
            return False
        out, part = self.out, found.register
        if rest != 0:
            part = out.binary("SUB", part, out.dim(rest))
        if factor != 1:
            part = out.binary("FLOORDIV", part, out.constant(factor))
        self._define(name, found, part)
        return True

    def check_input(self, found: _Extent) -> None:
        """That an extent is what the symbols make of its dim."""
        out, name = self.out, found.value.name
        symbol = linear(found.dim)
        is_symbol = symbol is not None and symbol[1:] == (1, 0)
        if is_symbol and self.origins[str(found.dim)] is found:
            return
        message = _Message().add(f'input "{name}": axis {found.axis} is ').value(found.register)
        if symbol is not None and self.origins[symbol[0]] is found:
            if symbol[1] == 1:
                return
            what = f"a multiple of {symbol[1]}" if symbol[2] == 0 else str(found.dim)
            message.add(f", expected {what}")
        else:
            message.add(f", expected {found.dim}")
            if not is_symbol:
                message.add(" = ").value(out.dim(found.dim))
            self._where(message, [found.dim], but=found)
        self._check(out.binary("EQ", found.register, out.dim(found.dim)), message)
        for solved in [n for n, origin in self.origins.items() if origin is found]:
            if symbol is None:  # its other symbols may leave less than nothing
                is_there = out.binary("LE", out.constant(0), out.dim(dims.symbol(solved)))
                self._check(is_there, message)

    def check_assumption(self, assumption: Assumption) -> None:
        """That what a shape rule or a bound took for granted holds."""
        out, left, right = self.out, assumption.left, assumption.right
        bound = bound_of(left, right)
        message = _Message().add(f"{assumption.reason}: ")
        if bound is not None:
            dim, (low, high) = bound
            if linear(dim) and any(found.dim == dim for found in self.extents):
                return  # the declaration of the input's dim says it
            message.add(f"{dim} is ").value(out.dim(dim))
            message.add(f", expected at {f'most {high}' if low is None else f'least {low}'}")
        elif isinstance(left, int) or isinstance(right, int):
            number, dim = (left, right) if isinstance(left, int) else (right, left)
            message.add(f"{dim} is ").value(out.dim(dim)).add(f", expected {number}")
        else:
            message.add(f"{left} is ").value(out.dim(left))
            message.add(f", {right} is ").value(out.dim(right)).add(", they must be equal")
        self._where(message, [left, right])
        self._check(out.binary("EQ", out.dim(left), out.dim(right)), message)

    def check_extents(self, op: Op, known: Mapping[str, Interval]) -> None:
        """That no dim of a result is negative, such as `N - 3` would be for a short input."""
        for dim in {dim: None for value in op.results for dim in value.type.dims}:
            low, _ = dims.bounds(dim, known)
            if dim in self.checked or (low is not None and low >= 0):
                continue
            self.checked.add(dim)
            register = self.out.dim(dim)
            origin = op.origin or op.name
            message = _Message().add(f"{origin}: there is nothing left of its input: {dim} is ")
            self._where(message.value(register), [dim])
            self._check(self.out.binary("LE", self.out.constant(0), register), message)

    def _where(self, message: _Message, about: Sequence[Dim], but: _Extent | None = None) -> None:
        """Says what the symbols of dims are, and which inputs say so."""
        names = sorted({name for dim in about for name in dims.symbols(dim)})
        first = True
        for name in names:
            if self.origins[name] is but or len(message.registers) == MOST_VALUES:
                continue
            message.add("; " if first else ", ").add(f"{name} is ")
            message.value(self.out.dim(dims.symbol(name))).add(f", {self.origins[name]}")
            first = False

    def _check(self, condition: int, message: _Message) -> None:
        number = self.messages.setdefault(message.text, len(self.messages))
        self.out.emit("CHECK", condition, number, *message.registers)
