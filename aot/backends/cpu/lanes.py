"""Values inside a vector loop: uniform over lanes, one per lane, or an index with a step per lane.

Owns the three shapes an expression's value takes while a VECTOR loop is widened, and arithmetic on
indices, which stays scalar as long as it can: vectors of 64-bit indices are slow everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.cpu import arithmetic
from aot.backends.cpu.assembler import Assembler, Type, Value, integer, iota
from aot.backends.cpu.traits import Traits
from aot.base.records import dataclass
from aot.ir.dims import Dim, DimExpr, FloorDiv, Symbol
from aot.ir.types import DType


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """An index that is `base + step * lane`; both are scalars."""

    base: Value
    step: Value


@dataclass(frozen=True, slots=True, eq=False)
class PerLane:
    """An index computed for each lane by itself."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """The address of an access: `pointer + lane * step` elements, or a pointer per lane; `places`
    are the lanes' offsets in elements from the first one's base, if known. `before` elements in
    front of the pointer, and all up to a whole step, are in bounds too.
    """

    pointer: Value
    step: Value | None = None
    pointers: tuple[Value, ...] = ()
    places: tuple[int, ...] = ()
    before: int | None = None

    @property
    def is_uniform(self) -> bool:
        return self.step is None and not self.pointers

    @property
    def is_unit(self) -> bool:
        return self.step is not None and self.step.number == 1


# A scalar Value is uniform, a vector Value has an element per lane (never of dtype INDEX).
Laned = Value | Affine | PerLane

_LIMIT = 1 << 28  # steps times lanes of a comparison in 32 bits stay below this


def is_uniform(value: Laned) -> bool:
    return isinstance(value, Value) and not value.type.lanes


class Lanes:
    """Arithmetic on laned values, for vectors of `count` lanes (0: outside vector loops)."""

    def __init__(self, asm: Assembler, traits: Traits) -> None:
        self.asm = asm
        self.traits = traits
        self.index = traits.index
        self.count = 0
        # Masks made here that are all true exactly where this scalar is.
        self.all_of: dict[Value, Value] = {}
        # Masks made here that hold in so many lanes from the first on.
        self.first_of: dict[Value, int] = {}
        self._constants: dict[int, Value] = {}

    def constant(self, value: int) -> Value:
        found = self._constants.get(value)
        if found is None:
            found = self._constants[value] = integer(value, self.index)
        return found

    def lane(self, value: Laned, lane: int) -> Value:
        """The scalar in one lane of a value."""
        if isinstance(value, PerLane):
            return value.values[lane]
        if isinstance(value, Affine):
            step = self.asm.op("mul", value.step, self.constant(lane))
            return self.asm.op("add", value.base, step)
        return self.asm.extract(value, lane) if value.type.lanes else value

    def vector(self, value: Laned) -> Value:
        """The value as a vector."""
        if isinstance(value, PerLane):
            return self.asm.gather(list(value.values))
        if isinstance(value, Affine):
            type_ = Type(self.index.element, self.count)
            steps = self.asm.op("mul", self.asm.splat(value.step, self.count), iota(type_))
            if value.step.number is not None:
                steps = iota(type_, value.step.number)
            return self.asm.op("add", self.asm.splat(value.base, self.count), steps)
        return self.asm.splat(value, self.count)

    def per_lane(self, fn: Callable[[int], Value]) -> PerLane:
        return PerLane(tuple(fn(i) for i in range(self.count)))

    # Indices.

    def index_binary(self, op: str, a: Laned, b: Laned, *, is_nonnegative: bool) -> Laned:
        """`a op b` on INDEX values."""
        if isinstance(a, Value) and isinstance(b, Value):
            return self._scalar(op, a, b, is_nonnegative)
        if op in ("add", "sub") and not isinstance(a, PerLane) and not isinstance(b, PerLane):
            x, y = self._affine(a), self._affine(b)
            step = self.asm.op(op, x.step, y.step)
            base = self.asm.op(op, x.base, y.base)
            return base if step.number == 0 else Affine(base, step)
        if op == "mul":
            for x_, y_ in ((a, b), (b, a)):
                if isinstance(x_, Affine) and isinstance(y_, Value):
                    step = self.asm.op("mul", x_.step, y_)
                    base = self.asm.op("mul", x_.base, y_)
                    return base if step.number == 0 else Affine(base, step)
        return self.per_lane(
            lambda i: self._scalar(op, self.lane(a, i), self.lane(b, i), is_nonnegative)
        )

    def _affine(self, a: Value | Affine) -> Affine:
        return a if isinstance(a, Affine) else Affine(a, self.constant(0))

    def _scalar(self, op: str, a: Value, b: Value, is_nonnegative: bool) -> Value:
        if op in ("add", "sub", "mul"):
            op_text = {"add": "add", "sub": "sub", "mul": "mul"}[op]
            return self.asm.op(op_text, a, b)
        return arithmetic.binary(
            self.asm, self.traits, op, a, b, DType.INDEX, is_nonnegative=is_nonnegative
        )

    def index_compare(self, op: str, a: Laned, b: Laned) -> Value:
        """`a op b` on INDEX values, as i1 or a vector of i1."""
        if isinstance(a, Value) and isinstance(b, Value):
            return arithmetic.compare(self.asm, self.traits, op, a, b, DType.INDEX)
        if not isinstance(a, PerLane) and not isinstance(b, PerLane):
            x, y = self._affine(a), self._affine(b)
            step = self.asm.op("sub", x.step, y.step)
            if step.number is not None and abs(step.number) * self.count < _LIMIT:
                return self._compare_steps(op, x.base, y.base, step.number)
        bits = [
            arithmetic.compare(
                self.asm, self.traits, op, self.lane(a, i), self.lane(b, i), DType.INDEX
            )
            for i in range(self.count)
        ]
        return self.asm.gather(bits)

    def _compare_steps(self, op: str, a: Value, b: Value, step: int) -> Value:
        """`a + step*lane op b`, computed as `step*lane op b - a` with the right side clamped to 32
        bits."""
        asm = self.asm
        if step == 0:
            return arithmetic.compare(asm, self.traits, op, a, b, DType.INDEX)
        distance = asm.op("sub", b, a)
        low, high = self.constant(-2 * _LIMIT), self.constant(2 * _LIMIT)
        clamped = self._scalar("min", self._scalar("max", distance, low, False), high, False)
        narrow = asm.cast("trunc", clamped, "i32")
        type_ = Type("i32", self.count)
        mask = arithmetic.compare(
            asm, self.traits, op, iota(type_, step), asm.splat(narrow, self.count), DType.I32
        )
        known = distance.number
        if op == "lt" and step == 1 and known is not None and 0 < known < self.count:
            self.first_of[mask] = known
        if op not in ("eq", "ne"):
            # The difference is linear in the lane, so all hold where the worst end holds.
            worst_is_last = (step > 0) == (op in ("lt", "le"))
            worst = self.constant(step * (self.count - 1) if worst_is_last else 0)
            self.all_of[mask] = arithmetic.compare(
                asm, self.traits, op, worst, distance, DType.INDEX
            )
        return mask

    # Masks.

    def mask_and(self, a: Laned | None, b: Laned | None) -> Value | None:
        """The conjunction of i1 values, uniform or not; None is true."""
        if a is None or b is None:
            other = b if a is None else a
            assert other is None or isinstance(other, Value)
            return other
        assert isinstance(a, Value) and isinstance(b, Value)
        if a.type == b.type:
            result = self.asm.op("and", a, b)
        else:
            result = self.asm.op(
                "and", self.asm.splat(a, self.count), self.asm.splat(b, self.count)
            )
        if result.type.lanes and result not in self.all_of:
            wholes = [x if not x.type.lanes else self.all_of.get(x) for x in (a, b)]
            if wholes[0] is not None and wholes[1] is not None:
                self.all_of[result] = self.asm.op("and", wholes[0], wholes[1])
        return result

    def bits(self, mask: Value) -> Value:
        """A vector of i1 as an integer, with lane 0 in the lowest bit."""
        return self.asm.bitcast_to(mask, Type(f"i{mask.type.lanes}"))

    def all(self, mask: Value) -> Value:
        """Whether every lane of a mask is set."""
        if not mask.type.lanes:
            return mask
        known = self.all_of.get(mask)
        if known is not None:
            return known
        if mask.number is not None:
            return integer(mask.number, Type("i1"))
        bits = self.bits(mask)
        return self.asm.icmp("eq", bits, integer(-1, bits.type))

    def any(self, mask: Value) -> Value:
        """Whether any lane of a mask is set."""
        if not mask.type.lanes:
            return mask
        if mask.number is not None:
            return integer(mask.number, Type("i1"))
        bits = self.bits(mask)
        return self.asm.icmp("ne", bits, integer(0, bits.type))


class DimEvaluator:
    """Computes the values of dims from INDEX parameters, once each, in the entry block."""

    def __init__(self, lanes: Lanes, symbol: Callable[[str], Value]) -> None:
        self.lanes = lanes
        self.symbol = symbol
        self.known: dict[Dim, Value] = {}

    def value(self, dim: Dim) -> Value:
        """The scalar that `dim` is."""
        if isinstance(dim, int):
            return self.lanes.constant(dim)
        if dim not in self.known:
            asm = self.lanes.asm
            here, asm.current = asm.current, asm.entry
            self.known[dim] = self._sum(dim)
            asm.current = here
        return self.known[dim]

    def _sum(self, dim: DimExpr) -> Value:
        asm = self.lanes.asm
        total = self.lanes.constant(dim.constant)
        for monomial, coefficient in dim.terms:
            product = self.lanes.constant(coefficient)
            for atom in monomial:
                product = asm.op("mul", self._atom(atom), product)
            total = asm.op("add", product, total)
        return total

    def _atom(self, atom: object) -> Value:
        if isinstance(atom, Symbol):
            return self.symbol(atom.name)
        if isinstance(atom, FloorDiv):
            return arithmetic.divide(
                self.lanes.asm,
                self.lanes.traits,
                "floordiv",
                self.value(atom.numerator),
                self.value(atom.denominator),
                is_signed=True,
            )
        values = [self.value(arg) for arg in atom.args]  # type: ignore[attr-defined]
        result = values[0]
        for value in values[1:]:
            op = "max" if atom.is_max else "min"  # type: ignore[attr-defined]
            picked = self.lanes.index_binary(op, result, value, is_nonnegative=False)
            assert isinstance(picked, Value)
            result = picked
        return result
