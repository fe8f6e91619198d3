"""Interprets a program symbolically: the dims in its registers, and the checks passed so far.

Steps through the instructions once, in the order of the text. A register that is written at more
than one place holds any of what is written to it; a loop's counter is a symbol of its own. Judges
no memory: that is `placement_check`'s.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from aot.analysis.control import control_ops
from aot.errors import InternalError
from aot.ir import dims
from aot.ir.bounds import linear
from aot.ir.dims import Dim, DimExpr, Interval, Symbol
from aot.ir.graph import Function
from aot.link.image import EntryPointImage, TensorInfo
from aot.link.nonnegative import Assumptions, bounds_from, is_nonnegative
from aot.link.program import SIGNATURES, Instruction, constant_value, decode

Values = tuple[Dim, ...]  # what a register may hold
MOST_VALUES = 64
# Instructions that write a register, which their first operand names.
WRITES = frozenset(n for n, operands in SIGNATURES.items() if operands.split()[:1] == ["rd"])
UNKNOWN: Interval = (None, None)
ARITHMETIC: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "ADD": dims.add,
    "SUB": lambda a, b: dims.add(a, dims.multiply(b, -1)),
    "MUL": dims.multiply,
    "FLOORDIV": dims.floor_divide,
    "FLOORMOD": dims.modulo,
    "MIN": dims.minimum,
    "MAX": dims.maximum,
}
# What is at least 0 where `a op b` holds.
FACTS: Mapping[str, Callable[[Dim, Dim], tuple[Dim, ...]]] = {
    "LT": lambda a, b: (a * -1 + b + -1,),
    "LE": lambda a, b: (a * -1 + b,),
    "EQ": lambda a, b: (a * -1 + b, b * -1 + a),
    "NE": lambda a, b: (),
    "OR": lambda a, b: (),
}


def own_symbol(text: str) -> DimExpr:
    """A symbol with a name that no model can use, for an address or a value known only in a run."""
    return DimExpr((((Symbol(f"@{text}"),), 1),), 0)


class Steps:
    """A symbolic interpreter of a program, with dims in its registers.

    Args:
        symbols: the register of each symbol of the function's dims.

    Attributes:
        values: possible dims by register, at the current step.
        known: bounds of symbols that hold everywhere.
        places: by the symbol of an address: (kind of memory, its number, symbol).
        sizes, extents: of arena buffers, and of outputs by number and axis, as `prepare` says.
        lengths: state scalars that symbols stand for.
    """

    def __init__(
        self, entry: EntryPointImage, function: Function, symbols: Mapping[str, int]
    ) -> None:
        self.entry, self.program, self.function = entry, entry.program, function
        self.instructions = list(decode(self.program.code))
        self.names = {register: name for name, register in symbols.items()}
        self.known: dict[str, Interval] = {}
        self.sizes: dict[int, Dim] = {}
        self.extents: dict[tuple[int, int], Dim] = {}
        self.values: dict[int, Values] = {}
        self.places: dict[str, tuple[str, int, DimExpr]] = {}
        self._at = 0
        self._met: dict[str, Dim] = {}
        self._tensors: dict[tuple[str, int], Dim] = {}
        for value in (*function.inputs, *(v for op in control_ops(function) for v in op.results)):
            for dim in value.type.dims:
                self.one_of_equal(dim)
        for kind, registers in (
            ("input", self.program.input_offset_registers),
            ("output", self.program.output_offset_registers),
            ("buffer", [b.offset_register for b in self.program.buffers]),
        ):
            for number, register in enumerate(registers):
                start = own_symbol(f"{kind} {number}")
                self.values[register] = (start,)
                self.places[str(start)] = kind, number, start
        written = Counter(s.operands[0] for s in self.instructions if s.name in WRITES)
        self._changing = {register for register, count in written.items() if count > 1}
        self.lengths = {
            step.operands[1]
            for step in self.instructions
            if step.name == "STATE" and step.operands[0] in self.names
        }
        self._flow()
        self._declared = {
            (n, axis): dim
            for n, value in enumerate(function.inputs)
            for axis, dim in enumerate(value.type.dims)
            if isinstance(dim, DimExpr)
        }
        self._unchecked = self._not_defining()

    # Control flow.

    def _flow(self) -> None:
        starts, count = self.program.blocks, len(self.program.blocks)
        self._before: list[list[int]] = [[] for _ in range(count)]
        self._loops: list[tuple[int, int]] = []  # first and last word of each
        for step in self.instructions:
            if step.name not in ("JUMP", "BRANCH", "RETURN"):
                continue
            block = self.block_of(step.at)
            if step.name == "RETURN" and block < self.program.execute_block:
                self._before[self.program.execute_block].append(block)  # execute comes behind
            for target in () if step.name == "RETURN" else step.operands[step.name == "BRANCH" :]:
                self._before[target].append(block)
                if target <= block:
                    self._loops.append((starts[target], step.at))
        # the nearest block through which all ways lead; all ways forward are known before a block
        self._above = [0] * count
        for block in range(1, count):
            ways = [b for b in self._before[block] if b < block]
            above = ways[0] if ways else 0
            for way in ways[1:]:
                while way != above:
                    above, way = min(above, way), max(above, way)
                    way = self._above[way]
            self._above[block] = above
        self._facts: list[list[tuple[int, Dim]]] = []
        self._counters: dict[int, DimExpr] = {}
        self._conditions: dict[int, tuple[int, tuple[Dim, ...]]] = {}
        self._writes: dict[str, list[int]] = {}  # of counters, by symbol
        self._here: dict[int, Values] = {}  # of changing registers, as this block wrote them
        self._seen: tuple[int, Assumptions] | None = None

    def block_of(self, word: int) -> int:
        return bisect_right(self.program.blocks, word) - 1

    def assumptions(self) -> Assumptions:
        """The assumptions that hold at the current instruction: dims that are at least 0, and
        bounds of symbols.
        """
        block = self.block_of(self._at)
        if self._seen is None or self._seen[0] != block or self._writes:
            found: list[Dim] = []
            at = block
            while True:
                found += [f for word, f in self._facts[at] if self._still_holds(f, word)]
                if at == 0:
                    break
                at = self._above[at]
            found = list(dict.fromkeys(found))
            self._seen = block, Assumptions(found, bounds_from(found, self.known))
        return self._seen[1]

    def _still_holds(self, fact: Dim, word: int) -> bool:
        """Whether a fact established at `word` still holds: no counter in it has changed on any
        path since."""
        at = self._at
        return not any(
            word < write < at
            or any(word < h <= at <= t and h <= write <= t for h, t in self._loops)
            for name in (dims.symbols(fact) & self._writes.keys() if self._writes else ())
            for write in self._writes[name]
        )

    # What a run is told.

    def _not_defining(self) -> set[tuple[int, int]]:
        """Extents of inputs that the program must check: those from which no symbol takes its
        value."""
        names = {
            self.names[step.operands[0]]
            for step in self.instructions
            if step.name == "STATE" and step.operands[0] in self.names
        }
        found = set(self._declared)
        for is_bare in (True, False):
            for place, dim in self._declared.items():
                term = linear(dim)
                if term is None or term[1] != 1 or (is_bare and term[2] != 0) or term[0] in names:
                    continue
                names.add(term[0])
                found.discard(place)
        return found

    def _declared_facts(self, tensors: Sequence[TensorInfo]) -> Iterator[Dim]:
        for (number, axis), dim in self._declared.items():
            info = tensors[number].dims[axis]
            yield dims.add(dim, -info.minimum)
            if info.maximum is not None:
                yield dims.add(dims.multiply(dim, -1), info.maximum)

    def one_of_equal(self, dim: Dim) -> Dim:
        """A canonical instance of a dim, so that equal dims can be compared by identity."""
        return dim if isinstance(dim, int) else self._met.setdefault(str(dim), dim)

    def tensor_bytes(self, kind: str, number: int) -> Dim:
        """The least size of the caller's memory for an input or output after `prepare`."""
        if (kind, number) not in self._tensors:
            self._tensors[kind, number] = self.one_of_equal(self._tensor_bytes(kind, number))
        return self._tensors[kind, number]

    def _tensor_bytes(self, kind: str, number: int) -> Dim:
        if kind == "input":
            value = self.function.inputs[number]
            return value.type.dtype.storage_bytes(dims.product(value.type.dims))
        info = self.entry.outputs[number]
        extents = [
            self.extents.get((number, axis), -1) if dim.extent is None else dim.extent
            for axis, dim in enumerate(info.dims)
        ]
        return info.dtype.storage_bytes(dims.product(extents))

    # Steps.

    def run(self, visit: Callable[[Instruction], None]) -> None:
        """Steps through the program, calling `visit` before each instruction.

        Raises:
            InternalError: a register is read before it is written, or does not hold what it is said
                to; an input's extent isn't checked.
        """
        before: object = None
        while self._changing and before != (held := self._held()):
            before = held
            self._walk(None)
        self._walk(visit)
        if self._unchecked:
            number, axis = min(self._unchecked)
            raise InternalError(
                f"axis {axis} of input {self.function.inputs[number].name!r} is never checked to "
                f"be {self._declared[number, axis]}"
            )

    def _held(self) -> dict[int, Values]:
        return {r: self.values[r] for r in self._changing if r in self.values}

    def _walk(self, visit: Callable[[Instruction], None] | None) -> None:
        self._facts = [[] for _ in self.program.blocks]
        self._facts[0] += [(0, fact) for fact in self._declared_facts(self.entry.inputs)]
        self._seen = None
        self._extent_registers: dict[int, tuple[int, int]] = {}
        self._equal: dict[int, tuple[int, int]] = {}
        starts = set(self.program.blocks)
        for step in self.instructions:
            self._at = step.at
            if step.at in starts:
                self._here = {}
            if visit is not None:
                visit(step)
            self._step(step)

    def read(self, register: int) -> Values:
        """The dims that a register may hold at the current instruction."""
        found = self._here.get(register) or self.values.get(register)
        if not found:
            raise InternalError(f"word {self._at}: register {register} is read and never written")
        return found

    def one(self, register: int) -> Dim:
        """The only dim that a register can hold at the current instruction."""
        (*others, last) = self.read(register)
        if others:
            raise InternalError(f"word {self._at}: register {register} may hold several numbers")
        return last

    def is_nonnegative(self, dim: Dim, *given: Dim) -> bool:
        """Whether a dim is at least 0 at the current instruction, assuming that the dims `given`
        are too.
        """
        if isinstance(dim, int):
            return dim >= 0
        return is_nonnegative(dim, self.assumptions().with_facts(given))

    def _step(self, step: Instruction) -> None:
        name, operands = step.name, step.operands
        target = operands[0] if operands else 0
        if name in ARITHMETIC:
            if target in operands[1:]:
                self._count(step)
                return
            if name in ("FLOORDIV", "FLOORMOD"):
                self._divided_by(self.read(operands[2]))
            self._write(target, self._computed(name, self.read(operands[1]), operands[2]))
        elif name in FACTS or name == "AND":
            self._compare(name, target, operands[1], operands[2])
        elif name == "CONST":
            self._write(target, (constant_value(*operands[1:]),))
        elif name == "MOVE":
            self._write(target, self._opaque(target, UNKNOWN) or self.read(operands[1]))
        elif name == "SELECT":
            self._write(target, (*self.read(operands[2]), *self.read(operands[3])))
        elif name == "INPUT_DIM":
            number, axis = operands[1:]
            self._extent_registers[target] = number, axis
            self._write(target, (self.function.inputs[number].type.dims[axis],))
        elif name in ("LOAD", "STATE"):
            bounds = UNKNOWN if name == "LOAD" else (0, None)  # SET_STATE is checked
            fresh = own_symbol(f"{name} {step.at}")
            self.known[str(fresh)], self._seen = bounds, None
            self._write(target, self._opaque(target, bounds) or (fresh,))
        elif name == "CHECK":
            self._established(target, self.block_of(step.at))
        elif name == "BRANCH" and self._before[operands[1]] == [self.block_of(step.at)]:
            self._established(target, operands[1])
        elif name == "BUFFER":
            self.sizes[target] = self.one_of_equal(self.one(operands[1]))
        elif name == "OUTPUT_DIM" and self.block_of(step.at) < self.program.execute_block:
            self.extents[operands[0], operands[1]] = self.one(operands[2])

    def _opaque(self, register: int, bounds: Interval) -> Values | None:
        """The symbol for a register whose value is known only in a run; None if it is no symbol of
        the function."""
        name = self.names.get(register)
        if name is None:
            return None
        self.known[name], self._seen = bounds, None
        return (DimExpr((((Symbol(name),), 1),), 0),)

    def _divided_by(self, values: Values) -> None:
        """Records that a non-negative divisor is at least 1 from here on, as a division by 0 ends
        the run.
        """
        (divisor, *others) = values
        if not others and not isinstance(divisor, int) and self.is_nonnegative(divisor):
            self._facts[self.block_of(self._at)].append((self._at, dims.add(divisor, -1)))
            self._seen = None

    def _computed(self, name: str, left: Values, right: int) -> Values:
        try:
            found = tuple(ARITHMETIC[name](a, b) for a, b in product(left, self.read(right)))
            is_atom = name in ("FLOORDIV", "MIN", "MAX")  # what sums and products are compared by
            return tuple(map(self.one_of_equal, found)) if is_atom else found
        except ZeroDivisionError:  # which ends the run
            return (own_symbol(f"nothing {self._at}"),)

    def _count(self, step: Instruction) -> None:
        """Steps over `ADD r r one`, which makes r a loop's counter: it becomes a symbol for any
        number of iterations."""
        register, *parts = step.operands
        added = self.one(parts[1] if parts[0] == register else parts[0])
        firsts = self.read(register)
        counter = self._counters[register] = own_symbol(f"counter {register}")
        is_rising = step.name == "ADD" and self.is_nonnegative(added)
        self.known[str(counter)] = (0, None) if is_rising else UNKNOWN
        self._writes[str(counter)] = [
            s.at for s in self.instructions if s.name in WRITES and s.operands[0] == register
        ]
        self._write(register, firsts)

    def _compare(self, name: str, target: int, left: int, right: int) -> None:
        made: tuple[Dim, ...] = ()
        if name == "AND":
            block = self.block_of(self._at)
            for part in (left, right):
                where, facts = self._conditions.get(part, (block, ()))
                made += facts if where == block or part not in self._changing else ()
        elif len(self.read(left)) == len(self.read(right)) == 1:
            made = FACTS[name](self.one(left), self.one(right))
            if name == "EQ":
                self._equal[target] = left, right
        flag = own_symbol(f"flag {target}")
        self.known[str(flag)] = 0, 1
        self._write(target, (flag,))
        self._conditions[target] = self.block_of(self._at), made

    def _established(self, condition: int, block: int) -> None:
        """Records that a condition holds from here on: after a CHECK, or in a branch."""
        where, facts = self._conditions.get(condition, (0, ()))
        if condition not in self._changing or where == self.block_of(self._at):
            self._facts[block] += [(self._at, fact) for fact in facts]
            self._seen = None
        if condition in self._equal and condition not in self._changing:
            for register, other in (self._equal[condition], self._equal[condition][::-1]):
                place = self._extent_registers.get(register)
                if register != other and place in self._unchecked:
                    assert place is not None
                    if self.read(other) == (self._declared[place],):
                        self._unchecked.discard(place)

    def _write(self, register: int, values: Values) -> None:
        name = self.names.get(register)
        if name is not None and values != (dims.symbol(name),):
            raise InternalError(f"word {self._at}: the register of {name} holds {values[0]}")
        counter = self._counters.get(register)
        if counter is not None:
            if not all(v == counter or self.is_nonnegative(v) for v in values):
                self.known[str(counter)] = UNKNOWN
            values = (counter,)
        elif register in self._changing:
            self._here[register] = values
            values = tuple(dict.fromkeys((*self.values.get(register, ()), *values)))
            if len(values) > MOST_VALUES:
                values = self._here[register] = (own_symbol(f"register {register}"),)
                self.known[str(values[0])] = UNKNOWN
        self.values[register] = values
