"""Converts a kernel's expressions to polynomials over the variables of a proof.

Owns the variables of loops, dims and values, and what a condition says of them. An integer is a
polynomial; what is none, as a value out of memory, is a variable with the interval of its type.
Equal expressions that read nothing that the kernel writes are one variable. Knows the walk's state
only as what is bound and which memory has been written since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import cached_property

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.dims import Dim, Interval, Symbol
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Param, Select, Size, Unary, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass, Kernel, Scratch
from aot.kernels.proof.conditions import NEGATED, NOTHING, Consequences, Facts, compared, range_of
from aot.kernels.proof.counts import Range
from aot.kernels.proof.extents import Extents
from aot.kernels.proof.facts import Choice
from aot.kernels.proof.inequalities import Inequalities
from aot.kernels.proof.polynomials import (
    Polynomial,
    combined,
    constant,
    known_value,
    long_division,
    product,
    scaled,
)

Memory = Buffer | Scratch

_GROWING = frozenset({"add", "sub", "mul", "shl"})


@dataclass(eq=False)
class Values:
    """The values of expressions at the current position of the walk over a kernel.

    Attributes:
        extents: the values of dims.
        index_bits: how wide an index is on the target.
        loaded: adds what is known of every value in a memory to a variable that was loaded.
        ranges: what all elements of scratch are between here.
    """

    kernel: Kernel
    space: Inequalities
    extents: Extents
    index_bits: int = 64
    loaded: Callable[[Memory, Polynomial], None] = lambda memory, value: None
    _vars: dict[Var, Polynomial] = field(default_factory=dict)
    _extents: dict[Var, Polynomial] = field(default_factory=dict)
    _lets: dict[Var, Expr] = field(default_factory=dict)
    _let_conditions: dict[tuple[Var, bool], Consequences] = field(default_factory=dict)
    _opaque: dict[object, Polynomial] = field(default_factory=dict)
    # of expressions that read nothing that the kernel writes, and of the others here and now
    _forms: dict[Expr, Polynomial] = field(default_factory=dict)
    _forms_here: dict[Expr, Polynomial] = field(default_factory=dict)
    _epoch: int = 0
    _conditions: dict[tuple[Expr, bool], Consequences] = field(default_factory=dict)
    _keys: dict[Expr, object] = field(default_factory=dict)
    _is_pure: dict[Expr, bool] = field(default_factory=dict)
    _versions: dict[Memory, int] = field(default_factory=dict)
    _forwarded: dict[Scratch, tuple[tuple[Var, ...], Expr]] = field(default_factory=dict)
    _tables: dict[Scratch, tuple[tuple[int, Expr], ...]] = field(default_factory=dict)
    _forwards: dict[Expr, Expr] = field(default_factory=dict)
    _pins: dict[tuple[Buffer, int], Buffer] = field(default_factory=dict)
    _held: dict[Memory, tuple[object, Polynomial]] = field(default_factory=dict)
    _most: dict[Memory, Polynomial] = field(default_factory=dict)
    ranges: dict[Scratch, Range] = field(default_factory=dict)
    _named: set[Var] = field(default_factory=set)

    @cached_property
    def _overlapped(self) -> frozenset[Buffer]:
        """The buffers that the kernel does not store to, but that may share memory with one it
        does.
        """
        written = [b for b in self.kernel.buffers if b.is_written]
        read = (b for b in self.kernel.buffers if not b.is_written and b.alignment == 1)
        return frozenset(b for b in read if any(_may_overlap(b, w) for w in written))

    # What the walk says

    def bind(self, var: Var, extent: Polynomial) -> Polynomial:
        """Binds a loop variable, in 0..extent-1, and returns its polynomial."""
        if var in self._lets or (var in self._vars and var in self._named):
            self._named.discard(var)
            self._extents.pop(var, None)
            self._unname(var)
        if var not in self._vars or self._extents[var] != extent:
            _, high = self.space.interval(extent)
            made = {}
            if high != 1:
                most = None if high is None else max(high - 1, 0)
                made = self.space.variable(var.name, 0, most)
            if var in self._vars:  # of a loop that stands in the kernel twice
                self._forget()
            self._vars[var], self._extents[var] = made, extent
        return self._vars[var]

    def let(self, var: Var, value: Expr) -> None:
        """Binds `var` to the current value of an expression."""
        self._unname(var)
        self._named.add(var)
        if self.is_pure(value):
            self._lets[var] = value
            return
        if value.dtype is DType.BOOL:
            for sign in (True, False):
                self._let_conditions[var, sign] = self.condition(value, sign)
        elif value.dtype.is_integer or value.dtype is DType.INDEX:
            self._vars[var] = self.form(value)
            return
        self.name(var)

    def name(self, var: Var) -> None:
        """Binds `var` to an unknown value of its type."""
        self._unname(var)
        self._named.add(var)
        ends = range_of(var.dtype)
        self._vars[var] = self.space.variable(var.name, *ends, data=(True, True))

    def _unname(self, var: Var) -> None:
        """Drops the value of a variable, as the same statement occurs in the kernel again."""
        signs = (var, True), (var, False)
        if var in self._lets or var in self._vars or signs[0] in self._let_conditions:
            self._lets.pop(var, None)
            self._vars.pop(var, None)
            for key in signs:
                self._let_conditions.pop(key, None)
            self._forget()

    def written(self, memory: Memory) -> None:
        """Records that elements of `memory` may change at this point."""
        for changed in (memory, *(self._overlapped if isinstance(memory, Buffer) else ())):
            self._versions[changed] = self._versions.get(changed, 0) + 1
        self._held.pop(memory, None)
        self._most.pop(memory, None)
        self.ranges.pop(memory, None)  # type: ignore[arg-type]
        self._forms_here.clear()

    def holds(self, memory: Memory, places: object, value: Polynomial) -> None:
        """Records the `value` just stored to a memory, after a call of `written`; `places` were its
        elements' values before."""
        self._held[memory] = places, value

    def held(self, memory: Memory) -> Polynomial | None:
        """The value last stored to `memory`; None if another store has followed."""
        found = self._held.get(memory)
        return None if found is None else found[1]

    def at_most(self, memory: Memory, most: Polynomial) -> None:
        """Records an upper bound of the values in `memory`, valid until it is written."""
        self._most[memory] = most

    def forward(
        self, scratch: Scratch, variables: tuple[Var, ...], value: Expr, named: set[Var]
    ) -> bool:
        """Forwards stores to loads: element `variables` of scratch is `value` until
        `forward_no_more`. False where the value depends on variables `named` within its own
        iteration."""
        inlined = self._pinned(self._inlined(value))
        if not named.isdisjoint(expr.free_vars(inlined)) or not self.is_pure(inlined):
            return False
        self._forwarded[scratch] = variables, inlined
        return True

    def _pinned(self, e: Expr) -> Expr:
        """`e` with the elements of buffers that others may overlap fixed to their current
        values."""

        def pin(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.source not in self._overlapped:
                return None
            key = x.source, self._versions.get(x.source, 0)
            source = self._pins.setdefault(key, replace(x.source))
            indices = tuple(expr.transform(i, pin) for i in x.indices)
            guard, other = (
                None if y is None else expr.transform(y, pin) for y in (x.guard, x.other)
            )
            return Load(source, indices, x.dtype, guard, other)

        return expr.transform(e, pin)

    def tabulate(self, scratch: Scratch, elements: tuple[tuple[int, Expr], ...]) -> None:
        """Records the elements of a table of conditions, valid until `forward_no_more`."""
        if all(self.is_pure(value) for _, value in elements):
            self._tables[scratch] = elements

    def forward_no_more(self, scratch: Scratch) -> None:
        self._forwarded.pop(scratch, None)
        self._tables.pop(scratch, None)
        self._forget()

    def _forget(self) -> None:
        for memo in (self._forms, self._forms_here, self._conditions, self._keys, self._is_pure):
            memo.clear()
        self._forwards.clear()

    def dim(self, dim: Dim) -> Polynomial:
        """The polynomial of a dim."""
        return self.extents.form(dim)

    # Integers

    def form(self, e: Expr) -> Polynomial:
        """The polynomial of an integer expression."""
        found = self._forms.get(e)
        if found is None:
            self._renew()
            found = self._forms_here.get(e)
            if found is not None:
                self.space.local_uses += 1
        if found is None:
            uses = self.space.local_uses
            found = self._form(e)
            if known_value(found) is not None or self._may_wrap(e, found):
                found = self._wrapped(e, found)
            if uses == self.space.local_uses:
                self._forms[e] = found
            else:
                self._forms_here[e] = found
                self.space.local_uses += 1
        return found

    def _renew(self) -> None:
        """Drops cached values derived from facts that may no longer hold."""
        if self._epoch != self.space.epoch:
            self._epoch = self.space.epoch
            self._forms_here.clear()

    def _form(self, e: Expr) -> Polynomial:
        match e:
            case Const():
                return constant(int(e.value))
            case Size():
                return self.dim(e.dim)
            case Var():
                return self.form(self._lets[e]) if e in self._lets else self._vars[e]
            case Param():
                is_dim = e.dtype is DType.INDEX
                return self.extents.atom(Symbol(e.name)) if is_dim else self._unknown(e)
            case Load():
                return self._load(e)
            case Binary():
                return self._binary(e)
            case Unary(op="neg"):
                return scaled(self.form(e.a), -1)
            case Unary(op="abs"):
                a = self.form(e.a)
                return self.space.extremum([a, scaled(a, -1), {}], is_max=True)
            case Select():
                return self._chosen(e, e.condition, self.form(e.a), self.form(e.b))
            case Cast():
                if e.a.dtype is DType.BOOL:
                    return self._chosen(e, e.a, constant(1), {})
                if e.a.dtype.is_integer or e.a.dtype is DType.INDEX:
                    return self.form(e.a)  # it wraps where what it becomes holds less
        return self._unknown(e)

    def _binary(self, e: Binary) -> Polynomial:
        if e.dtype is DType.BOOL:
            return self._unknown(e)
        a, b = self.form(e.a), self.form(e.b)
        match e.op:
            case "add":
                return combined(a, b)
            case "sub":
                return combined(a, b, -1)
            case "mul":
                return product(a, b)
            case "min" | "max":
                return self.space.extremum([a, b], is_max=e.op == "max")
            case "floordiv" | "floormod":
                found = self._flattened(a, b) or self.space.quotient(a, b)
                if found is not None:
                    return found[e.op == "floormod"]
            case "div":
                low, _ = self.space.interval(a)
                found = self.space.quotient(a, b) if low is not None and low >= 0 else None
                if found is not None:
                    return found[0]
            case "shl" | "shr" | "and":
                return self._bits(e, a, known_value(b))
        return self._unknown(e)

    def _flattened(self, a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """(quotient, remainder) of address `a` by a product of extents `b`; None where the terms of
        a without factor b are not known to be an address below b."""
        if not any(len(monomial) > 1 for monomial in b):
            return None
        whole, rest = long_division(a, b)
        if not self.space.proves_inside(rest, b, 1):
            return None
        self.space.local_uses += 1
        return whole, rest

    def _bits(self, e: Binary, a: Polynomial, by: int | None) -> Polynomial:
        if by is not None and by >= 0:
            if e.op == "shl":
                return scaled(a, 1 << by)
            divisor = 1 << by if e.op == "shr" else by + 1
            if divisor & (divisor - 1) == 0:
                found = self.space.quotient(a, constant(divisor))
                if found is not None:
                    return found[e.op == "and"]
        return self._unknown(e)

    def _may_wrap(self, e: Expr, p: Polynomial) -> bool:
        """Whether the result `p` of `e` may wrap, by its operands' ranges. Loop counts and dims are
        assumed to be no larger than memories are."""
        if isinstance(e, (Load, Var)):
            return False  # it was when it was stored, or named
        if isinstance(e, Cast) and e.a.dtype is DType.INDEX and e.dtype.is_signed:
            return e.dtype is not DType.INDEX and e.dtype.bits < self.index_bits
        if e.dtype is not DType.INDEX or isinstance(e, Cast):
            return True
        is_growing = isinstance(e, Unary) or (isinstance(e, Binary) and e.op in _GROWING)
        return is_growing and any(self.space.data(p))

    def _range(self, dtype: DType) -> Interval:
        if dtype is DType.INDEX:
            half = 1 << self.index_bits - 1
            return -half, half - 1
        return range_of(dtype)

    def _chosen(self, e: Expr, condition: Expr, a: Polynomial, b: Polynomial) -> Polynomial:
        if a == b:
            return a
        if not self.is_pure(condition):
            self.space.local_uses += 1
        then, otherwise = self.condition(condition, True), self.condition(condition, False)
        (low, high), (least, most) = self.space.interval(a), self.space.interval(b)
        from_a, from_b = self.space.data(a), self.space.data(b)
        return self.space.variable(
            "select",
            None if low is None or least is None else min(low, least),
            None if high is None or most is None else max(high, most),
            Choice(((a, then.facts), (b, otherwise.facts))),
            data=(from_a[0] or from_b[0], from_a[1] or from_b[1]),
        )

    def _wrapped(self, e: Expr, p: Polynomial) -> Polynomial:
        """`p` wrapped to the dtype of `e`. If its range is too large for one wrap: a variable that
        equals p while p is in the dtype's range, and otherwise lies closer to the range's other
        end."""
        low, high = self._range(e.dtype)
        if low is None or high is None:
            return p
        number = known_value(p)
        if number is not None:
            return constant((number - low) % (high - low + 1) + low)
        least, most = self.space.interval(p)
        if least is not None and most is not None and low <= least and most <= high:
            return p
        key = "wrapped", e.dtype, frozenset(p.items())
        if key not in self._opaque:
            made = self.space.variable("wrapped", low, high, data=(True, True))
            self._opaque[key] = made
            self.space.of(made).unwrapped = p
            self.space.of(made).is_index = e.dtype is DType.INDEX
            if least is not None and least >= low:
                self.space.define(made, combined(p, made, -1))
            if most is not None and most <= high:
                self.space.define(made, combined(made, p, -1))
        return self._opaque[key]

    # Values out of memory, and what else is none of these

    def _load(self, e: Load) -> Polynomial:
        forwarded = self._forward_of(e)
        if forwarded is not None:
            return self.form(forwarded)
        is_written = not self._is_constant(e.source)
        if is_written:
            self.space.local_uses += 1  # what is stored next makes it another value
        made = self._unknown(e)
        if is_written and e.guard is None and e.dtype is e.source.dtype:
            held = self._held.get(e.source)
            if held is not None and held[0] == self.places(e.indices):
                return held[1]
            if e.source in self._overlapped:
                return made
            if e.source in self._most:
                self.space.bound(made, combined(self._most[e.source], made, -1))
            if e.source in self.ranges:
                low, high = self.ranges[e.source]
                self.space.bound(made, combined(made, constant(-low)))
                self.space.bound(made, combined(constant(high), made, -1))
            self.loaded(e.source, made)
        return made

    def places(self, indices: tuple[Expr, ...]) -> object:
        return tuple(frozenset(self.form(i).items()) for i in indices)

    def _forward_of(self, e: Load) -> Expr | None:
        if e.source not in self._forwarded or e.guard is not None:
            return None
        if e not in self._forwards:
            variables, value = self._forwarded[e.source]
            self._forwards[e] = expr.substitute(value, dict(zip(variables, e.indices, strict=True)))
        return self._forwards[e]

    def _inlined(self, e: Expr) -> Expr:
        """`e` with named values expanded."""
        memo: dict[Expr, Expr] = {}

        def inline(x: Expr) -> Expr | None:
            return self._inlined(self._lets[x]) if isinstance(x, Var) and x in self._lets else None

        return expr.transform(e, inline, memo)

    def _unknown(self, e: Expr) -> Polynomial:
        """A variable of which only the range of its dtype is known."""
        return self._variable(self._key(e), *self._range(e.dtype), is_data=True)

    def _variable(
        self,
        key: object,
        low: int | None = None,
        high: int | None = None,
        *,
        is_data: bool = False,
    ) -> Polynomial:
        if key not in self._opaque:
            ends = is_data, is_data
            self._opaque[key] = self.space.variable("value", low, high, data=ends)
        return self._opaque[key]

    def _key(self, e: Expr) -> object:
        """A key that is equal for expressions with equal values at this point."""
        found = self._keys.get(e)
        if found is None:
            uses = self.space.local_uses
            found = self._made_key(e)
            if uses == self.space.local_uses:
                self._keys[e] = found
        return found

    def _made_key(self, e: Expr) -> object:
        if isinstance(e, Var) and e in self._lets:
            return self._key(self._lets[e])
        if isinstance(e, Load):
            forwarded = self._forward_of(e)
            if forwarded is not None:
                return self._key(forwarded)
            if not self._is_constant(e.source):
                self.space.local_uses += 1
            places = self.places(e.indices)
            rest = tuple(self._key(x) for x in (e.guard, e.other) if x is not None)
            return "load", e.source, self._versions.get(e.source, 0), e.dtype, places, rest
        if e.dtype is DType.INDEX and isinstance(e, (Binary, Const, Size)):
            is_plain = isinstance(e, (Const, Size)) or e.op in ("add", "sub", "mul")
            if is_plain:
                return frozenset(self.form(e).items())
        parts: list[object] = [type(e).__name__, e.dtype]
        if isinstance(e, Const):
            return "const", e.dtype, repr(e.value)
        if isinstance(e, (Unary, Binary)):
            parts.append(e.op)
        children = expr.children(e)
        if not children:
            return e
        if not isinstance(e, (Unary, Binary, Cast, Select)):
            parts.append(e)  # by identity
        return (*parts, *map(self._key, children))

    def is_pure(self, e: Expr) -> bool:
        """Whether `e` reads nothing that the kernel writes, except forwarded elements."""
        found = self._is_pure.get(e)
        if found is None:
            if isinstance(e, Var):
                found = e in self._lets or e in self._extents
                if not found:
                    return e in self._vars  # names a value as it was
            elif isinstance(e, Load) and not self._is_constant(e.source):
                forwarded = self._forward_of(e)
                found = forwarded is not None and self.is_pure(forwarded)
            else:
                found = all(map(self.is_pure, expr.children(e)))
            self._is_pure[e] = found
        return found

    def _is_constant(self, memory: Memory) -> bool:
        is_read = isinstance(memory, Buffer) and not memory.is_written
        return is_read and memory not in self._overlapped

    # Conditions

    def condition(self, e: Expr, sign: bool) -> Consequences:
        """The facts that follow if `e` is true, or false as `sign` says."""
        found = self._conditions.get((e, sign))
        if found is None:
            uses = self.space.local_uses
            found = self._condition(e, sign)
            if uses == self.space.local_uses:
                self._conditions[e, sign] = found
        return found

    def _condition(self, e: Expr, sign: bool) -> Consequences:
        match e:
            case Var():
                if e in self._lets:
                    return self.condition(self._lets[e], sign)
                return self._let_conditions.get((e, sign), NOTHING)
            case Load():
                if e.source in self._tables and e.guard is None:
                    return self._of_table(e.source, self.form(e.indices[0]), sign)
                forwarded = self._forward_of(e)
                return NOTHING if forwarded is None else self.condition(forwarded, sign)
            case Unary(op="not"):
                return self.condition(e.a, not sign)
            case Const():
                return NOTHING if e.value == sign else Consequences((constant(-1),))
            case Binary(op="and" | "or") if e.dtype is DType.BOOL:
                a, b = self.condition(e.a, sign), self.condition(e.b, sign)
                if (e.op == "and") == sign:
                    return a & b
                return Consequences((), ((a.facts, b.facts),)) if a.facts and b.facts else NOTHING
            case Binary() if e.op in expr.COMPARE_OPS:
                return self._comparison(e.op if sign else NEGATED[e.op], e.a, e.b)
        return NOTHING

    def _of_table(self, table: Scratch, index: Polynomial, sign: bool) -> Consequences:
        """The facts that follow if a table's element is true, or false: the disjunction over all
        elements. An element that was not stored implies nothing.
        """
        values = dict(self._tables[table])
        ways: list[tuple[int, int, Facts]] = []  # first and last index, and what holds there
        for number in range(table.shape[0]):
            facts = self.condition(values[number], sign).facts if number in values else ()
            if ways and ways[-1][1] == number - 1 and ways[-1][2] == facts:
                ways[-1] = ways[-1][0], number, facts
            else:
                ways.append((number, number, facts))
        return Consequences(
            (),
            (
                tuple(
                    (combined(index, constant(-low)), combined(constant(high), index, -1), *facts)
                    for low, high, facts in ways
                ),
            ),
        )

    def _comparison(self, op: str, a: Expr, b: Expr) -> Consequences:
        if not (a.dtype.is_integer or a.dtype is DType.INDEX):
            return NOTHING
        if isinstance(a, Cast) and isinstance(b, Cast) and not a.dtype.is_signed:
            low = self.space.interval(self.form(b.a))[0] if b.a.dtype is DType.INDEX else None
            if (
                a.a.dtype is DType.INDEX
                and a.dtype.bits >= self.index_bits
                and low is not None
                and low >= 0
            ):
                # what is negative is more than any number without its sign
                inside, apart = self.form(a.a), combined(self.form(a.a), self.form(b.a), -1)
                if op in ("lt", "le"):
                    return Consequences((inside,)) & compared(op, apart)
                below = (combined(constant(-1), inside, -1),)
                if op in ("gt", "ge"):
                    return Consequences((), ((below, compared(op, apart).facts),))
                return NOTHING
        return compared(op, combined(self.form(a), self.form(b), -1))


def _may_overlap(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers may share memory: one of them is written, and both may lie in the same
    allocation.
    """
    free = (BufferClass.ARENA, BufferClass.OUTPUTS)
    if a.class_param is not None or b.class_param is not None:
        return a.class_param is not None or a.binding in free
    return a.binding is b.binding and a.binding in free
