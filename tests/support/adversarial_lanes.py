"""Shaders as devices with other lanes would run them, by other SPIR-V.

Subgroups of any size are written out over shared memory, which must be what it is on a device that
has them: nothing may depend on their size. Shared memory that a driver leaves as it was holds
numbers that no result may be made of. Knows SPIR-V by its specification, and nothing of our
emitter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from tests.support.adversarial_spirv import HEADER_WORDS, instruction, instructions

ENTRY_POINT, EXECUTION_MODE, LOCAL_SIZE, DECORATE, BUILT_IN = 15, 16, 17, 71, 11
VOID, BOOL, INT, FLOAT, VECTOR, ARRAY, POINTER, FUNCTION_TYPE = 19, 20, 21, 22, 23, 28, 32, 33
CONSTANT, COMPOSITE, FUNCTION, PARAMETER, FUNCTION_END, CALL = 43, 44, 54, 55, 56, 57
VARIABLE, LOAD, STORE, ACCESS_CHAIN, COPY_OBJECT = 59, 61, 62, 65, 83
I_ADD, F_ADD, I_MUL, F_MUL = 128, 129, 132, 133
SELECT, I_EQUAL, U_LESS, BITWISE_AND = 169, 170, 176, 199
SHIFT_RIGHT, BARRIER, PHI, LOOP_MERGE, LABEL, BRANCH, IF, RETURN, RETURN_VALUE = (
    *(194, 224, 245, 246, 248, 249, 250, 253, 254),
)
INPUT, WORKGROUP = 1, 4  # storage classes
WORKGROUP_SCOPE, ORDERED = 2, 0x108  # acquire and release, of shared memory
NUM_SUBGROUPS, SUBGROUP_ID, SUBGROUP_LANE, LOCAL_INDEX = 38, 40, 41, 29  # built-ins
ELECT = 333
SUMS = {349: I_ADD, 350: F_ADD, 351: I_MUL, 352: F_MUL}
# By an extremum of a subgroup, the comparison that its first operand wins.
EXTREMA = {353: 177, 354: 176, 356: 173, 357: 172}
GARBAGE = {8: 0x5D, 16: 0x7D5D, 32: 0x7FC5D5D5}  # NaN, of floats


Loop = tuple[list[int], int]
"""Words of a part of a function, and the id of what it comes to; 0: nothing."""
Step = Callable[[int, int], Loop]


class Words:
    """The instructions of a shader, with what is added to them.

    Attributes:
        bound: one more than the largest id.
        types: (opcode, operands) of each type and constant, by id.
        built_ins: variables of built-ins, by number.
        decorations, added: instructions before the types, and before the functions.
        functions: behind all others.
    """

    def __init__(self, spirv: bytes) -> None:
        self.words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
        self.bound = self.words[3]
        self.list = list(instructions(self.words))
        self.types = {
            (o[0] if op <= FUNCTION_TYPE else o[1]): (op, o)
            for op, o in self.list
            if VOID <= op <= COMPOSITE
        }
        self.built_ins = {o[2]: o[0] for op, o in self.list if op == DECORATE and o[1] == BUILT_IN}
        self.decorations: list[int] = []
        self.interface: list[int] = []
        self.added: list[int] = []
        self.functions: list[int] = []

    def fresh(self) -> int:
        self.bound += 1
        return self.bound - 1

    def type(self, opcode: int, *operands: int) -> int:
        """The id of a type, which is added where it is not there."""
        for made, (op, found) in self.types.items():
            if op == opcode and found[1:] == list(operands):
                return made
        made = self.fresh()
        self.types[made] = opcode, [made, *operands]
        self.added += instruction(opcode, made, *operands)
        return made

    def constant(self, type: int, *operands: int, opcode: int = CONSTANT) -> int:
        for made, (op, found) in self.types.items():
            if op == opcode and found[0] == type and found[2:] == list(operands):
                return made
        made = self.fresh()
        self.types[made] = opcode, [type, made, *operands]
        self.added += instruction(opcode, type, made, *operands)
        return made

    def u32(self, value: int) -> int:
        return self.constant(self.type(INT, 32, 0), value)

    def variable(self, storage: int, pointee: int) -> int:
        made = self.fresh()
        type = self.type(POINTER, storage, pointee)
        self.added += instruction(VARIABLE, type, made, storage)
        return made

    def built_in(self, number: int) -> int:
        """The input variable of a built-in of one u32."""
        if number not in self.built_ins:
            made = self.built_ins[number] = self.variable(INPUT, self.type(INT, 32, 0))
            self.decorations += instruction(DECORATE, made, BUILT_IN, number)
            self.interface.append(made)
        return self.built_ins[number]

    def lanes(self) -> int:
        sizes = [o[2:] for op, o in self.list if op == EXECUTION_MODE and o[1] == LOCAL_SIZE]
        return prod(sizes[0])

    def shared(self) -> list[tuple[int, int, int]]:
        """(variable, type of an element, count) of each array in shared memory."""
        found = []
        for op, o in self.list:
            if op == VARIABLE and o[2] == WORKGROUP:
                opcode, array = self.types[self.types[o[0]][1][2]]
                assert opcode == ARRAY
                found.append((o[1], array[1], self.types[array[2]][1][2]))
        return found

    def garbage(self, type: int) -> int:
        opcode, operands = self.types[type]
        if opcode == VECTOR:
            parts = [self.garbage(operands[1])] * operands[2]
            return self.constant(type, *parts, opcode=COMPOSITE)
        return self.constant(type, GARBAGE[operands[1]])

    def barrier(self) -> list[int]:
        scope, order = self.u32(WORKGROUP_SCOPE), self.u32(ORDERED)
        return instruction(BARRIER, scope, scope, order)

    def finish(self, body: Callable[[int, list[int]], Sequence[int] | None]) -> bytes:
        """The words; `body` may have others in place of an instruction of a function."""
        parts: list[int] = []
        is_before, is_typed = True, False
        for opcode, operands in self.list:
            if opcode == ENTRY_POINT:
                operands = [*operands, *self.interface]
            if VOID <= opcode <= FUNCTION_TYPE and not is_typed:
                is_typed = True
                parts += self.decorations
            if opcode == FUNCTION and is_before:
                is_before = False
                parts += self.added
            found = None if is_before else body(opcode, operands)
            parts += instruction(opcode, *operands) if found is None else found
        made = [*self.words[:3], self.bound, self.words[4], *parts, *self.functions]
        assert HEADER_WORDS == 5
        return struct.pack(f"<{len(made)}I", *made)

    def loop(self, first: int, end: int, carried: tuple[int, int] | None, step: Step) -> Loop:
        """(words of a loop over u32 from id `first` to id `end`, the last value carried); begins in
        the block before it and ends in one behind. `carried` is (type, first value); `step` makes
        the body of (counter, value)."""
        u32, boolean = self.type(INT, 32, 0), self.type(BOOL)
        entry, head, test, inner, onward, behind = (self.fresh() for _ in range(6))
        counter, following, more = (self.fresh() for _ in range(3))
        value, phi = 0, []
        if carried is not None:
            value = self.fresh()
        body, result = step(counter, value)
        if carried is not None:
            phi = instruction(PHI, carried[0], value, carried[1], entry, result, onward)
        return [
            *instruction(BRANCH, entry),
            *instruction(LABEL, entry),
            *instruction(BRANCH, head),
            *instruction(LABEL, head),
            *instruction(PHI, u32, counter, first, entry, following, onward),
            *phi,
            *instruction(LOOP_MERGE, behind, onward, 0),
            *instruction(BRANCH, test),
            *instruction(LABEL, test),
            *instruction(U_LESS, boolean, more, counter, end),
            *instruction(IF, more, inner, behind),
            *instruction(LABEL, inner),
            *body,
            *instruction(BRANCH, onward),
            *instruction(LABEL, onward),
            *instruction(I_ADD, u32, following, counter, self.u32(1)),
            *instruction(BRANCH, head),
            *instruction(LABEL, behind),
        ], value


def with_garbage(spirv: bytes) -> bytes:
    """The shader, whose shared memory is filled with NaN and large numbers before it begins."""
    shader = Words(spirv)
    arrays = shader.shared()
    if not arrays:
        return spirv
    poison = shader.fresh()
    void = shader.type(VOID)
    body: list[int] = []
    for variable, element, count in arrays:
        pointer, garbage = shader.type(POINTER, WORKGROUP, element), shader.garbage(element)

        fill = partial(_stored, shader, variable, pointer, garbage)
        words, _ = shader.loop(shader.u32(0), shader.u32(count), None, fill)
        body += words
    shader.functions += [
        *instruction(FUNCTION, void, poison, 0, shader.type(FUNCTION_TYPE, void)),
        *instruction(LABEL, shader.fresh()),
        *body,
        *shader.barrier(),
        *instruction(RETURN),
        *instruction(FUNCTION_END),
    ]
    begins = iter([True])
    call = instruction(CALL, void, shader.fresh(), poison)

    def behind_variables(opcode: int, operands: list[int]) -> list[int] | None:
        if opcode in (FUNCTION, LABEL, VARIABLE) or not next(begins, False):
            return None
        return [*call, *instruction(opcode, *operands)]

    return shader.finish(behind_variables)


def _stored(shader: Words, variable: int, pointer: int, garbage: int, counter: int, _: int) -> Loop:
    place = shader.fresh()
    chain = instruction(ACCESS_CHAIN, pointer, place, variable, counter)
    return [*chain, *instruction(STORE, place, garbage)], 0


def in_subgroups(spirv: bytes, size: int) -> bytes:
    """The shader as a device with subgroups of `size` lanes runs it; it must not shuffle."""
    shader = Words(spirv)
    if not any(opcode == ELECT or opcode in SUMS or opcode in EXTREMA for opcode, _ in shader.list):
        return spirv
    u32, boolean, lanes = shader.type(INT, 32, 0), shader.type(BOOL), shader.lanes()
    own = shader.built_in(LOCAL_INDEX)
    numbers = {v: n for n, v in shader.built_ins.items()}
    made: dict[tuple[int, int], int] = {}
    reductions = {**SUMS, **EXTREMA}
    for opcode, operands in shader.list:
        if opcode in reductions and (opcode, operands[0]) not in made:
            made[opcode, operands[0]] = _reduction(shader, opcode, operands[0], size, lanes, own)
    shift, mask = shader.u32(size.bit_length() - 1), shader.u32(size - 1)
    zero, count = shader.u32(0), shader.u32(-(-lanes // size))

    def of_lane(opcode: int, result: int, by: int) -> list[int]:
        lane = shader.fresh()
        return [*instruction(LOAD, u32, lane, own), *instruction(opcode, u32, result, lane, by)]

    def change(opcode: int, operands: list[int]) -> list[int] | None:
        if opcode == LOAD and numbers.get(operands[2]) == SUBGROUP_ID:
            return of_lane(SHIFT_RIGHT, operands[1], shift)
        if opcode == LOAD and numbers.get(operands[2]) == SUBGROUP_LANE:
            return of_lane(BITWISE_AND, operands[1], mask)
        if opcode == LOAD and numbers.get(operands[2]) == NUM_SUBGROUPS:
            return instruction(COPY_OBJECT, u32, operands[1], count)
        if opcode == ELECT:
            lane = shader.fresh()
            is_first = instruction(I_EQUAL, boolean, operands[1], lane, zero)
            return [*of_lane(BITWISE_AND, lane, mask), *is_first]
        if opcode in reductions:
            type, result, _, operation, value = operands
            assert operation == 0  # a reduction of all
            return instruction(CALL, type, result, made[opcode, type], value)
        return None

    return shader.finish(change)


def _reduction(shader: Words, opcode: int, type: int, size: int, lanes: int, own: int) -> int:
    """A function that reduces its argument over the subgroup of a lane, in shared memory."""
    u32, boolean = shader.type(INT, 32, 0), shader.type(BOOL)
    pointer = shader.type(POINTER, WORKGROUP, type)
    shared = shader.variable(WORKGROUP, shader.type(ARRAY, type, shader.u32(lanes)))
    function, value, lane, place, first, behind, is_short, end, start, begin, second = (
        shader.fresh() for _ in range(11)
    )

    def both(counter: int, so_far: int) -> Loop:
        at, one, is_first, total = (shader.fresh() for _ in range(4))
        load = [
            *instruction(ACCESS_CHAIN, pointer, at, shared, counter),
            *instruction(LOAD, type, one, at),
        ]
        if opcode in SUMS:
            return [*load, *instruction(SUMS[opcode], type, total, so_far, one)], total
        compare = instruction(EXTREMA[opcode], boolean, is_first, so_far, one)
        return [*load, *compare, *instruction(SELECT, type, total, is_first, so_far, one)], total

    loop, total = shader.loop(second, end, (type, start), both)
    limit = shader.u32(lanes)
    shader.functions += [
        *instruction(FUNCTION, type, function, 0, shader.type(FUNCTION_TYPE, type, type)),
        *instruction(PARAMETER, type, value),
        *instruction(LABEL, shader.fresh()),
        *instruction(LOAD, u32, lane, own),
        *instruction(ACCESS_CHAIN, pointer, place, shared, lane),
        *instruction(STORE, place, value),
        *shader.barrier(),
        *instruction(BITWISE_AND, u32, first, lane, shader.u32(~(size - 1) & 0xFFFFFFFF)),
        *instruction(I_ADD, u32, behind, first, shader.u32(size)),
        *instruction(U_LESS, boolean, is_short, limit, behind),
        *instruction(SELECT, u32, end, is_short, limit, behind),
        *instruction(ACCESS_CHAIN, pointer, begin, shared, first),
        *instruction(LOAD, type, start, begin),
        *instruction(I_ADD, u32, second, first, shader.u32(1)),
        *loop,
        *shader.barrier(),
        *instruction(RETURN_VALUE, total),
        *instruction(FUNCTION_END),
    ]
    return function


def without_shared_stores(spirv: bytes) -> bytes:
    """The shader, which stores nothing to shared memory: wrong, if it reads what it has stored."""
    shader = Words(spirv)
    shared = {variable for variable, _, _ in shader.shared()}
    places = {o[1] for op, o in shader.list if op == ACCESS_CHAIN and o[2] in shared}
    return shader.finish(lambda op, o: [] if op == STORE and o[0] in places else None)
