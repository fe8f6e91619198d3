"""Writes LLVM IR text: typed values, folded integer constants, blocks and declarations.

Owns the syntax and nothing else; what is computed is decided by the modules beside it. Text rather
than `llvmlite.ir` objects, because writing is most of a small kernel's compile time. Names are
numbered in the order of creation, so the same calls give the same text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

from aot.base.records import dataclass
from aot.errors import InternalError


class Type(NamedTuple):
    """A scalar or a vector of `lanes` elements (0: scalar); `element` is LLVM's name."""

    element: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element

    @property
    def mangled(self) -> str:
        """The type inside an intrinsic's name."""
        short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
        element = short.get(self.element, self.element)
        return f"v{self.lanes}{element}" if self.lanes else element

    @property
    def bits(self) -> int:
        """The number of bits of an element."""
        return _FLOAT_BITS[self.element] if self.is_float else int(self.element[1:])

    @property
    def is_float(self) -> bool:
        return self.element in _FLOAT_BITS

    def of(self, element: str) -> Type:
        """A type of the same number of lanes with another element type."""
        return Type(element, self.lanes)


_FLOAT_BITS = {"half": 16, "float": 32, "double": 64}
PTR = Type("ptr")


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class Value:
    """An immutable SSA value or constant; `number` is set for a known integer, splat included."""

    ref: str
    type: Type
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


@dataclass(eq=False)
class Block:
    """A basic block, printed at the position where it was first entered.

    Attributes:
        known: its instructions whose result depends on their text alone.
        starts: addresses at a distance that is no number, by name: which line makes one, and how
            many addresses at a known distance from it there are.
    """

    label: str
    lines: list[str] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)
    starts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def text(self, many: float) -> list[str]:
        """The block's lines. A base pointer with `many` or more addresses is frozen, at no cost:
        LLVM's loop strength reduction then keeps one address and uses displacements for the others.
        """
        lines = list(self.lines)
        for ref, (line, count) in self.starts.items():
            if count >= many:
                made = lines[line].removeprefix(ref)
                lines[line] = f"{ref}.open{made}\n  {ref} = freeze ptr {ref}.open"
        return lines


@lru_cache(maxsize=4096)
def integer(value: int, type_: Type) -> Value:
    """An integer constant, splatted over a vector type; wraps to the width."""
    bits = type_.bits
    wrapped = value & ((1 << bits) - 1)
    if bits == 1:
        text = "true" if wrapped else "false"
    else:
        wrapped -= (wrapped >> (bits - 1)) << bits
        text = str(wrapped)
    ref = f"splat ({type_.element} {text})" if type_.lanes else text
    return Value(ref, type_, wrapped)


def real(value: float, type_: Type) -> Value:
    """A float constant rounded to the type, splatted over a vector type."""
    if type_.element == "half":
        text = f"0xH{struct.unpack('<H', _pack('<e', value))[0]:04X}"
    else:
        # LLVM writes a float as the bits of the double with its value.
        rounded = struct.unpack("<f", _pack("<f", value))[0] if type_.element == "float" else value
        text = f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    return Value(f"splat ({type_.element} {text})" if type_.lanes else text, type_)


def _pack(code: str, value: float) -> bytes:
    try:
        return struct.pack(code, value)
    except OverflowError:
        return struct.pack(code, float("inf") if value > 0 else float("-inf"))


def iota(type_: Type, step: int = 1) -> Value:
    """The integer vector 0, step, 2*step, ..."""
    items = ", ".join(integer(i * step, Type(type_.element)).__str__() for i in range(type_.lanes))
    return Value(f"<{items}>", type_)


def first_lanes(count: int, lanes: int) -> Value:
    """The mask of the first `count` of `lanes` lanes."""
    items = ", ".join(f"i1 {int(lane < count)}" for lane in range(lanes))
    return Value(f"<{items}>", Type("i1", lanes))


def poison(type_: Type) -> Value:
    return Value("poison", type_)


class Assembler:
    """Appends instructions to a current block.

    `entry` is a block of its own: what `in_entry` writes there dominates everything.
    """

    def __init__(self) -> None:
        self.entry = Block("entry")
        self.blocks: list[Block] = [self.entry]
        self.current = self.entry
        self.declarations: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self._count = 0

    def fresh(self, hint: str = "v") -> str:
        self._count += 1
        return f"%{hint}{self._count}"

    def emit(self, type_: Type, text: str) -> Value:
        """Appends an instruction with a result."""
        ref = self.fresh()
        self.current.lines.append(f"{ref} = {text}")
        return Value(ref, type_)

    def emit_pure(self, type_: Type, text: str) -> Value:
        """Appends an instruction that does not access memory, or returns the value of an equal one
        in the block: most repeated ones are parts of similar addresses."""
        found = self.current.known.get(text)
        if found is None:
            found = self.current.known[text] = self.emit(type_, text)
        return found

    def emit_void(self, text: str) -> None:
        self.current.lines.append(text)

    # Blocks.

    def block(self, hint: str) -> Block:
        self._count += 1
        return Block(f"{hint}{self._count}")

    def enter(self, block: Block) -> None:
        self.blocks.append(block)
        self.current = block

    def jump(self, block: Block) -> None:
        self.current.lines.append(f"br label %{block.label}")

    def branch(
        self, condition: Value, then: Block, otherwise: Block, odds: tuple[int, int] | None = None
    ) -> None:
        """Appends a conditional branch; `odds` are the relative frequencies, if known."""
        line = f"br i1 {condition.ref}, label %{then.label}, label %{otherwise.label}"
        if odds is not None:
            line += f', !prof !{{!"branch_weights", i32 {odds[0]}, i32 {odds[1]}}}'
        self.current.lines.append(line)

    def phi(self, type_: Type, sources: list[tuple[Value, Block]]) -> Value:
        pairs = ", ".join(f"[ {v.ref}, %{b.label} ]" for v, b in sources)
        return self.emit(type_, f"phi {type_} {pairs}")

    # Arithmetic. Integer operations on constants are folded, and x+0, x*1, x*0 vanish.

    def op(self, name: str, a: Value, b: Value) -> Value:
        """Emits a binary instruction; `name` may have flags, such as "add nsw"."""
        if a.number is not None or b.number is not None:
            folded = _fold(name.split(maxsplit=1)[0], a, b)
            if folded is not None:
                return folded
        return self.emit_pure(a.type, f"{name} {a.type} {a.ref}, {b.ref}")

    def icmp(self, predicate: str, a: Value, b: Value) -> Value:
        type_ = a.type.of("i1")
        if a.number is not None and b.number is not None:
            return integer(int(_compare(predicate, a.number, b.number, a.type.bits)), type_)
        return self.emit_pure(type_, f"icmp {predicate} {a.type} {a.ref}, {b.ref}")

    def fcmp(self, predicate: str, a: Value, b: Value) -> Value:
        return self.emit_pure(a.type.of("i1"), f"fcmp {predicate} {a.type} {a.ref}, {b.ref}")

    def fneg(self, a: Value) -> Value:
        return self.emit(a.type, f"fneg {a}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if condition.number is not None:
            return a if condition.number else b
        if a.ref == b.ref:
            return a
        return self.emit(a.type, f"select {condition}, {a}, {b}")

    def cast(self, name: str, a: Value, element: str) -> Value:
        """Appends a conversion (`sext`, `fptrunc`, `bitcast`, ...) of each element."""
        to = a.type.of(element)
        if to == a.type:
            return a
        if a.number is not None and name in ("sext", "zext", "trunc"):
            number = a.number
            if name == "zext":
                number &= (1 << a.type.bits) - 1
            return integer(number, to)
        return self.emit_pure(to, f"{name} {a} to {to}")

    def bitcast_to(self, a: Value, to: Type) -> Value:
        """Reinterprets a value's bits; the number of lanes may change."""
        return a if to == a.type else self.emit(to, f"bitcast {a} to {to}")

    def call(self, name: str, result: Type, args: list[Value], suffix: str = "") -> Value:
        """Appends a call of an intrinsic; `suffix` is the type part of its name."""
        full = f"{name}.{suffix}" if suffix else name
        self.declare(full, result, args)
        return self.emit(result, f"call {result} @{full}({', '.join(map(str, args))})")

    def declare(self, name: str, result: Type, args: list[Value]) -> None:
        types = ", ".join(str(a.type) for a in args)
        self.declarations[name] = f"declare {result} @{name}({types})"

    # Vectors.

    def splat(self, a: Value, lanes: int) -> Value:
        """`a` in every lane; a vector is returned as it is."""
        if a.type.lanes or not lanes:
            return a
        to = Type(a.type.element, lanes)
        if a.number is not None:
            return integer(a.number, to)
        if not a.ref.startswith("%"):
            return Value(f"splat ({a})", to)
        first = self.emit_pure(to, f"insertelement {to} poison, {a}, i32 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.emit_pure(to, f"shufflevector {first}, {to} poison, {mask}")

    def extract(self, a: Value, lane: int) -> Value:
        to = Type(a.type.element)
        if a.number is not None:
            return integer(a.number, to)
        return self.emit(to, f"extractelement {a}, i32 {lane}")

    def gather(self, values: list[Value]) -> Value:
        """A vector of these scalars."""
        to = Type(values[0].type.element, len(values))
        result = poison(to)
        for lane, value in enumerate(values):
            result = self.emit(to, f"insertelement {result}, {value}, i32 {lane}")
        return result

    def shuffle(self, a: Value, b: Value, lanes: Iterable[int]) -> Value:
        """A vector of selected lanes of two vectors: lanes of `b` are numbered after those of `a`,
        and a negative number leaves the lane undefined.
        """
        chosen = ["i32 poison" if lane < 0 else f"i32 {lane}" for lane in lanes]
        to = Type(a.type.element, len(chosen))
        mask = f"<{len(chosen)} x i32> <{', '.join(chosen)}>"
        return self.emit(to, f"shufflevector {a}, {b}, {mask}")

    def concat(self, parts: Sequence[Value]) -> Value:
        """The lanes of equal vectors, one after the other."""
        count = len(parts) * parts[0].type.lanes
        parts = [*parts, *[parts[-1]] * ((1 << (len(parts) - 1).bit_length()) - len(parts))]
        while len(parts) > 1:
            lanes = range(2 * parts[0].type.lanes)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffle(x, y, lanes) for x, y in pairs]
        (whole,) = parts
        return whole if whole.type.lanes == count else self.shuffle(whole, whole, range(count))

    # Memory.

    def offset(self, pointer: Value, offset: Value) -> Value:
        """The address `offset` bytes after `pointer`; wraps around."""
        if offset.number == 0:
            return pointer
        block, text = self.current, f"getelementptr i8, {pointer}, {offset}"
        found = block.known.get(text)
        if found is None:
            found = self.emit_pure(PTR, text)
            if block is self.entry:
                pass  # no loop, and lines may come in front of its own
            elif offset.number is None:
                block.starts[found.ref] = len(block.lines) - 1, 0
            elif pointer.ref in block.starts:
                line, count = block.starts[pointer.ref]
                block.starts[pointer.ref] = line, count + 1
        return found

    def load(self, type_: Type, pointer: Value, align: int, metadata: str = "") -> Value:
        return self.emit(type_, f"load {type_}, {pointer}, align {align}{metadata}")

    def store(self, value: Value, pointer: Value, align: int, metadata: str = "") -> None:
        self.emit_void(f"store {value}, {pointer}, align {align}{metadata}")

    def alloca(self, type_: Type, count: int, align: int) -> Value:
        """Allocates stack memory, in the entry block whatever block is current."""
        ref = self.fresh("slot")
        self.entry.lines.insert(0, f"{ref} = alloca [{count} x {type_}], align {align}")
        return Value(ref, PTR)


_WRAPPING = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def _fold(name: str, a: Value, b: Value) -> Value | None:
    rule = _WRAPPING.get(name)
    if rule is None:
        return None
    if a.number is not None and b.number is not None:
        return integer(rule(a.number, b.number), a.type)
    ones = -1 if a.type.bits > 1 else 1
    for x, y, is_swapped in ((a, b, False), (b, a, True)):
        n = y.number
        if n is None or (name == "sub" and is_swapped):
            continue
        if (
            (n == 0 and name in ("add", "sub", "or", "xor"))
            or (n == 1 and name == "mul")
            or (n == ones and name == "and")
        ):
            return x
        if (n == 0 and name in ("mul", "and")) or (n == ones and name == "or"):
            return y
    return None


def _compare(predicate: str, a: int, b: int, bits: int) -> bool:
    if predicate[0] == "u":
        mask = (1 << bits) - 1
        a, b = a & mask, b & mask
    match predicate[-2:]:
        case "eq":
            return a == b
        case "ne":
            return a != b
        case "lt":
            return a < b
        case "le":
            return a <= b
        case "gt":
            return a > b
        case "ge":
            return a >= b
    raise InternalError(f"unknown comparison {predicate}")
