"""Transposes blocks of elements in registers, for accesses that are contiguous along another loop
than the vector's.

An unrolled loop around a vector loop is such a block where neighbours along the unrolled loop are
neighbours in memory, and lanes are not. Lane by lane each element would be an access of its own;
here a vector of neighbours is, for each lane. Owns which accesses are such, and how registers are
transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.backends.cpu.addresses import from_memory, to_memory
from aot.backends.cpu.assembler import Assembler, Type, Value, integer, poison
from aot.backends.cpu.memory import Memory
from aot.backends.cpu.scratch import loads
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Load, Var, coefficient, dim_of, free_vars, transform
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, For, Let, LoopKind, Scratch, Space, Store

# neighbours below which an access for each is as good, but for stores that leave no gap
LEAST = 4
# vectors that are interleaved from which on an odd number of them is by way of a power of two
MANY = 7
# lanes of words that are moved whole
WORDS = (2, 4, 8)
# bits that are shuffled within by the instructions that all machines have
_LANE_BITS = 128
# bits of a vector up to which parts of it are put together at no cost beside shuffles of whole ones
_MOST_ZIPPED = 256
WORD = 4  # bytes of elements that any instruction shuffles


@dataclass(frozen=True)
class Block:
    """An unrolled loop around a vector loop, some of whose accesses are transposed.

    Attributes:
        inner: the vector loop.
        loads, stores: the accesses whose neighbours lie along the unrolled loop.
    """

    inner: For
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]


def block_of(stmt: For, width: int) -> Block | None:
    """The block that an unrolled loop forms, with its vector loop in pieces of `width`; None where
    nothing in it is transposed, or it has other statements than plain stores."""
    if len(stmt.body) != 1 or not isinstance(stmt.extent, int) or stmt.extent < 2:
        return None
    (inner,) = stmt.body
    if not isinstance(inner, For) or inner.kind is not LoopKind.VECTOR:
        return None
    if not isinstance(inner.extent, int) or inner.extent % width:
        return None
    if not _is_power(width) or width < LEAST:
        return None
    if not all(
        isinstance(s, Let) or (isinstance(s, Store) and s.guard is None) for s in inner.body
    ):
        return None
    stored = [s for s in inner.body if isinstance(s, Store)]
    named = {s.var for s in inner.body if isinstance(s, Let)}
    roots = [s.value for s in inner.body if isinstance(s, Store | Let)]
    targets = {s.target for s in stored}

    is_square = _is_power(stmt.extent) and stmt.extent >= LEAST

    def is_transposed(memory: Buffer | Scratch, indices: Sequence[Expr], *, far: bool) -> bool:
        """Whether an access is contiguous, in either direction, along the unrolled loop and not
        along lanes; with `far`, lanes' positions may depend on data."""
        if isinstance(memory, Scratch) and memory.space is Space.REGISTER:
            return False
        along, across = (_step(memory, indices, v) for v in (stmt.var, inner.var))
        is_known = not named & {v for i in indices for v in free_vars(i)}
        is_near = along in (1, -1) and across not in (0, 1)
        return is_known and is_near and (far or across is not None)

    def is_stored(store: Store) -> bool:
        if not is_transposed(store.target, store.indices, far=False):
            return False
        across = _step(store.target, store.indices, inner.var)
        return stmt.extent == across or is_square

    plain = tuple(
        x
        for x in loads(roots)
        if is_square
        and x.guard is None
        and x.dtype is x.source.dtype is not DType.INDEX
        and x.source not in targets
    )
    found = tuple(
        x for x in plain if is_transposed(x.source, x.indices, far=isinstance(x.source, Buffer))
    )
    found += tuple(x for x in plain if _word(x, stmt.var, inner.var, width) > 1)
    stores = tuple(s for s in stored if is_stored(s))
    return Block(inner, found, stores) if found or stores else None


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0


def _step(memory: Buffer | Scratch, indices: Sequence[Expr], var: Var) -> Dim | None:
    """The stride in memory along `var`; None if the address is not linear in it."""
    strides: Sequence[Dim]
    if isinstance(memory, Buffer):
        strides = memory.strides
    else:
        strides = [dims.product(memory.shape[d + 1 :]) for d in range(len(memory.shape))]
    total: Dim = 0
    for e, stride in zip(indices, strides, strict=True):
        step = coefficient(e, var)
        if step is None:
            return None
        total = dims.add(total, dims.multiply(step, stride))
    return total


def _word(load: Load, along: Var, lane: Var, width: int) -> int:
    """Lanes per word of a load whose words are contiguous in memory and follow each other along the
    unrolled loop; 1 for any other load.
    """
    source = load.source
    if not isinstance(source, Buffer) or len(load.indices) != 1 or source.strides != (1,):
        return 1
    (index,) = load.indices
    for count in WORDS:
        if coefficient(index, along) != count or width % count or width // count < LEAST:
            continue
        word, part = Var("word"), Var("part")
        seen = transform(index, _taken_apart(lane, count, word, part))
        if lane in free_vars(seen) or coefficient(seen, part) != 1:
            continue
        if coefficient(seen, word) not in (None, count):
            return count
    return 1


def _taken_apart(lane: Var, count: int, word: Var, part: Var) -> Callable[[Expr], Expr | None]:
    """A rewrite that replaces a lane's quotient and remainder by `count` with `word` and `part`."""

    def named(e: Expr) -> Expr | None:
        if isinstance(e, Binary) and e.a is lane and dim_of(e.b) == count:
            return {"floordiv": word, "floormod": part}.get(e.op)
        return None

    return named


def _backwards(memory: Buffer | Scratch, indices: Sequence[Expr], along: Var, count: int) -> int:
    """How many elements after the first in memory the first iteration's is: all others, if they run
    backwards."""
    return count - 1 if _step(memory, indices, along) == -1 else 0


def load_columns(memory: Memory, load: Load, along: Var, lane: Var, count: int) -> list[Value]:
    """The vectors of a transposed load, one for each of `count` iterations along `along`. The
    current scope is that of the first iteration.
    """
    source, asm, lanes = load.source, memory.asm, memory.lanes.count
    address, size = memory.addresses.of(source, load.indices), memory.traits.bytes_of(source.dtype)
    element = memory.traits.memory_element(source.dtype)
    metadata = memory.metadata(source, is_load=True)
    back = _backwards(source, load.indices, along, count)

    def loaded(pointer: Value, elements: int, behind: int = 0) -> Value:
        at = asm.offset(pointer, integer((behind - back) * size, Type("i64")))
        return asm.load(Type(element, elements), at, size, metadata)

    is_dense = address.step is not None and address.step.number == count == LEAST
    if is_dense and 8 * size * lanes > _MOST_ZIPPED and size >= WORD:
        # vectors as wide as registers, of which every other element is an instruction
        wide = [loaded(address.pointer, lanes, n * lanes) for n in range(count)]
        columns = _unzipped(asm, wide, 1)
    else:
        word = _word(load, along, lane, lanes)
        starts = [memory.lane_pointer(address, first, size) for first in range(0, lanes, word)]
        lines = [loaded(start, count * word) for start in starts]
        if word > 1:
            words = Type(f"i{8 * size * word}", count)
            rows = transpose(asm, [asm.bitcast_to(line, words) for line in lines])
            columns = [asm.bitcast_to(row, Type(element, lanes)) for row in rows]
        else:
            columns = transpose(asm, lines)
    if back:
        columns.reverse()
    return [from_memory(asm, column, load.dtype) for column in columns]


def store_columns(memory: Memory, store: Store, along: Var, values: Sequence[Value]) -> None:
    """Stores the vectors of a transposed store, one for each iteration of the unrolled loop."""
    target, asm = store.target, memory.asm
    address = memory.addresses.of(target, store.indices)
    size = memory.traits.bytes_of(target.dtype)
    metadata = memory.metadata(target, is_load=False)
    rows = [to_memory(asm, value, target.dtype) for value in values]
    behind = _backwards(target, store.indices, along, len(rows))
    back = integer(-behind * size, Type("i64"))
    if behind:
        rows.reverse()
    if address.step is not None and address.step.number == len(rows):
        asm.store(interleaved(asm, rows), asm.offset(address.pointer, back), size, metadata)
        return
    for lane, line in enumerate(transpose(asm, rows)):
        pointer = asm.offset(memory.lane_pointer(address, lane, size), back)
        asm.store(line, pointer, size, metadata)


def interleaved(asm: Assembler, rows: Sequence[Value]) -> Value:
    """Interleaves vectors: the first lane of each, then the second of each, and so on."""
    count, lanes = len(rows), rows[0].type.lanes
    if count == 1:
        return rows[0]
    if all(row is rows[0] for row in rows):
        return asm.shuffle(rows[0], rows[0], [n for n in range(lanes) for _ in rows])
    if count % 2:
        return (_interleaved_odd if count < MANY else _closed)(asm, rows)
    even, odd = (_kept(asm, interleaved(asm, rows[start::2])) for start in (0, 1))
    lanes = even.type.lanes
    return asm.shuffle(even, odd, [n for i in range(lanes) for n in (i, lanes + i)])


def _kept(asm: Assembler, vector: Value) -> Value:
    """Fences `vector`, so that LLVM does not merge its uses' shuffles with those that made it:
    merged, they become shuffles of many registers, which cost more."""
    if vector.type.element != "float":
        return vector
    return asm.call("llvm.arithmetic.fence", vector.type, [vector], vector.type.mangled)


def _interleaved_odd(asm: Assembler, rows: Sequence[Value]) -> Value:
    """`interleaved` for an odd number of vectors: each result vector is built from all of them in
    turn.
    """
    count, lanes = len(rows), rows[0].type.lanes
    parts: list[Value] = []
    for first in range(0, count * lanes, lanes):
        places = [divmod(n, count) for n in range(first, first + lanes)]
        part = asm.shuffle(rows[0], rows[1], [lane + lanes * (row == 1) for lane, row in places])
        for number in range(2, count):
            if any(row == number for _, row in places):
                picked = [
                    lanes + lane if row == number else n for n, (lane, row) in enumerate(places)
                ]
                part = asm.shuffle(part, rows[number], picked)
        parts.append(part)
    return asm.concat(parts)


def _closed(asm: Assembler, rows: Sequence[Value]) -> Value:
    """`interleaved` for a count of vectors that is no power of two: pads them to one, interleaves,
    and removes the gaps by a shuffle.
    """
    count, type_ = len(rows), rows[0].type
    lanes, wide = type_.lanes, 1 << (count - 1).bit_length()
    gaps = _kept(asm, interleaved(asm, [*rows, *[poison(type_)] * (wide - count)]))
    return asm.shuffle(gaps, gaps, [q // count * wide + q % count for q in range(count * lanes)])


def transpose(asm: Assembler, rows: Sequence[Value]) -> list[Value]:
    """The columns of a matrix whose rows are vectors; both are powers of two in number."""
    count, width = len(rows), rows[0].type.lanes
    within = _LANE_BITS // rows[0].type.bits
    if count > width == within:
        # squares side by side in the parts of registers
        return _zipped(asm, [asm.concat(rows[i::width]) for i in range(width)], width, 1)
    if count == within < width:
        zipped = _zipped(asm, list(rows), count, 1)
        return [
            asm.shuffle(row, row, range(first, first + count))
            for first in range(0, width, count)
            for row in zipped
        ]
    if count > width:
        parts = [transpose(asm, rows[i : i + width]) for i in range(0, count, width)]
        return [asm.concat(pieces) for pieces in zip(*parts, strict=True)]
    columns: list[Value] = []
    for first in range(0, width, count):
        lanes = range(first, first + count)
        square = rows if count == width else [asm.shuffle(row, row, lanes) for row in rows]
        columns += _square(asm, list(square))
    return columns


def _square(asm: Assembler, rows: list[Value]) -> list[Value]:
    """The transpose of a square of vectors: first within the register parts that one shuffle
    reaches, then of these parts.
    """
    count = len(rows)
    within = min(count, _LANE_BITS // rows[0].type.bits)
    parts = [_zipped(asm, rows[i : i + within], within, 1) for i in range(0, count, within)]
    by_column = [_unzipped(asm, list(group), within) for group in zip(*parts, strict=True)]
    return [by_column[c % within][c // within] for c in range(count)]


def _zipped(asm: Assembler, rows: list[Value], span: int, grain: int) -> list[Value]:
    """The transpose of each `span` lanes of all rows, in elements of `grain` lanes."""
    half, lanes = len(rows) // 2, rows[0].type.lanes
    elements = span // grain
    for _ in range(len(rows).bit_length() - 1):
        made: list[Value] = []
        for a, b in zip(rows[:half], rows[half:], strict=True):
            for start in (0, elements // 2):
                picked: list[int] = []
                for first in range(0, lanes, span):
                    for n in range(start, start + elements // 2):
                        for side in (0, lanes):
                            at = side + first + n * grain
                            picked += range(at, at + grain)
                made.append(asm.shuffle(a, b, picked))
        rows = made
    return rows


def _unzipped(asm: Assembler, rows: list[Value], grain: int) -> list[Value]:
    """The transpose of rows with as many elements, of `grain` lanes each, as there are rows: unzips
    pairs of rows into even and odd elements, which takes one instruction each if elements are parts
    of registers."""
    elements = 2 * rows[0].type.lanes // grain

    def every_other(start: int) -> list[int]:
        return [n * grain + i for n in range(start, elements, 2) for i in range(grain)]

    for _ in range(len(rows).bit_length() - 1):
        pairs = list(zip(rows[::2], rows[1::2], strict=True))
        rows = [asm.shuffle(a, b, every_other(start)) for start in (0, 1) for a, b in pairs]
    return rows
