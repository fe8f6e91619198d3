"""Proves that parallel iterations, and the lanes of a workgroup, do not conflict.

Two accesses of one memory, of which one stores, must not meet in an element: in different
iterations of a loop whose iterations run in any order, or in different lanes with no barrier
between. Owns which pairs of accesses that is asked of; the prover of inequalities shows that
their indices differ. Takes for granted that buffers do not overlap, but for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aot.base.records import dataclass
from aot.ir.dims import Interval
from aot.kernels.ir.nodes import Barrier, Buffer, For, If, Kernel, LoopKind, Scratch, Space, Stmt
from aot.kernels.proof.accesses import (
    Access,
    Copy,
    Frame,
    alternatives,
    common_frames,
    loops_among,
)
from aot.kernels.proof.conclusions import Answer, Question
from aot.kernels.proof.polynomials import (
    Polynomial,
    combined,
    constant,
    known_value,
    long_division,
    product,
    scaled,
    substituted,
    variables_of,
)
from aot.kernels.proof.values import Memory
from aot.kernels.proof.witnesses import Unknowns, chain_of, plain

INDEPENDENT = (LoopKind.WORKGROUP, LoopKind.PARALLEL, LoopKind.VECTOR)
ORDERED = (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.WORKGROUP)
MOST_UNFOLDED = 8  # variables, to their quotients and remainders
MOST_PAIRS = 400  # of one loop, or of all lanes


def check_races(
    kernel: Kernel,
    known: Mapping[str, Interval] | None = None,
    index_bits: int = 64,
    *,
    accesses: Sequence[Access] | None = None,
) -> Answer:
    """Proves that no two parallel iterations or lanes of a kernel access an element that one of
    them writes.

    Args:
        known: bounds of symbols; others are not negative.
        index_bits: how wide an index is on the target.
    """
    return _Check(kernel, known, index_bits, accesses).run()


def _meeting(memory: Memory, what: str) -> str:
    return f"{memory.name}: {what} may meet in an element"


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two accesses that may run concurrently.

    Attributes:
        shared: how many loops are around both, of which they are in the same iteration.
        order: where they differ in a loop's number, its depth in the first and in the second, and
            whether they are in neighbouring iterations.
    """

    first: Access
    second: Access
    shared: int
    order: tuple[int, bool] | None = None


@dataclass(frozen=True, eq=False)
class _Digit:
    """One digit of the index in two accesses, and the number of elements each accesses from
    there."""

    first: Polynomial
    second: Polynomial
    mine: int
    its: int

    @property
    def apart(self) -> Polynomial:
        return combined(self.second, self.first, -1)


class _Check(Question):
    def run(self) -> Answer:
        for depth, frame, inside in self.independent_loops():
            for memory, group in self.groups(inside):
                if not self.is_excluded(frame, memory):
                    apart = any(self.are_apart(depth, frame, g) for g in written(group))
                    assert frame.loop is not None
                    what = f"iterations of {frame.loop.kind.value} loop"
                    self.say(apart, _meeting(memory, what))
        if max(self.kernel.workgroup_size) > 1:
            for memory, group in self.groups(self.accesses):
                if isinstance(memory, Buffer) or memory.space is Space.WORKGROUP:
                    apart = any(self.lanes_are_apart(memory, g) for g in written(group))
                    self.say(apart, _meeting(memory, "lanes"))
        return self.found

    @staticmethod
    def is_excluded(frame: Frame, memory: Memory) -> bool:
        """Whether each iteration has its own copy of a memory, as with scratch, except for lanes of
        a vector.

        A PARALLEL iteration reads only what it has stored itself, as `definedness.py` proves."""
        assert frame.loop is not None
        return isinstance(memory, Scratch) and frame.loop.kind is not LoopKind.VECTOR

    def independent_loops(self) -> Iterator[tuple[int, Frame, list[Access]]]:
        """(depth, loop, accesses) of each loop whose iterations may run in any order."""
        found: dict[tuple[tuple[int, bool], ...], tuple[int, Frame, list[Access]]] = {}
        for access in self.accesses:
            depth = 0
            for at, frame in enumerate(access.path):
                if frame.var is None:
                    continue
                if frame.loop is not None and frame.loop.kind in INDEPENDENT:
                    where = tuple(f.key for f in access.path[: at + 1])
                    found.setdefault(where, (depth, frame, []))[2].append(access)
                depth += 1
        yield from found.values()

    def groups(self, accesses: Sequence[Access]) -> list[tuple[Memory, list[Access]]]:
        """(memory, accesses) for each memory that the kernel stores to, without duplicate
        accesses."""
        found: dict[Memory, dict[object, Access]] = {}
        written = {a.memory for a in accesses if a.is_write}
        for access in accesses:
            if access.memory in written:
                copy = self.scene.copy(access)
                places = tuple(frozenset(self.values.form(i).items()) for i in copy.indices)
                # no barrier stands between accesses of one lane
                is_lane = any(access.lane(axis) is not None for axis in range(3))
                at = None if is_lane else access.path[-1].at
                where = access.where, at, access.is_write
                key = where, places, access.parts, access.conditions
                found.setdefault(access.memory, {}).setdefault(key, access)
        return [(memory, list(group.values())) for memory, group in found.items()]

    # Loops

    def are_apart(self, depth: int, frame: Frame, group: list[Access]) -> bool:
        """Whether no two iterations of a loop touch an element that one of them stores."""
        assert frame.loop is not None
        if frame.loop.extent in (0, 1) or self.are_digits(depth, group):
            return True
        pairs = 0
        for at, first in enumerate(group):
            for second in group[at:]:
                if not (first.is_write or second.is_write):
                    continue
                pairs += 1
                if pairs > MOST_PAIRS or not self.differ(depth, first, second):
                    return False
        return True

    def are_digits(self, depth: int, group: Sequence[Access]) -> bool:
        """Whether the loop index is a digit of the same array index in all accesses, by their
        ranges, so that iterations touch different elements."""
        for dim in range(len(group[0].memory.shape)):
            strides: set[int] = set()
            lows: list[int] = []
            highs: list[int] = []
            for access in group:
                copy = self.scene.copy(access)
                index = plain(self.space, self.values.form(copy.indices[dim]))
                p = self.values.form(copy.variables[depth])
                if not p:
                    break
                ((own,),) = p
                rest = {m: c for m, c in index.items() if own not in m}
                unknowns = Unknowns(self.space, {own: {}})
                low, high = self.space.interval(rest)
                is_linear = len(index) - len(rest) == 1 and (own,) in index
                is_mixed = any(map(unknowns.depends, variables_of(rest)))
                if not is_linear or is_mixed or low is None or high is None:
                    break
                is_last = dim == len(copy.indices) - 1
                strides.add(index[own,])
                lows.append(low)
                highs.append(high + (access.parts - 1 if is_last else 0))
            else:
                if len(strides) == 1 and max(highs) - min(lows) < abs(strides.pop()):
                    return True
        return False

    def differ(self, depth: int, first: Access, second: Access) -> bool:
        """Whether two accesses always touch different elements in different iterations of a
        loop."""
        orders = (True,) if first is second else (True, False)
        for is_before in orders:
            with self.conclusions.scope():
                a = self.scene.copy(first, depth, "first")
                b = self.scene.copy(second, depth, "second")
                left = self.values.form(a.variables[depth])
                right = self.values.form(b.variables[depth])
                less, more = (left, right) if is_before else (right, left)
                self.space.assume(combined(combined(more, less, -1), constant(-1)))
                if self.is_met(a, b, combined(less, more, -1)):
                    return False
        return True

    def is_met(self, a: Copy, b: Copy, order: Polynomial | None) -> bool:
        """Whether two accesses may touch the same element, under the current assumptions.

        Args:
            order: what is assumed to be negative.
        """
        if not self.space.begin():
            return True
        if not self.conclusions.enter(a) or not self.conclusions.enter(b):
            return False
        return not any(self.are_unequal(system, order) for system in self.systems(a, b))

    def systems(self, a: Copy, b: Copy) -> Iterator[list[_Digit]]:
        """Ways to write two accesses' indices as digits, such that the elements are equal only if
        all digits are."""
        raw = [
            tuple(map(self.values.form, pair)) for pair in zip(a.indices, b.indices, strict=True)
        ]
        flat = [tuple(plain(self.space, p) for p in pair) for pair in raw]
        parts = [(1, 1)] * len(raw)
        if parts:
            parts[-1] = a.access.parts, b.access.parts
        yield [_Digit(x, y, *n) for (x, y), n in zip(flat, parts, strict=True)]
        for written in (raw, flat) if raw != flat else (flat,):
            digits: list[_Digit] = []
            for (x, y), n in zip(written, parts, strict=True):
                digits += self.split(x, y, *n)
            if len(digits) > len(raw):
                yield digits

    def split(self, x: Polynomial, y: Polynomial, mine: int, its: int) -> list[_Digit]:
        """Two accesses' index along one dim, as mixed-radix digits of their strides; all digits but
        the leading one are known to be within their bases."""
        strides = {
            frozenset({tuple(sorted(m[:-1])): abs(c)}.items())
            for p in (x, y)
            for m, c in p.items()
            if m
        }
        found: list[_Digit] = []
        for stride in chain_of(map(dict, strides)):
            if stride == constant(1):
                break
            (left, p), (right, q) = _divided(x, stride), _divided(y, stride)
            if not left and not right:
                continue
            inside = (
                (p, combined(combined(stride, constant(-mine)), p, -1)),
                (
                    q,
                    combined(combined(stride, constant(-its)), q, -1),
                ),
            )
            if not all(self.proves(g, is_thorough=False) for goals in inside for g in goals):
                continue
            found.append(_Digit(left, right, 1, 1))
            x, y = p, q
        return [*found, _Digit(x, y, mine, its)]

    def are_unequal(self, digits: Sequence[_Digit], order: Polynomial | None) -> bool:
        """Whether the elements certainly differ: some digit differs whenever all others are equal,
        or equal digits contradict the assumption `order` < 0."""
        if order is not None and self.is_contradicted(digits, order):
            return True
        for digit in digits:
            with self.conclusions.scope():
                for other in digits:
                    if other is not digit:
                        apart = other.apart
                        self.space.assume(
                            combined(apart, constant(other.its - 1)),
                            combined(constant(other.mine - 1), apart, -1),
                        )
                goals = (
                    combined(digit.apart, constant(-digit.mine)),
                    combined(scaled(digit.apart, -1), constant(-digit.its)),
                )
                for is_thorough in (False, True):
                    for goal in goals:
                        if self.proves(goal, is_thorough=is_thorough):
                            return True
        return False

    def is_contradicted(self, digits: Sequence[_Digit], order: Polynomial) -> bool:
        """Whether equal digits contradict `order` < 0, after writing its variables in terms of the
        quotients and remainders in the digits."""
        own = set().union(*(variables_of(p) for d in digits for p in (d.first, d.second)))
        goal = order
        for _ in range(MOST_UNFOLDED):
            parts = self.parts_of(variables_of(goal) - own, own)
            if parts is None:
                break
            goal = substituted(goal, *parts)
        with self.conclusions.scope():
            for digit in digits:
                if digit.mine > 1 or digit.its > 1:
                    return False
                self.space.assume(digit.apart, scaled(digit.apart, -1))
            return self.proves(goal, is_thorough=False)

    def parts_of(self, numbers: set[int], own: set[int]) -> tuple[int, Polynomial] | None:
        """(variable, its value) for one of `numbers` that can be written by its quotient and
        remainder, if these are among `own` or divided further; None if there is none."""
        divided = {next(iter(d.numerator)) for d in self.space.divisions() if len(d.numerator) == 1}
        for division in self.space.divisions():
            number = next((n for n in numbers if division.numerator == {(n,): 1}), None)
            ((quotient,),), ((remainder,),) = division.quotient, division.remainder
            is_used = remainder in own or (remainder,) in divided
            if number is not None and is_used and (quotient in own or (quotient,) in divided):
                whole = product(division.divisor, division.quotient)
                return number, combined(whole, division.remainder)
        return None

    def proves(self, goal: Polynomial, *, is_thorough: bool) -> bool:
        number = known_value(goal)
        if number is not None:
            return number >= 0
        return self.space.proves(goal, is_thorough=is_thorough) is not None

    # Lanes

    def lanes_are_apart(self, memory: Memory, group: list[Access]) -> bool:
        """Whether no two lanes touch an element that one of them stores, without a barrier
        between."""
        pairs = 0
        for at, first in enumerate(group):
            for second in group[at:]:
                if not (first.is_write or second.is_write):
                    continue
                for pair in self.side_by_side(first, second, isinstance(memory, Buffer)):
                    pairs += 1
                    if pairs > MOST_PAIRS or not self.lanes_differ(pair):
                        return False
        return True

    def side_by_side(self, a: Access, b: Access, is_buffer: bool) -> Iterator[_Pair]:
        """The pairs of iterations of two accesses that no barrier separates."""
        same = common_frames(a, b)
        uniform = 0  # statements around both that all lanes run in step
        for frame in a.path[:same]:
            if frame.loop is not None and frame.loop.kind not in ORDERED:
                break
            uniform += 1
        depth = loops_among(a.path[:uniform])
        first, second = a, b
        mine, its = first.path[uniform], second.path[uniform]
        if mine.at > its.at:
            first, second, mine, its = second, first, its, mine
        is_exclusive = mine.at == its.at and mine.stmt is its.stmt and mine.branch != its.branch
        between = mine.body[mine.at + 1 : its.at]
        is_parted = mine.at < its.at and (
            _has_barrier(between, is_buffer)
            or _behind(first.path[uniform:], is_buffer)
            or _in_front(second.path[uniform:], is_buffer)
        )
        if not is_exclusive and not is_parted:
            yield _Pair(first, second, depth)
        loops = [n for n, f in enumerate(a.path[:uniform]) if f.var is not None]
        for number, at in enumerate(loops):
            frame = a.path[at]
            assert frame.loop is not None
            if frame.loop.kind is LoopKind.WORKGROUP or frame.loop.extent in (0, 1):
                continue
            for x, y in ((a, b), (b, a)) if a is not b else ((a, b),):
                if _behind(x.path[at + 1 :], is_buffer, is_own=True):
                    continue
                if _in_front(y.path[at + 1 :], is_buffer, is_own=True):
                    continue
                is_next = _has_barrier(frame.loop.body, is_buffer)
                yield _Pair(x, y, number, (number, is_next))

    def lanes_differ(self, pair: _Pair) -> bool:
        """Whether the two accesses of a pair touch different elements in different lanes."""
        axes = [n for n, count in enumerate(self.kernel.workgroup_size) if count > 1]
        lanes = [(pair.first.lane(n), pair.second.lane(n)) for n in axes]
        if any((x is None) != (y is None) for x, y in lanes):
            return self.are_disjoint(pair, None, True)  # lanes together and one of them differ
        known = [n for n, (x, _) in zip(axes, lanes, strict=True) if x is not None]
        is_same = pair.first is pair.second and pair.order is None
        return all(
            self.are_disjoint(pair, axis, is_less)
            for axis in known
            for is_less in ((True,) if is_same else (True, False))
        )

    def are_disjoint(self, pair: _Pair, axis: int | None, is_less: bool) -> bool:
        """Whether two accesses touch different elements when the first one's lane index along an
        axis is less than the second's, or greater if not `is_less`."""
        with self.conclusions.scope():
            order: Polynomial | None = None
            a = self.scene.copy(pair.first, pair.shared, "first")
            b = self.scene.copy(pair.second, pair.shared, "second")
            if axis is not None:
                x, y = pair.first.lane(axis), pair.second.lane(axis)
                assert x is not None and y is not None
                left, right = self.values.form(a(x)), self.values.form(b(y))
                low, high = (left, right) if is_less else (right, left)
                self.space.assume(combined(combined(high, low, -1), constant(-1)))
                order = combined(low, high, -1)
            if pair.order is not None:
                depth, is_next = pair.order
                before = self.values.form(a.variables[depth])
                after = self.values.form(b.variables[depth])
                later = combined(combined(after, before, -1), constant(-1))
                self.space.assume(later)
                if is_next:
                    self.space.assume(scaled(later, -1))
            return not self.is_met(a, b, order)


def written(group: list[Access]) -> Iterator[list[Access]]:
    """The accesses as they are, then, if they have selects, their variants for each outcome of
    these."""
    yield group
    apart = [each for access in group for each in alternatives(access)]
    if len(apart) > len(group):
        yield apart


def _divided(p: Polynomial, stride: Polynomial) -> tuple[Polynomial, Polynomial]:
    """The quotient and the remainder of `p` by a stride, taken term by term."""
    times, rest = long_division({m: c for m, c in p.items() if m}, stride)
    number, by = p.get((), 0), known_value(stride)
    if by is not None:
        times, number = combined(times, constant(number // by)), number % by
    return times, combined(rest, constant(number))


def _has_barrier(body: Sequence[Stmt], is_buffer: bool) -> bool:
    """Whether the statements execute a barrier on every path."""
    return any(_is_barrier(stmt, is_buffer) for stmt in body)


def _is_barrier(stmt: Stmt, is_buffer: bool) -> bool:
    match stmt:
        case Barrier():
            return stmt.orders_buffers or not is_buffer
        case For():
            is_run = isinstance(stmt.extent, int) and stmt.extent > 0
            return is_run and _has_barrier(stmt.body, is_buffer)
        case If():
            return _has_barrier(stmt.then, is_buffer) and _has_barrier(stmt.otherwise, is_buffer)
    return False


def _behind(path: Sequence[Frame], is_buffer: bool, *, is_own: bool = False) -> bool:
    """Whether a barrier certainly follows an access, within the bodies on its path.

    Args:
        is_own: whether the first of these bodies counts too.
    """
    frames = path if is_own else path[1:]
    return any(_has_barrier(f.body[f.at + 1 :], is_buffer) for f in frames)


def _in_front(path: Sequence[Frame], is_buffer: bool, *, is_own: bool = False) -> bool:
    """Whether a barrier certainly precedes an access, within the bodies on its path; arguments as
    in `_behind`.
    """
    frames = path if is_own else path[1:]
    return any(_has_barrier(f.body[: f.at], is_buffer) for f in frames)
