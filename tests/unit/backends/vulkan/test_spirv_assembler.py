"""The assembler's modules: section order, uniquing, control flow, numbers of the table."""

from __future__ import annotations

import re
import struct
import subprocess

import pytest

from aot.backends.vulkan import spirv
from aot.backends.vulkan.assembler import Assembler, FunctionBody, instruction, string_words
from aot.backends.vulkan.spirv import BuiltIn, Op, StorageClass
from aot.errors import InternalError
from aot.target import selection as targets
from tests.support import matrix_products, vulkan_running
from tests.support.spirv_reader import instructions, opcodes
from tests.support.vulkan_kernels import CASES

# Each opcode's section (specification 2.4); everything else stands in the function.
SECTIONS = {
    Op.CAPABILITY: 0,
    Op.EXT_INST_IMPORT: 1,
    Op.MEMORY_MODEL: 2,
    Op.ENTRY_POINT: 3,
    Op.EXECUTION_MODE: 4,
    Op.DECORATE: 5,
    Op.MEMBER_DECORATE: 5,
}
GLOBAL_SECTION, FUNCTION_SECTION = 6, 7


class Writer:
    """A function that stores to element 0 of a storage buffer."""

    def __init__(self) -> None:
        self.asm = Assembler()
        self.body = FunctionBody(self.asm)
        asm = self.asm
        words = asm.runtime_array(asm.u32, stride=4)
        self.buffer = asm.resource(
            StorageClass.STORAGE_BUFFER, asm.block(words, is_written=True), 3
        )
        lanes = self.body.result(
            Op.LOAD, asm.vector(asm.u32, 3), asm.builtin(BuiltIn.LOCAL_INVOCATION_ID)
        )
        self.lane = self.body.result(Op.COMPOSITE_EXTRACT, asm.u32, lanes, 0)

    def number(self, value: int) -> int:
        return self.asm.constant(self.asm.u32, value)

    def is_less(self, a: int, b: int) -> int:
        return self.body.result(Op.U_LESS_THAN, self.asm.boolean, a, b)

    def add(self, a: int, b: int) -> int:
        return self.body.result(Op.I_ADD, self.asm.u32, a, b)

    def store(self, value: int) -> None:
        pointer = self.body.result(
            Op.ACCESS_CHAIN,
            self.asm.pointer(StorageClass.STORAGE_BUFFER, self.asm.u32),
            self.buffer,
            self.number(0),
            self.number(0),
        )
        self.body.emit(Op.STORE, pointer, value)

    def finish(self) -> bytes:
        module = self.asm.finish(self.body, (8, 1, 1))
        vulkan_running.validate(module)
        return module


def test_header_and_bound() -> None:
    w = Writer()
    w.store(w.number(7))
    module = w.finish()
    magic, version, generator, bound, schema = struct.unpack_from("<5I", module)
    assert (magic, version, generator, schema) == (0x07230203, 0x00010300, 0, 0)
    results = {operands[0] for op, operands in instructions(module) if op is Op.LABEL}
    assert max(results) < bound == w.asm.fresh_id()


def test_what_is_not_valid_is_refused_with_the_validator_s_words() -> None:
    w = Writer()
    w.store(w.number(7))
    module = w.finish()
    with pytest.raises(AssertionError, match="^Invalid SPIR-V magic number.$"):
        vulkan_running.validate(b"\0" * len(module))
    local_size = struct.pack("<3I", 8, 1, 1)
    assert module.count(local_size) == 1
    with pytest.raises(AssertionError, match=r"Local Size execution mode must not have a product"):
        vulkan_running.validate(module.replace(local_size, struct.pack("<3I", 8, 0, 1)))


def section_of(op: Op, is_in_function: bool) -> int:
    if is_in_function:
        return FUNCTION_SECTION
    return SECTIONS.get(op, GLOBAL_SECTION)


@pytest.mark.parametrize("name", CASES)
def test_sections_are_in_order(name: str) -> None:
    module = vulkan_running.build(CASES[name]().kernel).words
    sections, is_in_function = [], False
    for op in opcodes(module):
        is_in_function = is_in_function or op is Op.FUNCTION
        sections.append(section_of(op, is_in_function))
    assert sections == sorted(sections)


def test_types_and_constants_are_made_once() -> None:
    asm = Assembler()
    assert asm.u32 == asm.u32
    assert asm.vector(asm.f32, 2) == asm.vector(asm.f32, 2) != asm.vector(asm.f32, 3)
    assert asm.constant(asm.u32, 5) == asm.constant(asm.u32, 5)
    assert asm.constant(asm.u32, 5) != asm.constant(asm.f32, 5)
    assert asm.constant(asm.boolean, 1) != asm.constant(asm.boolean, 0)
    assert asm.array(asm.u32, 4) == asm.array(asm.u32, 4) != asm.array(asm.u32, 4, stride=4)
    assert asm.block(asm.u32, is_written=True) != asm.block(asm.u32, is_written=False)
    assert asm.builtin(BuiltIn.WORKGROUP_ID) == asm.builtin(BuiltIn.WORKGROUP_ID)
    assert asm.variable(StorageClass.WORKGROUP, asm.u32) != asm.variable(
        StorageClass.WORKGROUP, asm.u32
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [("", [0]), ("abc", [0x00636261]), ("main", [0x6E69616D, 0]), ("abcde", [0x64636261, 0x65])],
)
def test_strings_end_in_zero(text: str, words: list[int]) -> None:
    assert string_words(text) == words


def test_an_instruction_has_at_most_65535_words() -> None:
    assert len(instruction(Op.TYPE_STRUCT, *range(0xFFFE))) == 0xFFFF
    with pytest.raises(InternalError, match="TYPE_STRUCT has 65536 words"):
        instruction(Op.TYPE_STRUCT, *range(0xFFFF))


def test_if_joins_by_phi() -> None:
    w = Writer()
    selection = w.body.open_if(w.is_less(w.lane, w.number(4)), has_else=True)
    then = w.add(w.lane, w.number(1))
    w.body.open_else(selection)
    otherwise = w.add(w.lane, w.number(2))
    then_block, else_block = w.body.close_if(selection)
    phi = w.body.phi(w.asm.u32, [(then, then_block), (otherwise, else_block)])
    w.store(phi.id)
    found = opcodes(w.finish())
    assert found.count(Op.PHI) == 1
    assert found[found.index(Op.SELECTION_MERGE) + 1] is Op.BRANCH_CONDITIONAL


def test_if_without_else_joins_with_the_header() -> None:
    w = Writer()
    header = w.body.block
    selection = w.body.open_if(w.is_less(w.lane, w.number(4)), has_else=False)
    then = w.add(w.lane, w.number(1))
    then_block, else_block = w.body.close_if(selection)
    assert else_block == header
    w.store(w.body.phi(w.asm.u32, [(then, then_block), (w.lane, else_block)]).id)
    w.finish()


def test_nested_loops_carry_values_and_drop_unused_phis() -> None:
    w = Writer()
    zero, one = w.number(0), w.number(1)
    outer = w.body.open_loop([(w.asm.u32, zero), (w.asm.u32, one), (w.asm.u32, one)])
    w.body.begin_body(outer, w.is_less(outer.phis[0].id, w.number(5)))
    inner = w.body.open_loop([(w.asm.u32, zero), (w.asm.u32, outer.phis[1].id)])
    w.body.begin_body(inner, w.is_less(inner.phis[0].id, outer.phis[0].id))
    total = w.add(inner.phis[1].id, inner.phis[0].id)
    w.body.close_loop(inner, [w.add(inner.phis[0].id, one), total])
    following = w.add(outer.phis[0].id, one)
    # The third value is carried round and never looked at.
    w.body.close_loop(outer, [following, inner.phis[1].id, outer.phis[2].id])
    w.store(outer.phis[1].id)
    found = opcodes(w.finish())
    assert found.count(Op.LOOP_MERGE) == 2
    assert found.count(Op.PHI) == 4


def test_code_can_be_added_before_an_open_loop() -> None:
    w = Writer()
    before = w.body.tail
    loop = w.body.open_loop([(w.asm.u32, w.number(0))])
    w.body.begin_body(loop, w.is_less(loop.phis[0].id, w.number(3)))
    early = w.body.result(Op.I_MUL, w.asm.u32, w.lane, w.lane, into=before)
    w.store(early)
    w.body.close_loop(loop, [w.add(loop.phis[0].id, w.number(1))])
    found = opcodes(w.finish())
    assert found.index(Op.I_MUL) < found.index(Op.LOOP_MERGE)


def test_function_variables_come_first() -> None:
    w = Writer()
    value = w.add(w.lane, w.lane)
    variable = w.body.variable(w.asm.u32)
    w.body.emit(Op.STORE, variable, value)
    w.store(w.body.result(Op.LOAD, w.asm.u32, variable))
    found = opcodes(w.finish())
    assert found[found.index(Op.FUNCTION) + 2] is Op.VARIABLE


def test_same_calls_same_bytes() -> None:
    def build() -> bytes:
        w = Writer()
        w.store(w.add(w.lane, w.number(3)))
        return w.finish()

    assert build() == build()


def camel(name: str) -> str:
    """F_ADD as the disassembler writes it: FAdd; a digit keeps its x: 2X16 is 2x16."""
    text = "".join(p if p == "KHR" else p.capitalize() for p in name.split("_"))
    return re.sub(r"(\d)X(\d)", r"\1x\2", text)


@pytest.fixture(scope="module")
def listings() -> list[tuple[bytes, str]]:
    from tests.support.hard_kernels import HARD_KERNELS

    kernels = [make().kernel for make in CASES.values()]
    kernels += [case.kernel for case in HARD_KERNELS]
    shaders = [vulkan_running.build(kernel) for kernel in kernels]
    modules = [s.words for shader in shaders for s in (shader, shader.texel) if s is not None]
    narrow = targets.load("vulkan-android-15")  # what SPIR-V 1.3 has as an extension, too
    modules.append(vulkan_running.build(CASES["boundary_types"]().kernel, narrow).words)
    matrix = targets.load("lavapipe-matrix")
    kernel = matrix_products.CASES["conv"].lowered(matrix, 16)
    modules.append(vulkan_running.build(kernel, matrix).words)
    return [(module, vulkan_running.disassemble(module)) for module in modules]


def test_numbers_have_the_names_of_the_specification(listings: list[tuple[bytes, str]]) -> None:
    """Every opcode that any kernel here uses is what a disassembler calls it."""
    seen: set[Op] = set()
    for module, text in listings:
        lines = [line for line in text.splitlines() if not line.startswith(";")]
        for (op, operands), line in zip(instructions(module), lines, strict=True):
            match = re.search(r"\bOp(\w+)", line)
            assert match is not None
            assert match[1] == camel(op.name), line
            seen.add(op)
            if op is Op.EXT_INST:
                assert f" {camel(spirv.Glsl(operands[3]).name)} " in line
            if op is Op.DECORATE:
                assert f" {camel(spirv.Decoration(operands[1]).name)}" in line
    for op in set(Op) - seen:
        assert assembled_opcode(f"Op{camel(op.name)}") == op


def assembled_opcode(name: str) -> int:
    """The number that spirv-as gives a value instruction, with as many operands as it takes."""
    plain = [" ".join(f"%{number}" for number in range(2, 2 + count)) for count in range(1, 5)]
    for operands in (*plain, "%2 %3 Reduce %4"):
        done = subprocess.run(
            [vulkan_running.spirv_tool("spirv-as"), "-o", "-", "-"],
            input=f"%1 = {name} {operands}".encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return int(struct.unpack_from("<H", done.stdout, 20)[0])
    raise AssertionError(f"spirv-as does not know {name}")
