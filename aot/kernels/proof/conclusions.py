"""Translates conditions into goals to prove and facts to assume, for proofs about pairs of
accesses.

Owns conditions that are no inequalities, as comparisons of floats, which hold or don't as a whole;
what is shown of an access by the conditions around it; unions of conditions that hold always; and
what every question about a kernel's accesses starts from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from enum import Enum
from itertools import product

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.dims import Interval
from aot.ir.expr import Binary, Cast, Const, Expr, Unary
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel
from aot.kernels.proof.accesses import Access, Condition, Copy, Scene, accesses_of
from aot.kernels.proof.conditions import NEGATED
from aot.kernels.proof.polynomials import Polynomial, combined, constant, known_value, scaled

MOST_WAYS = 4  # in which conditions may hold together
MOST_NODES = 200  # of a search for a cover
MOST_OPEN = 4  # conditions of a member of a cover that are left to cases

NOT_NEGATIVE = {"lt": (-1, -1), "le": (-1, 0), "gt": (1, -1), "ge": (1, 0)}


@dataclass(frozen=True)
class Literal:
    """A condition that is no inequality, as a key of its value, and whether it must be true or
    false."""

    key: object
    sign: bool


Goal = Polynomial | Literal
"""What is to be shown: that a polynomial is not negative, or a literal."""
Goals = list[Goal]


@dataclass
class Answer:
    """The outcome of a proof about one kernel.

    Attributes:
        proved: how many of its loads, results or groups of accesses.
        unproved: the others, in words.
    """

    proved: int = 0
    unproved: list[str] = field(default_factory=list)


class Effort(Enum):
    """The effort to spend on a goal: few facts only, no expensive searches, or everything."""

    QUICK = "quick"
    BRIEF = "brief"
    FULL = "full"


class Conclusions:
    """Proves and assumes the conditions of accesses in a scene, beyond plain inequalities."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.space = scene.space
        self.values = scene.values
        self.effort = Effort.QUICK
        self._nodes = 0

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A context manager that removes, at its end, the facts assumed within it."""
        mark, literals = self.space.mark(), dict(self.scene.literals)
        try:
            yield
        finally:
            self.space.leave(mark)
            self.scene.literals.clear()
            self.scene.literals.update(literals)

    # What is to be shown

    def ways(self, e: Expr, sign: bool) -> list[Goals]:
        """Alternative lists of goals for the condition `e` to be true, or false as `sign` says: it
        is, once all goals of one list are proved.
        """
        match e:
            case Const():
                return [[]] if bool(e.value) == sign else []
            case Unary(op="not"):
                return self.ways(e.a, not sign)
            case Binary(op="and" | "or") if e.dtype is DType.BOOL:
                a, b = self.ways(e.a, sign), self.ways(e.b, sign)
                if (e.op == "and") == sign:
                    return [[*x, *y] for x, y in product(a, b)][:MOST_WAYS]
                return [*a, *b][:MOST_WAYS]
            case Binary() if e.op in expr.COMPARE_OPS:
                return self._compared(e, e.op if sign else NEGATED[e.op])
        return [[Literal(self.values.key(e), sign)]]

    def _compared(self, e: Binary, op: str) -> list[Goals]:
        a, b = e.a, e.b
        if not (a.dtype.is_integer or a.dtype is DType.INDEX):
            # of floats, a comparison and its negation are not each other's opposites by NEGATED
            return [[Literal(self.values.key(e), op == e.op)]]
        left, right = self.values.form(a), self.values.form(b)
        if isinstance(a, Cast) and isinstance(b, Cast) and not a.dtype.is_signed:
            inner = (a.a, b.a)
            is_whole = a.dtype.bits >= self.values.index_bits
            if is_whole and all(x.dtype is DType.INDEX for x in inner):
                left, right = self.values.form(a.a), self.values.form(b.a)
                apart = combined(right, left, -1)
                if op in ("lt", "le"):
                    more = constant(-1) if op == "lt" else {}
                    return [[left, combined(apart, more)]]
                below = combined(constant(-1), left, -1)
                more = constant(-1) if op == "gt" else {}
                if op in ("gt", "ge"):
                    back = combined(scaled(apart, -1), more)
                    return [[right, back], [right, below]]
        apart = combined(left, right, -1)
        back, one = scaled(apart, -1), constant(-1)
        if op == "eq":
            return [[apart, back]]
        if op == "ne":
            return [[combined(apart, one)], [combined(back, one)]]
        factor, by = NOT_NEGATIVE[op]
        return [[combined(scaled(apart, factor), constant(by))]]

    def all_ways(self, conditions: Sequence[Condition]) -> list[Goals]:
        """As `ways`, for several conditions together: all hold once every goal of one list is
        proved.
        """
        found: list[Goals] = [[]]
        for e, sign in conditions:
            found = [[*x, *y] for x, y in product(found, self.ways(e, sign))][:MOST_WAYS]
        return found

    # What is known

    def enter(self, copy: Copy) -> bool:
        """Assumes that an access is executed; False where it certainly is not."""
        values = self.values
        for frame, var in zip(copy.access.loops, copy.variables, strict=True):
            assert frame.loop is not None
            extent = values.dim(frame.loop.extent)
            if self.space.is_contradictory([combined(extent, constant(-1))]):
                return False
            self.scene.between(values.form(var), extent)
        return all(self.hold(e, sign) for e, sign in copy.conditions)

    def hold(self, e: Expr, sign: bool) -> bool:
        """Assumes that condition `e` is true, or false as `sign` says; False where it certainly is
        not."""
        found = self.values.condition(e, sign)
        if not self.space.assume_all(found.facts, found.disjunctions):
            return False
        ways_to = self.ways(e, sign)
        if len(ways_to) == 1:
            for goal in ways_to[0]:
                if isinstance(goal, Literal):
                    if self.scene.literals.get(goal.key, goal.sign) != goal.sign:
                        return False
                    self.scene.literals[goal.key] = goal.sign
        return True

    def is_known(self, goal: Goal) -> bool:
        if isinstance(goal, Literal):
            return self.scene.literals.get(goal.key) is goal.sign
        number = known_value(goal)
        if number is not None:
            return number >= 0
        if self.effort is Effort.QUICK:
            return self.space.proves_quickly(goal)
        return self.space.proves(goal, is_thorough=self.effort is Effort.FULL) is not None

    def is_refuted(self, goal: Goal) -> bool:
        if isinstance(goal, Literal):
            return self.scene.literals.get(goal.key, goal.sign) is not goal.sign
        number = known_value(goal)
        if number is not None:
            return number < 0
        low = self.space.low(scaled(goal, -1))
        return low is not None and low > 0

    # Unions

    def is_covered(self, members: Iterator[Goals], most: int) -> bool:
        """Whether in every case some member's goals all hold. Goals that are neither proved nor
        refuted are split into cases.

        Args:
            most: how many members are looked at.
        """
        if not self.space.begin():
            return False
        found: list[Goals] = []
        for goals in members:
            left = self._left(goals)
            if left == []:
                return True
            if left is not None and len(left) <= MOST_OPEN:
                found.append(left)
            if len(found) >= most:
                break
        self._nodes = 0
        return self._in_cases(found)

    def _left(self, goals: Goals) -> Goals | None:
        """Goals that are not proved; None where one is refuted."""
        left: Goals = []
        for goal in goals:
            if self.is_known(goal):
                continue
            if self.is_refuted(goal):
                return None
            left.append(goal)
            if len(left) > MOST_OPEN:
                break
        return left

    def _in_cases(self, members: list[Goals]) -> bool:
        self._nodes += 1
        if not members or self._nodes > MOST_NODES:
            return False
        best = min(members, key=len)
        others = [m for m in members if m is not best]
        with self.scope():
            for goal in best:
                if not self._holds_without(goal, others):
                    return False
                if not self._assume(goal, True):
                    break  # never all of them: what is left is covered
        return True

    def _holds_without(self, goal: Goal, others: list[Goals]) -> bool:
        """Whether the other members cover all cases in which a goal does not hold."""
        with self.scope():
            if not self._assume(goal, False):
                return True
            rest: list[Goals] = []
            for goals in others:
                left = self._left(goals)
                if left == []:
                    return True
                if left is not None:
                    rest.append(left)
            return self._in_cases(rest)

    def _assume(self, goal: Goal, sign: bool) -> bool:
        """Assumes a goal, or its negation; False where that is impossible."""
        if isinstance(goal, Literal):
            wanted = goal.sign is sign
            if self.scene.literals.get(goal.key, wanted) != wanted:
                return False
            self.scene.literals[goal.key] = wanted
            return True
        fact = goal if sign else combined(constant(-1), goal, -1)
        if self.space.is_contradictory([fact]):
            return False
        self.space.assume(fact)
        return not self.space.is_absurd([fact])


class Question:
    """A question about one kernel's accesses: the scene in which it is asked, and the answer so
    far."""

    def __init__(
        self,
        kernel: Kernel,
        known: Mapping[str, Interval] | None,
        index_bits: int,
        accesses: Sequence[Access] | None,
    ) -> None:
        """
        Args:
            known: bounds of symbols; others are not negative.
            index_bits: how wide an index is on the target.
            accesses: the kernel's, where they are at hand.
        """
        self.kernel = kernel
        self.scene = Scene(kernel, known or {}, index_bits)
        self.space = self.scene.space
        self.values = self.scene.values
        self.conclusions = Conclusions(self.scene)
        self.accesses = accesses_of(kernel) if accesses is None else accesses
        self.found = Answer()

    def say(self, is_proved: bool, what: str) -> None:
        """Counts a proof as found, or else records `what` was not proved."""
        if is_proved:
            self.found.proved += 1
        else:
            self.found.unproved.append(what)
