"""Words and registers of a program under construction.

Owns how a dim becomes instructions, each computed once, and how branches become blocks. Knows
nothing of what they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Union

from aot.base.records import dataclass
from aot.errors import CompileError, InternalError
from aot.ir.dims import Atom, Dim, DimExpr, Extremum, FloorDiv, Monomial, Symbol, symbols
from aot.link.program import TERMINATORS, TOUCHES, encode, encode_constant

LONG_SUM = 16  # terms, beyond which a sum is computed of the one before
Emit = Callable[..., None]  # an instruction's name and operands


@dataclass
class Emitter:
    """The registers and words of a program under construction; all of `prepare` is emitted before
    `execute`.

    Attributes:
        given: of each symbol that only a run knows, a state's length or what a value gives, in
            order, the header behind the instructions that give it: what has the symbol in it is
            computed there.
        last_sum: the last dim of many terms that was computed.
    """

    words: list[int] = field(default_factory=list)
    registers: int = 0
    constants: dict[int, int] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    known: dict[Dim | Atom, int] = field(default_factory=dict)
    given: dict[str, Header] = field(default_factory=dict)
    last_sum: DimExpr | None = None

    def register(self) -> int:
        self.registers += 1
        return self.registers - 1

    def emit(self, name: str, *operands: int) -> None:
        self.words += encode(name, *operands)

    def constant(self, value: int) -> int:
        if not -(1 << 63) <= value < 1 << 63:
            raise CompileError(
                f"an extent is computed with {value}, which does not fit 64 bits: give the extents "
                "of the model's inputs as numbers (--input-shape, input_shapes)"
            )
        if value not in self.constants:
            self.constants[value] = self.register()
            self.values[self.constants[value]] = value
            self.words += encode_constant(self.constants[value], value)
        return self.constants[value]

    def constant_in(self, register: int) -> int | None:
        """The constant in a register that `constant` returned; None for other registers."""
        return self.values.get(register)

    def binary(self, name: str, a: int, b: int, emit: Emit | None = None) -> int:
        made = self.register()
        (emit or self.emit)(name, made, a, b)
        return made

    def header_of(self, *dims: Dim) -> Header | None:
        """The header after which all `dims` are known, if they depend on values of a run; None if
        `prepare` computes them.
        """
        if not self.given:
            return None
        named = {name for dim in dims for name in symbols(dim)}
        return next((h for name, h in reversed(self.given.items()) if name in named), None)

    def emit_for(self, *dims: Dim) -> Emit:
        """A function that emits instructions at the point where dims are known."""
        header = self.header_of(*dims)
        return self.emit if header is None else header.emit

    def dim(self, dim: Dim) -> int:
        """The register that holds `dim`; equal dims are computed once."""
        if isinstance(dim, int):
            return self.constant(dim)
        if dim not in self.known:
            emit = self.emit_for(dim)
            rest, total = self._beyond_last(dim)
            if rest.constant:
                constant = self.constant(rest.constant)
                total = constant if total is None else self.binary("ADD", total, constant, emit)
            for monomial, coefficient in rest.terms:
                term: int | None = None if coefficient == 1 else self.constant(coefficient)
                for atom in monomial:
                    value = self.atom(atom)
                    term = value if term is None else self.binary("MUL", term, value, emit)
                assert term is not None
                total = term if total is None else self.binary("ADD", total, term, emit)
            assert total is not None
            self.known[dim] = total
            if len(dim.terms) > LONG_SUM:
                self.last_sum = dim
        return self.known[dim]

    def _beyond_last(self, dim: DimExpr) -> tuple[DimExpr, int | None]:
        """(remaining dim, register of the last long sum) if the dim contains that sum, else (dim,
        None). So the offsets of a thousand consecutive parts take a thousand instructions and not a
        million.
        """
        last = self.last_sum
        if last is None or self.given or len(dim.terms) < len(last.terms):
            return dim, None
        more: list[tuple[Monomial, int]] = []
        left = iter(last.terms)  # both are in the order of all sums
        next_of_last = next(left, None)
        for term in dim.terms:
            if term == next_of_last:
                next_of_last = next(left, None)
            else:
                more.append(term)
        if next_of_last is not None or len(more) > len(last.terms):
            return dim, None
        return DimExpr(tuple(more), dim.constant - last.constant), self.known[last]

    def atom(self, atom: Atom) -> int:
        if atom not in self.known:
            if isinstance(atom, Symbol):
                raise InternalError(f"no input gives dim {atom}")
            if isinstance(atom, FloorDiv):
                made = self.binary(
                    *("FLOORDIV", self.dim(atom.numerator), self.dim(atom.denominator)),
                    self.emit_for(atom.numerator, atom.denominator),
                )
            else:
                made = self._extremum(atom)
            self.known[atom] = made
        return self.known[atom]

    def _extremum(self, atom: Extremum) -> int:
        made = self.dim(atom.args[0])
        for arg in atom.args[1:]:
            name, emit = "MAX" if atom.is_max else "MIN", self.emit_for(*atom.args)
            made = self.binary(name, made, self.dim(arg), emit)
        return made


@dataclass(eq=False)
class Label:
    """The start of a block of instructions."""


Step = tuple[str, tuple[Union[int, Label], ...]]


@dataclass(eq=False)
class Header:
    """A place in the execute part where instructions can be inserted while later code is
    emitted."""

    steps: list[Step] = field(default_factory=list)
    is_placed: bool = False

    def emit(self, name: str, *operands: int) -> None:
        self.steps.append((name, operands))


@dataclass
class ExecutePart:
    """Instructions of the execute part; branches name labels until all positions are known."""

    items: list[Step | Header | Label] = field(default_factory=list)
    _is_open: bool = True  # whether what is placed next is reached from what stands before it
    _touched: str = ""  # what touched memory last; nothing, if other ways lead here too

    @property
    def is_after_dispatch(self) -> bool:
        """Whether on every path to here the last instruction that accesses memory is a dispatch."""
        return self._touched == "DISPATCH"

    def emit(self, name: str, *operands: int | Label) -> None:
        self.items.append((name, operands))
        self._is_open = name not in TERMINATORS
        if name in TOUCHES:
            self._touched = name

    def header(self, made: Header | None = None) -> Header:
        """Places a header at the current position, and returns it."""
        made = Header() if made is None else made
        made.is_placed = True
        self.items.append(made)
        self._touched = ""
        return made

    def later(self, first: Header, second: Header | None) -> Header:
        """The header of the two that comes later in the program."""
        if second is None:
            return first
        return max((first, second), key=self.items.index)

    def place(self, label: Label) -> None:
        """Begins the block of `label`; control falls through to it from the code before."""
        if self._is_open:
            self.emit("JUMP", label)
        self.items.append(label)
        self._is_open = True
        self._touched = ""

    def count(self, *names: str) -> int:
        """The number of instructions with one of the names."""
        return sum(name in names for name, _ in self._steps())

    def _steps(self) -> Iterator[Step]:
        for item in self.items:
            if isinstance(item, Header):
                yield from item.steps
            elif isinstance(item, tuple):
                yield item

    def finish(self, out: Emitter) -> tuple[int, ...]:
        """Appends the code's words to `out`; returns the first word of each block."""
        labels = [item for item in self.items if isinstance(item, Label)]
        numbers = {label: number for number, label in enumerate(labels, 2)}
        blocks = [len(out.words)]
        for item in self.items:
            if isinstance(item, Label):
                blocks.append(len(out.words))
                continue
            for name, operands in item.steps if isinstance(item, Header) else [item]:
                out.emit(name, *(numbers[o] if isinstance(o, Label) else o for o in operands))
        return tuple(blocks)
