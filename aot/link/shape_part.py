"""The shape part of a program: computes the symbols' values, and checks the compiler's assumptions.

Owns the messages that a user reads when shapes disagree. Bounds of dims of inputs that are linear
in one symbol are not checked here: the runtime does that when an input is set, by its declaration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir import dims
from aot.ir.bounds import bound_of, linear, never_one, one_or_which
from aot.ir.data_dims import extents_of, limit_of
from aot.ir.dims import Dim, DimExpr, Interval, Symbol
from aot.ir.graph import BROADCAST, Assumption, Block, Function, Op, Value
from aot.ir.record import Need
from aot.ir.states import StateVariable
from aot.link.emitter import Emit, Emitter, ExecutePart, Header
from aot.link.lengths import solution
from aot.link.nonnegative import Assumptions, is_nonnegative
from aot.link.states import Length, States

MOST_VALUES = 10  # of a message


def emit_shape_part(
    function: Function,
    out: Emitter,
    states: States,
    of_a_run: Set[str],
    known: Mapping[str, Interval],
) -> ShapePart:
    """Emits registers for the symbols of a function's dims, and the checks of its assumptions,
    except those inside nested blocks.

    Args:
        of_a_run: the lengths of states that `execute` reads.
        known: bounds of symbols.

    Raises:
        CompileError: the inputs' dims can't be solved for their symbols.
    """
    part = ShapePart(function, out, states, of_a_run, known)
    part.find_symbols()
    part.find_given(function)
    for found in part.extents:
        part.check_input(found)
    part.check_states()
    for assumption in function.assumptions:
        part.check_assumption(assumption)
    part.check_extents(function.block, out.emit)
    return part


@dataclass(frozen=True)
class _Extent:
    """A symbolic dim of an input, and the register that holds its extent."""

    value: Value
    axis: int
    dim: DimExpr
    register: int

    def __str__(self) -> str:
        return f'axis {self.axis} of input "{self.value.name}"'


@dataclass(frozen=True)
class _Held:
    """The length of growing state variables, and the register that holds it."""

    length: Length
    register: int

    def __str__(self) -> str:
        return f'the length of state "{self.length.names[0]}"'


@dataclass(frozen=True)
class _Given:
    """A data-dependent extent, and the register that holds it."""

    op: Op
    register: int

    def __str__(self) -> str:
        return f"computed by node {self.op.origin!r}" if self.op.origin else "computed by the model"


@dataclass
class _Message:
    """The text of a message with placeholders for values, in the format of the runtime's
    `fail_check`."""

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


class ShapePart:
    """The shape part of a program under construction.

    Attributes:
        messages: of the checks, and their numbers.
    """

    def __init__(
        self,
        function: Function,
        out: Emitter,
        states: States,
        of_a_run: Set[str],
        known: Mapping[str, Interval],
    ) -> None:
        self.out = out
        self.states = states
        self.known = known
        self.messages: dict[str, int] = {}
        self.extents: list[_Extent] = []
        self.lengths: list[_Held] = []
        self.origins: dict[str, _Extent | _Held | _Given] = {}  # where a symbol's value comes from
        self.checked: set[Dim] = set()  # not to be negative
        self.limited: set[tuple[Dim, int]] = set()  # checked to be at most
        self.met: set[Dim] = set()  # needs whose room is checked in every run
        # the function's assumptions are checked where their symbols are given
        differences = [dims.add(x.left, dims.multiply(x.right, -1)) for x in function.assumptions]
        facts = [dims.multiply(d, sign) for d in differences for sign in (1, -1)]
        self.assumed = Assumptions(facts, known)
        for number, length in enumerate(states.lengths):
            name = str(length.symbol)
            if name in of_a_run:
                out.given.setdefault(name, Header())
            self.lengths.append(_Held(length, out.register()))
            out.emit_for(length.symbol)("STATE", self.lengths[-1].register, number)
        for number, value in enumerate(function.inputs):
            for axis, dim in enumerate(value.type.dims):
                if isinstance(dim, DimExpr):
                    self.extents.append(_Extent(value, axis, dim, out.register()))
                    out.emit("INPUT_DIM", self.extents[-1].register, number, axis)

    def find_symbols(self) -> None:
        """Finds a register for each symbol. Its value is an extent itself, or is solved from one
        whose other symbols are known.
        """
        for held in self.lengths:
            self._define(str(held.length.symbol), held, held.register)
        for found in self.extents:
            symbol = linear(found.dim)
            if symbol is not None and symbol[1:] == (1, 0):
                self._define(symbol[0], found, found.register)
        # what an extent leaves is known before a run where it can be
        self._solve_all([f for f in self.extents if self.out.header_of(f.dim) is None])
        self._solve_all(self.extents)
        for found in self.extents:
            for name in self._unknown(found.dim):
                raise CompileError(
                    f"input {found.value.name!r}: dim {found.axis} is {found.dim}, which does not "
                    f"say what {name} is; bind it with --input-shape"
                )

    def _solve_all(self, pending: list[_Extent]) -> None:
        while pending:
            left = [found for found in pending if not self._solve(found)]
            if len(left) == len(pending):
                break
            pending = left

    def find_given(self, function: Function) -> None:
        """Creates registers and headers for data-dependent symbols, which the execute part
        defines."""
        for name, op in extents_of(function).items():
            register = self.out.register()
            self.out.given[name] = Header()
            self._define(name, _Given(op, register), register)

    def give(self, op: Op, loaded: int, code: ExecutePart) -> None:
        """Emits the definition and the check of the symbol of an `extent` op, from its loaded
        value."""
        dim, zero = op.dim("dim"), self.out.constant(0)
        where = op.origin or op.name
        if isinstance(dim, int):
            message = _Message().add(f"{where}: an extent that it computes is ").value(loaded)
            is_right = self.out.binary("EQ", loaded, self.out.constant(dim), code.emit)
            self._check(is_right, message.add(f", expected {dim}"), code.emit)
            return
        register = self.out.dim(dim)
        code.emit("MOVE", register, loaded)
        message = _Message().add(f"{where}: an extent that it computes is ").value(register)
        is_right = self.out.binary("LE", zero, register, code.emit)
        self._check(is_right, message.add(", expected 0 or more"), code.emit)
        code.header(self.out.given[str(dim)])

    def _define(self, name: str, origin: _Extent | _Held | _Given, register: int) -> None:
        if name not in self.origins:
            self.out.known[Symbol(name)] = register
            self.origins[name] = origin

    def _unknown(self, dim: Dim) -> list[str]:
        return sorted(dims.symbols(dim) - self.origins.keys())

    def _solve(self, found: _Extent) -> bool:
        """Defines the one unknown symbol of an extent's dim. Returns whether all its symbols are
        known then."""
        if not self._unknown(found.dim):
            return True
        solved = solution(found.dim, self.origins)
        if solved is None:
            return False
        name, factor, rest = solved
        out, part = self.out, found.register
        if rest != 0:
            part = out.binary("SUB", part, out.dim(rest))
        if factor != 1:
            part = out.binary("FLOORDIV", part, out.constant(factor))
        self._define(name, found, part)
        return True

    def check_input(self, found: _Extent) -> None:
        """Emits the check that an input's extent equals its declared dim."""
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
        emit = out.emit_for(found.dim)
        self._check(out.binary("EQ", found.register, out.dim(found.dim), emit), message, emit)
        for solved in [n for n, origin in self.origins.items() if origin is found]:
            if symbol is None:  # its other symbols may leave less than nothing
                is_there = out.binary("LE", out.constant(0), out.dim(dims.symbol(solved)))
                self._check(is_there, message)

    def check_states(self) -> None:
        """Emits two checks: states of one symbolic length have equal lengths, and the rows that a
        run appends fit.
        """
        out = self.out
        for held in self.lengths:
            name = str(held.length.symbol)
            first = self.origins[name]
            if first is not held:
                emit = out.emit_for(held.length.symbol)
                is_same = out.binary("EQ", held.register, out.dim(held.length.symbol), emit)
                message = _Message().add(f'state "{held.length.names[0]}" has length ')
                message.value(held.register).add(f", expected {name} = ")
                message.value(out.dim(held.length.symbol)).add(f", {first}; reset the program")
                self._check(is_same, message, emit)
        for kept in self.states.kept:
            if kept.variable.length is not None:
                self._check_capacity(kept.variable)

    def _check_capacity(self, variable: StateVariable) -> None:
        out, following = self.out, variable.next_length
        limit = following, variable.capacity
        if following is None or limit in self.limited:
            return
        self.limited.add((following, variable.capacity))
        before, _, after = variable.full_message("{}").rpartition("{}")
        message = _Message().add(before).value(out.dim(following)).add(after)
        emit, capacity = out.emit_for(following), out.constant(variable.capacity)
        self._check(out.binary("LE", out.dim(following), capacity, emit), message, emit)
        if emit != out.emit and variable.length is not None:
            self._check_added(variable, dims.add(following, dims.multiply(variable.length, -1)))

    def _check_added(self, variable: StateVariable, added: Dim) -> None:
        """Emits the check that the rows which one run appends fit an empty state, whose memory
        `prepare` reserves.
        """
        out = self.out
        _, most = dims.bounds(added, self.known)
        if out.header_of(added) is not None or (most is not None and most <= variable.capacity):
            return
        message = _Message().add(
            f'state "{variable.name}" holds at most {variable.capacity} along '
        )
        message.add(f"dim {variable.axis}, and one run adds ").value(out.dim(added))
        self._check(out.binary("LE", out.dim(added), out.constant(variable.capacity)), message)

    def check_assumption(self, assumption: Assumption) -> None:
        """Emits the check of an assumption that a shape rule or a bound made."""
        out, left, right = self.out, assumption.left, assumption.right
        bound, most, emit = bound_of(left, right), limit_of(left, right), out.emit_for(left, right)
        pair = one_or_which(left, right)
        # each operand may be 1 then, and its extent says what the result is
        is_known = pair is not None and dims.symbols(pair[0]) <= dims.symbols(pair[1])
        message = _Message().add(f"{assumption.reason}: ")
        if most is not None and isinstance(most[0], int):
            message.add(f"{most[1]} is ").value(out.dim(most[1]))
            message.add(f", expected at least {most[0]}")
        elif bound is not None:
            dim, (low, high) = bound
            if linear(dim) and any(found.dim == dim for found in self.extents):
                return  # the declaration of the input's dim says it
            if high is not None and (dim, high) in self.limited:
                return
            message.add(f"{dim} is ").value(out.dim(dim))
            message.add(f", expected at {f'most {high}' if low is None else f'least {low}'}")
        elif most is not None:
            message.add(f"{most[0]} is ").value(out.dim(most[0]))
            message.add(f", expected at most {most[1]} = ").value(out.dim(most[1]))
        elif (other := never_one(left, right)) is not None:
            message.add(f"{other} is ").value(out.dim(other)).add(", expected another number")
        elif pair is not None:
            message.add(f"{pair[0]} is ").value(out.dim(pair[0])).add(", expected 1 or ")
            message.add(f"{pair[1]} = " if dims.symbols(pair[1]) and not is_known else "").value(
                out.dim(pair[1])
            )
        elif isinstance(left, int) or isinstance(right, int):
            number, dim = (left, right) if isinstance(left, int) else (right, left)
            message.add(f"{dim} is ").value(out.dim(dim)).add(f", expected {number}")
        else:
            message.add(f"{left} is ").value(out.dim(left))
            message.add(f", {right} is ").value(out.dim(right)).add(", they must be equal")
        self._where(message, [left, right])
        if assumption.reason.endswith(BROADCAST) and not is_known:
            message.add("; for inputs in which one is 1, give their dims when compiling")
        self._check(out.binary("EQ", out.dim(left), out.dim(right), emit), message, emit)

    def check_extents(self, block: Block, emit: Emit) -> None:
        """Emits the checks that no extent of a block's results is negative, as `N - 3` would be for
        a short input.

        An inner block's are checked where it runs, by what `emit` is given: it may be there for
        inputs of other sizes.
        """
        checked = self.checked if isinstance(block.owner, Function) else set(self.checked)
        for op in block:
            for dim in {dim: None for value in op.results for dim in value.type.dims}:
                low, _ = dims.bounds(dim, self.known)
                if dim in checked or (low is not None and low >= 0):
                    continue
                checked.add(dim)
                register = self.out.dim(dim)
                origin = op.origin or op.name
                message = _Message().add(f"{origin}: there is nothing left of its input: {dim} is ")
                self._where(message.value(register), [dim])
                known = self.out.emit_for(dim)
                is_there = self.out.binary("LE", self.out.constant(0), register, known)
                self._check(is_there, message, known if self._is_known_in(block, dim) else emit)

    def _is_known_in(self, block: Block, dim: Dim) -> bool:
        """Whether a symbol of the dim is defined in the block itself, or the block is the
        function's."""
        found = [self.origins[name] for name in dims.symbols(dim)]
        return isinstance(block.owner, Function) or any(
            isinstance(given, _Given) and given.op.parent is block for given in found
        )

    def check_need(
        self, what: str, need: Need, given: Mapping[str, Dim], *, emit: Emit, is_always: bool
    ) -> None:
        """Emits a run-time check of an op's condition on extents, unless assumptions prove it.

        Args:
            what: the op, as the message names it.
            given: what the symbols of the need are.
            is_always: whether every run comes here, so that no later op asks again.
        """
        least, most = (dims.substitute(dim, given) for dim in (need.least, need.most))
        room = dims.add(most, dims.multiply(least, -1))
        if room in self.met or is_nonnegative(room, self.assumed):
            return
        if is_always:
            self.met.add(room)
        low, high = self.out.dim(least), self.out.dim(most)
        message = _Message().add(f"{what}: {need.what}, expected {least} <= {most}")
        self._where(message, [least, most])
        self._check(self.out.binary("LE", low, high, emit), message, emit)

    def check_iterations(self, what: str, iterations: Dim, most: int, emit: Emit) -> None:
        """Emits the check that no lane of `what` loops for so long that a GPU's driver would abort
        it.
        """
        _, high = dims.bounds(iterations, self.known)
        if (high is not None and high <= most) or (iterations, most) in self.limited:
            return
        if emit == self.out.emit:
            self.limited.add((iterations, most))
        register, known_at = self.out.dim(iterations), self.out.emit_for(iterations)
        message = _Message().add(f"{what}: a lane would go through ")
        message.value(register).add(f" iterations, and may through {most}")
        self._where(message, [iterations])
        unknown = " and ".join(sorted(dims.symbols(iterations)))
        message.add(f"; bound {unknown} and add a --target for the CPU, which then runs it")
        is_short = self.out.binary("LE", register, self.out.constant(most), known_at)
        self._check(is_short, message, emit)

    def check_less(self, register: int, most: int, what: tuple[str, str], emit: Emit) -> None:
        """Emits the check that a register is less than `most`; `what` is the message's text before
        and after the value.
        """
        before, after = what
        test = self.out.register()
        emit("LT", test, register, self.out.constant(most))
        self._check(test, _Message().add(before).value(register).add(after), emit)

    def _where(self, message: _Message, about: Sequence[Dim], but: _Extent | None = None) -> None:
        """Appends to a message the values of the symbols in dims, and where each value comes
        from."""
        names = sorted({name for dim in about for name in dims.symbols(dim)})
        first = True
        for name in names:
            if self.origins[name] is but or len(message.registers) == MOST_VALUES:
                continue
            message.add("; " if first else ", ").add(f"{name} is ")
            message.value(self.out.dim(dims.symbol(name))).add(f", {self.origins[name]}")
            first = False

    def _check(self, condition: int, message: _Message, emit: Emit | None = None) -> None:
        number = self.messages.setdefault(message.text, len(self.messages))
        (emit or self.out.emit)("CHECK", condition, number, *message.registers)
