"""Proves that a kernel loads only what it has stored, and stores every element of its results.

For each element that is read, or returned, an iteration of a store before it is named that writes
it: a witness, put into the store's index and the conditions around it, which the prover of
inequalities then checks. Several stores together reach all elements by cases. Owns which stores
come before a load; takes for granted that nothing else writes between them, which `races.py` shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product as product_of

from aot.ir.dims import Interval
from aot.kernels.ir.nodes import Buffer, Kernel, LoopKind, Scratch
from aot.kernels.proof.accesses import (
    Access,
    Copy,
    alternatives,
    common_frames,
    loops_among,
    private_axes,
)
from aot.kernels.proof.conclusions import Answer, Effort, Goals, Question
from aot.kernels.proof.polynomials import (
    Polynomial,
    combined,
    constant,
    divided,
    known_value,
    product,
    scaled,
    variables_of,
)
from aot.kernels.proof.values import Memory
from aot.kernels.proof.witnesses import Unknowns, chain_of, longest_first, plain

UNKNOWN = "not known to be written"
MOST_MEMBERS = 80  # witnesses that are looked at together
Variant = tuple[bool, bool, bool, bool]
# Whether remainders are written as differences, digits are what is written so, loops that don't
# matter are in their last iteration, and quotients are clamped.
TRIED: tuple[tuple[Variant, ...], ...] = (
    ((False, True, False, False), (False, True, True, False)),
    ((True, True, False, False), (True, True, True, False)),
    ((False, False, False, False), (False, False, True, False)),
    ((True, False, False, False), (True, False, True, True)),
)
ORDERED = (LoopKind.SERIAL, LoopKind.UNROLLED)


def check_definedness(
    kernel: Kernel,
    known: Mapping[str, Interval] | None = None,
    index_bits: int = 64,
    *,
    initialised: Collection[str] = (),
    accesses: Sequence[Access] | None = None,
) -> Answer:
    """Proves that a kernel's loads read defined values and its results are completely written.

    Args:
        known: bounds of symbols; others are not negative.
        index_bits: how wide an index is on the target.
        initialised: names of written buffers that hold elements before the kernel runs.
    """
    return _Check(kernel, known, index_bits, initialised, accesses).run()


class _Check(Question):
    def __init__(
        self,
        kernel: Kernel,
        known: Mapping[str, Interval] | None,
        index_bits: int,
        initialised: Collection[str],
        accesses: Sequence[Access] | None,
    ) -> None:
        super().__init__(kernel, known, index_bits, accesses)
        self.initialised = initialised
        self.stores: dict[Memory, list[Access]] = {}
        for access in self.accesses:
            if access.is_write:
                ways = alternatives(access)
                found = self.stores.setdefault(access.memory, [])
                found += ways if len(ways) == 1 else [*ways, access]  # the latest is tried first
        # scratch of which each iteration of a PARALLEL loop has its own
        self.of_iterations = {
            access.memory
            for access in self.accesses
            for frame in access.loops
            if access.is_write and frame.loop is not None and frame.loop.kind is LoopKind.PARALLEL
        }
        # where an element was stored, or shown to be
        self._stored: dict[object, list[tuple[tuple[int, bool], ...]]] = {}

    def run(self) -> Answer:
        for access in self.accesses:
            if access.memory.name in self.initialised:
                continue
            if self.found.unproved:
                return self.found
            if access.is_write:
                self.remember(access)
            elif not self.is_remembered(access):
                self.say(self.is_defined(access), f"load of {access.memory.name}: {UNKNOWN}")
                self.remember(access)
        for buffer in self.kernel.buffers:
            if buffer.is_written and buffer.name not in self.initialised:
                self.say(self.is_written(buffer), f"result {buffer.name}: {UNKNOWN}")
        return self.found

    # The same element, where it was stored before

    def remember(self, access: Access) -> None:
        if not access.is_guarded:
            for number in range(access.parts):
                self._stored.setdefault(self.key(access, number), []).append(access.where)

    def is_remembered(self, access: Access) -> bool:
        if access.memory in self.of_iterations:
            return False
        return all(
            any(access.where[: len(where)] == where for where in self._stored.get(key, ()))
            for key in (self.key(access, number) for number in range(access.parts))
        )

    def key(self, access: Access, number: int) -> object:
        copy = self.scene.copy(access)
        places = [self.values.form(index) for index in copy.indices]
        if number:
            places[-1] = combined(places[-1], constant(number))
        return access.memory, tuple(frozenset(p.items()) for p in places)

    # Results and loads

    def is_written(self, buffer: Buffer) -> bool:
        """Whether the stores to a buffer together write each of its elements."""
        with self.conclusions.scope():
            if 0 in buffer.shape:
                return True
            stores = self.stores.get(buffer, [])
            extents = list(map(self.values.dim, buffer.shape))
            elements = [
                [self.element(stores, n, p, is_exact) for n, p in enumerate(extents)]
                for is_exact in ((True,) if all(known_value(p) for p in extents) else (True, False))
            ]
            return self.is_reached([(s, 0, None) for s in stores], elements, None)

    def element(
        self, stores: Sequence[Access], dim: int, extent: Polynomial, is_exact: bool
    ) -> Polynomial:
        """An arbitrary index along a dim, written in mixed-radix digits of the stores' strides.

        Args:
            is_exact: only of those of which each divides the one before it; else the leading digit
                may have values for which the index would be too large, but is not.
        """
        total: Polynomial = {}
        above = extent
        for stride in (*longest_first(self.strides(stores, dim)), constant(1)):
            count = divided(above, stride)
            is_open = known_value(stride) is not None and above == extent
            if count is None and is_open and not is_exact:
                room = combined(above, combined(stride, constant(-1)))
                found = self.space.quotient(room, stride)
                count = None if found is None else found[0]
            if count is not None and count != constant(1):
                total = combined(total, product(stride, self.scene.variable("e", count)))
                above = stride
        if not is_exact:
            self.space.assume(combined(combined(extent, constant(-1)), total, -1), total)
        return total

    def strides(self, stores: Sequence[Access], dim: int) -> list[Polynomial]:
        """The strides of the stores' indices along a dim: the factors of loop variables, and of
        quotients or remainders of these."""
        found: dict[frozenset[object], Polynomial] = {}
        for store in stores:
            copy = self.scene.copy(store)
            own = [self.values.form(v) for v in copy.variables]
            loops = Unknowns(self.space, {n: {} for p in own for n in variables_of(p)})
            raw = self.values.form(copy.indices[dim])
            for index in (raw, plain(self.space, raw)):
                for monomial, coefficient in index.items():
                    rest = tuple(n for n in monomial if not loops.depends(n))
                    if rest != monomial:
                        factor = {rest: abs(coefficient)}
                        found[frozenset(factor.items())] = factor
        return list(found.values())

    def is_defined(self, load: Access) -> bool:
        """Whether the elements that a load reads were stored before, in whatever iteration it
        runs."""
        with self.conclusions.scope():
            copy = self.scene.copy(load)
            if not self.conclusions.enter(copy):
                return True
            places = map(self.values.form, copy.indices)
            targets = [self.space.without_wraps(place) for place in places]
            if load.parts > 1:
                part = self.scene.variable("part", constant(load.parts))
                targets[-1] = combined(targets[-1], part)
            stores = list(self.before(load))
            whole = self.around(stores, targets)
            return self.is_reached(stores, [targets] if whole is None else [targets, whole], load)

    def around(
        self,
        stores: Sequence[tuple[Access, int, int | None]],
        targets: Sequence[Polynomial],
    ) -> list[Polynomial] | None:
        """An arbitrary element of the ranges that a load's indices may have, in digits of the
        stores' strides; None where no store has a stride."""
        found: list[Polynomial] = []
        is_other = False
        for dim, target in enumerate(targets):
            low, back = self.space.low(target), self.space.low(scaled(target, -1))
            strides = self.strides([store for store, _, _ in stores], dim)
            chain = [n for n in map(known_value, chain_of(strides)) if n is not None and n > 1]
            if not chain or low is None or back is None or low < 0 or low == -back:
                found.append(target)
                continue
            is_other = True
            total: Polynomial = {}
            above = -back + 1
            for stride in (*chain, 1):
                digit = self.scene.variable("e", constant(-(-above // stride)))
                total = combined(total, digit, stride)
                above = stride
            self.space.assume(combined(total, constant(-low)))
            self.space.assume(combined(constant(-back), total, -1))
            found.append(total)
        return found if is_other else None

    def before(self, load: Access) -> Iterator[tuple[Access, int, int | None]]:
        """The stores that precede a load, nearest first, each with the number of loops it shares
        with the load, and the depth of the loop of which it ran in an earlier iteration, if any."""
        stores = self.stores.get(load.memory, [])
        earlier: list[tuple[Access, int, int | None]] = []
        for store in reversed(stores):
            shared = common_frames(store, load)
            if not self.is_private_to_both(store, load, shared):
                continue
            mine, its = store.path[shared], load.path[shared]
            loops = loops_among(load.path[:shared])
            if mine.at < its.at:
                yield store, loops, None
            for depth in range(loops - 1, -1, -1):
                frame = load.loops[depth]
                assert frame.loop is not None
                if frame.loop.kind not in ORDERED:
                    break
                earlier.append((store, depth, depth))
        yield from earlier

    def is_private_to_both(self, store: Access, load: Access, shared: int) -> bool:
        """Whether no PARALLEL loop separates the store and the load of a scratch, nor another store
        from the load: scratch is private to an iteration, and what several iterations store is
        undefined after the loop."""
        if not isinstance(load.memory, Scratch):
            return True
        frames = (*store.path[shared:], *load.path[shared:])
        if any(f.loop is not None and f.loop.kind is LoopKind.PARALLEL for f in frames):
            return False
        others = (s for s in self.stores[load.memory] if s is not store)
        return not any(
            f.loop is not None and f.loop.kind is LoopKind.PARALLEL
            for other in others
            for f in other.path[common_frames(other, load) :]
        )

    def is_reached(
        self,
        stores: Sequence[tuple[Access, int, int | None]],
        elements: Sequence[list[Polynomial]],
        load: Access | None,
    ) -> bool:
        """Whether the stores together write all elements that a load reads. Each of `elements` is a
        way to write its indices: one that is proved suffices."""
        lanes = self.lanes_of(load)
        for effort, targets in product_of(Effort, elements):
            self.conclusions.effort = effort
            members = (
                goals
                for tried in TRIED
                for store, shared, earlier in stores
                for goals in self.members(store, shared, earlier, targets, lanes, tried)
            )
            if self.conclusions.is_covered(members, MOST_MEMBERS):
                return True
        return False

    def lanes_of(self, load: Access | None) -> dict[int, Polynomial]:
        """The index of the lane, by axis, whose private scratch a load reads; any lane outside LANE
        loops."""
        if load is None:
            return {}
        found: dict[int, Polynomial] = {}
        for axis in private_axes(self.kernel, load.memory):
            lane = load.lane(axis)
            if lane is not None:
                found[axis] = self.values.form(lane)
            else:
                count = self.kernel.workgroup_size[axis]
                found[axis] = self.scene.variable(f"lane{axis}", constant(count))
        return found

    # Witnesses

    def members(
        self,
        store: Access,
        shared: int,
        earlier: int | None,
        targets: list[Polynomial],
        lanes: Mapping[int, Polynomial],
        tried: Sequence[Variant],
    ) -> Iterator[Goals]:
        """The goals of each candidate witness found for a store: iterations in which it may write
        the element."""
        copy = self.scene.copy(store, shared, "unknown")
        numbers: dict[int, Polynomial] = {}
        depths: dict[int, int] = {}
        for depth, var in enumerate(copy.variables):
            p = self.values.form(var)
            if depth >= shared and p:
                ((number,),) = p
                frame = store.loops[depth]
                assert frame.loop is not None
                numbers[number] = self.values.dim(frame.loop.extent)
                depths[number] = depth
        before = self.before_this(store, earlier)
        seen: list[dict[int, Polynomial]] = []
        for is_plain, is_whole, is_last, is_clamped in tried:
            equations = self.equations(copy, targets, lanes, is_plain=is_plain)
            unknowns = Unknowns(
                *(self.space, numbers),
                is_last=is_last,
                is_clamped=is_clamped,
                is_whole=is_whole,
                is_offset=not is_plain,
            )
            for solution in unknowns.solutions(equations):
                made = {depths[number]: value for number, value in solution.items()}
                made = {**{d: {} for d in range(shared, len(store.loops)) if d not in made}, **made}
                for given in self.with_earlier(made, before, earlier, equations, depths):
                    if given not in seen:
                        seen.append(given)
                        yield from self.goals(store, shared, given, targets, lanes, earlier, before)

    def before_this(self, store: Access, earlier: int | None) -> Polynomial | None:
        """(the load's iteration) - (the store's) - 1, for the loop in whose earlier iteration the
        store ran; None if there is none."""
        if earlier is None:
            return None
        var = store.loops[earlier].var
        assert var is not None
        return self.values.form(var)

    def with_earlier(
        self,
        made: dict[int, Polynomial],
        before: Polynomial | None,
        earlier: int | None,
        equations: Sequence[Polynomial],
        depths: Mapping[int, int],
    ) -> Iterator[dict[int, Polynomial]]:
        """A witness as it is, and, if no equation determines the loop in whose earlier iteration
        the store ran, also with that loop at the iteration just before the load's."""
        yield made
        if before is None or earlier is None:
            return
        number = next((n for n, depth in depths.items() if depth == earlier), None)
        if number is not None and not any(number in variables_of(p) for p in equations):
            yield {**made, earlier: combined(before, constant(-1))}

    def equations(
        self,
        copy: Copy,
        targets: Sequence[Polynomial],
        lanes: Mapping[int, Polynomial],
        *,
        is_plain: bool,
    ) -> list[Polynomial]:
        found: list[Polynomial] = []
        for index, target in zip(copy.indices, targets, strict=True):
            p = self.values.form(index)
            found.append(combined(plain(self.space, p) if is_plain else p, target, -1))
        for axis, lane in lanes.items():
            own = copy.access.lane(axis)
            if own is not None:
                found.append(combined(self.values.form(copy(own)), lane, -1))
        return found

    def goals(
        self,
        store: Access,
        shared: int,
        made: Mapping[int, Polynomial],
        targets: Sequence[Polynomial],
        lanes: Mapping[int, Polynomial],
        earlier: int | None,
        before: Polynomial | None,
    ) -> Iterator[Goals]:
        """Goals that confirm a witness: its iteration exists, executes the store, and writes the
        element.
        """
        own = self.scene.with_loops(store, shared, made)
        found: list[Polynomial] = []
        for depth, value in made.items():
            frame = store.loops[depth]
            assert frame.loop is not None
            last = combined(self.values.dim(frame.loop.extent), constant(-1))
            found += [value, combined(last, value, -1)]
        if before is not None and earlier is not None:
            found.append(combined(combined(before, constant(-1)), made[earlier], -1))
        for apart in self.equations(own, targets, lanes, is_plain=True):
            if apart:
                found += [apart, scaled(apart, -1)]
        numbers = [(p, known_value(p)) for p in found]
        goals = [p for p, number in numbers if number is None or number < 0]
        for more in self.conclusions.all_ways(own.conditions):
            yield [*goals, *more]
