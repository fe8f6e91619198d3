"""Vector accesses for lanes at known, nearby positions: loads or stores a few whole vectors and
shuffles.

A group's words beside those of the next group, or one word in several lanes, are such, and rows of
planes. Owns how places become vectors and their order; guards are not its affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.backends.cpu.assembler import Assembler, Type, Value, integer

# elements between two places up to which a vector holds both
MOST_APART = 4


def are_near(places: Sequence[int]) -> bool:
    """Whether many of the lanes' positions are equal or adjacent, so that vectors cover them."""
    return 2 * len(_runs(places)) <= len(places)


def _runs(places: Sequence[int]) -> list[list[int]]:
    """The positions in order, grouped by what one vector load can cover."""
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
    """Stores lanes, of `size` bytes each, at distinct positions `places` from a pointer."""
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
    """Loads the elements, of `size` bytes, at positions `places` from a pointer, one per lane."""
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
    """Elements before the first lane's in its step, if all address terms but the constant are
    multiples of the step, so that whole steps are in bounds; else None.
    """
    if not step or not all(isinstance(n, int) and n % step == 0 for n in factors):
        return None
    return fixed % step


def load_picked(
    asm: Assembler,
    pointer: Value,
    vector: Type,
    size: int,
    step: int,
    load: Callable[[Value, Type, int], Value],
    *,
    before: int | None = None,
    used: int | None = None,
) -> Value:
    """Loads elements that are `step` apart, as whole vectors, and selects them by shuffles.

    Wide loads match how the elements were stored, so that store forwarding works. Only the first
    `used` lanes are loaded, or all. With a negative `step`, elements are before the pointer.

    Args:
        size: bytes of an element.
        load: `load(pointer, type, n)` loads the first n elements of a vector.
        before: where known, how many elements before the pointer loads of whole steps begin.
    """
    count, back, apart = vector.lanes, before or 0, abs(step)
    used = count if used is None else used
    if step < 0:
        back = apart * (used - 1)
    begin = asm.offset(pointer, integer(-back * size, Type("i64")))
    # what is behind the last element is not read
    is_whole = before is not None and used == count and step > 0
    last = back if step < 0 else back + apart * (used - 1)
    end = step * count if is_whole else last + 1
    place_of = [back + step * lane for lane in range(used)]
    result: Value | None = None
    done: set[int] = set()
    for part in range(-(-end // count)):
        first = max(0, min(part * count, end - count))
        at = asm.offset(begin, integer(first * size, Type("i64")))
        loaded = load(at, vector, min(end, count))
        lanes = {n for n in range(used) if n not in done and place_of[n] < first + count}
        behind = 0 if result is None else count
        chosen = [
            behind + place_of[n] - first if n in lanes else n if n in done else 0
            for n in range(count)
        ]
        result = asm.shuffle(loaded if result is None else result, loaded, chosen)
        done |= lanes
    assert result is not None
    return result
