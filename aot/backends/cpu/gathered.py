"""Accesses of lanes whose places are known and near each other: by vectors of neighbours.

A group's words beside those of the next group, or one word in several lanes, are such, and rows of
planes. Owns how places become vectors and their order; guards are not its affair.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.backends.cpu.assembler import Assembler, Type, Value, integer

# elements between two places up to which a vector holds both
MOST_APART = 4


def are_near(places: Sequence[int]) -> bool:
    """Whether some lanes have one place, or several lanes' places follow each other."""
    return 2 * len(_runs(places)) <= len(places)


def _runs(places: Sequence[int]) -> list[list[int]]:
    """The places in order, those together that one vector holds."""
    runs: list[list[int]] = []
    for place in sorted(set(places)):
        if not runs or place - runs[-1][-1] > MOST_APART:
            runs.append([])
        runs[-1].append(place)
    return runs


def store_places(
    asm: Assembler,
    pointer: Value,
    places: Sequence[int],
    vector: Value,
    size: int,
    metadata: str,
) -> None:
    """Stores lanes, of `size` bytes, `places` from a pointer, all of them different."""
    lane_of = {place: lane for lane, place in enumerate(places)}
    run: list[int] = []
    for place in (*sorted(places), None):
        if run and (place is None or place != run[-1] + 1):
            lanes = [lane_of[n] for n in run]
            part = vector
            if lanes != list(range(vector.type.lanes)):
                part = asm.shuffle(vector, vector, lanes)
            at = asm.offset(pointer, integer(run[0] * size, Type("i64")))
            asm.store(part, at, size, metadata)
            run = []
        if place is not None:
            run.append(place)


def load_places(
    asm: Assembler,
    pointer: Value,
    places: Sequence[int],
    element: Type,
    size: int,
    metadata: str,
) -> Value:
    """The elements, of `size` bytes, that are `places` from a pointer, one in each lane."""
    runs = _runs(places)
    longest = max(run[-1] - run[0] + 1 for run in runs)
    wide = 1 << (longest - 1).bit_length()
    at: dict[int, int] = {}
    parts: list[Value] = []
    for number, run in enumerate(runs):
        first, count = run[0], run[-1] - run[0] + 1
        line = Type(element.element, count)
        distance = integer(first * size, Type("i64"))
        loaded = asm.load(line, asm.offset(pointer, distance), size, metadata)
        lanes = [min(n, count - 1) for n in range(wide)]
        parts.append(loaded if count == wide else asm.shuffle(loaded, loaded, lanes))
        at |= {place: number * wide + place - first for place in run}
    while len(parts) & (len(parts) - 1):
        parts.append(parts[-1])
    whole = asm.concat(parts)
    return asm.shuffle(whole, whole, [at[place] for place in places])


def before_a_step(fixed: int, step: int | None, factors: Sequence[object]) -> int | None:
    """How many elements are before the first lane's in a step, where all that addresses count in
    are whole steps, but `fixed` elements, and so all of the first and the last step is there."""
    if not step or not all(isinstance(n, int) and n % step == 0 for n in factors):
        return None
    return fixed % step


def load_picked(
    asm: Assembler,
    pointer: Value,
    vector: Type,
    size: int,
    step: int,
    before: int | None,
    metadata: str,
) -> Value:
    """Every `step`th element, of `size` bytes, from a pointer on: picked from vectors of all from
    the first to the last of them; or of whole steps, the first of which is `before` elements nearer
    where that is known. So vectors are loaded as they were stored, which a core waits for else."""
    count, back = vector.lanes, before or 0
    begin = asm.offset(pointer, integer(-back * size, Type("i64")))
    # what is behind the last element is not read
    end = step * (count - 1) + 1 if before is None else step * count
    result: Value | None = None
    done = 0
    for part in range(step):
        first = min(part * count, end - count)
        at = asm.offset(begin, integer(first * size, Type("i64")))
        loaded = asm.load(vector, at, size, metadata)
        places = [step * n + back - first for n in range(done, count)]
        picked = [place for place in places if place < count]
        if result is None:
            rest = [0] * (count - len(picked))
            result = asm.shuffle(loaded, loaded, picked + rest)
        else:
            rest = [0] * (count - done - len(picked))
            behind = [count + place for place in picked]
            result = asm.shuffle(result, loaded, [*range(done), *behind, *rest])
        done += len(picked)
    assert result is not None
    return result
