"""A structured assembler for SPIR-V 1.3 compute shaders of one function.

Owns the order of sections, ids, the uniquing of types and constants, decorations and structured
control flow; words come out little endian and the same for the same calls. Knows nothing of
kernels, and writes only what `spirv` has numbers for.
"""

from __future__ import annotations

import struct
from dataclasses import field

from aot.backends.vulkan.spirv import (
    ADDRESSING_LOGICAL,
    EXECUTION_MODE_LOCAL_SIZE,
    EXECUTION_MODEL_GL_COMPUTE,
    EXTENSIONS,
    GLSL_STD_450,
    MAGIC,
    MEMORY_MODEL_GLSL450,
    MEMORY_MODEL_VULKAN,
    VERSION_1_3,
    BuiltIn,
    Capability,
    Decoration,
    LoopControl,
    Op,
    StorageClass,
)
from aot.backends.vulkan.type_rules import check_types
from aot.base.records import dataclass
from aot.errors import InternalError

MAX_INSTRUCTION_WORDS = 0xFFFF

Chunk = list[int]


def instruction(op: Op, *operands: int) -> list[int]:
    """The words of one instruction."""
    count = 1 + len(operands)
    if count > MAX_INSTRUCTION_WORDS:
        raise InternalError(f"spir-v instruction {op.name} has {count} words")
    return [count << 16 | op, *operands]


def string_words(text: str) -> list[int]:
    """A literal string: UTF-8, at least one NUL, padded to whole words."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


class Assembler:
    """A module under construction; types, constants and builtins are made once each."""

    def __init__(self) -> None:
        self._next_id = 1
        self._capabilities: list[Capability] = []
        self._imports: list[int] = []
        self._annotations: list[int] = []
        self._globals: list[int] = []
        self._unique: dict[tuple[int, ...], int] = {}
        self._interface: list[int] = []
        self._builtins: dict[BuiltIn, int] = {}
        self._glsl = 0
        # What a constant's id stands for: (type id, bits), for folding.
        self.constant_bits: dict[int, tuple[int, int]] = {}
        self.capability(Capability.SHADER)

    def fresh_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def capability(self, capability: Capability) -> None:
        if capability not in self._capabilities:
            self._capabilities.append(capability)

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        return tuple(self._capabilities)

    @property
    def glsl(self) -> int:
        """The id of the extended set GLSL.std.450, imported by its first use."""
        if not self._glsl:
            self._glsl = self.fresh_id()
            self._imports += instruction(
                Op.EXT_INST_IMPORT, self._glsl, *string_words(GLSL_STD_450)
            )
        return self._glsl

    def decorate(self, target: int, decoration: Decoration, *literals: int) -> None:
        self._annotations += instruction(Op.DECORATE, target, decoration, *literals)

    # Types

    def _type(self, op: Op, *operands: int) -> int:
        key = (op, *operands)
        if key not in self._unique:
            self._unique[key] = self.fresh_id()
            self._globals += instruction(op, self._unique[key], *operands)
        return self._unique[key]

    @property
    def void(self) -> int:
        return self._type(Op.TYPE_VOID)

    @property
    def boolean(self) -> int:
        return self._type(Op.TYPE_BOOL)

    @property
    def u32(self) -> int:
        return self._type(Op.TYPE_INT, 32, 0)

    @property
    def f32(self) -> int:
        return self._type(Op.TYPE_FLOAT, 32)

    @property
    def f16(self) -> int:
        return self._type(Op.TYPE_FLOAT, 16)

    def integer(self, bits: int) -> int:
        """Unsigned, as all integers are: signs are in the opcodes."""
        return self._type(Op.TYPE_INT, bits, 0)

    def vector(self, element: int, count: int) -> int:
        return self._type(Op.TYPE_VECTOR, element, count)

    @property
    def texels(self) -> int:
        """A buffer of vectors of four u32, read only."""
        buffer, sampled, unknown = 5, 1, 0
        return self._type(Op.TYPE_IMAGE, self.u32, buffer, 0, 0, 0, sampled, unknown)

    def matrix(self, element: int, scope: int, rows: int, columns: int, use: int) -> int:
        """A matrix that the lanes of `scope` hold together; all but the element are constants."""
        return self._type(Op.TYPE_COOPERATIVE_MATRIX_KHR, element, scope, rows, columns, use)

    def pointer(self, storage: StorageClass, pointee: int) -> int:
        return self._type(Op.TYPE_POINTER, storage, pointee)

    def array(self, element: int, count: int, stride: int | None = None) -> int:
        """An array type; a `stride` in bytes gives it a layout and makes it another type."""
        return self._array((element, self.constant(self.u32, count)), stride)

    def runtime_array(self, element: int, stride: int) -> int:
        return self._array((element,), stride)

    def _array(self, operands: tuple[int, ...], stride: int | None) -> int:
        op = Op.TYPE_ARRAY if len(operands) == 2 else Op.TYPE_RUNTIME_ARRAY
        key = (op, *operands, -1 if stride is None else stride)
        if key not in self._unique:
            self._unique[key] = self.fresh_id()
            self._globals += instruction(op, self._unique[key], *operands)
            if stride is not None:
                self.decorate(self._unique[key], Decoration.ARRAY_STRIDE, stride)
        return self._unique[key]

    def block(self, member: int, *, is_written: bool, is_coherent: bool = False) -> int:
        """A struct of one member at offset 0, decorated as an interface block."""
        key = (Op.TYPE_STRUCT, member, int(is_written), int(is_coherent))
        if key not in self._unique:
            made = self._unique[key] = self.fresh_id()
            self._globals += instruction(Op.TYPE_STRUCT, made, member)
            self.decorate(made, Decoration.BLOCK)
            self._annotations += instruction(Op.MEMBER_DECORATE, made, 0, Decoration.OFFSET, 0)
            if not is_written:
                self._annotations += instruction(
                    Op.MEMBER_DECORATE, made, 0, Decoration.NON_WRITABLE
                )
            if is_coherent:
                self._annotations += instruction(Op.MEMBER_DECORATE, made, 0, Decoration.COHERENT)
        return self._unique[key]

    # Constants and variables

    def constant(self, type_id: int, bits: int) -> int:
        """A scalar constant of up to 32 bits by its bits; BOOL takes 0 or 1."""
        if type_id == self.boolean:
            key: tuple[int, ...] = (Op.CONSTANT_TRUE if bits else Op.CONSTANT_FALSE, type_id)
        else:
            key = (Op.CONSTANT, type_id, bits)
        if key not in self._unique:
            made = self._unique[key] = self.fresh_id()
            self._globals += instruction(Op(key[0]), key[1], made, *key[2:])
            self.constant_bits[made] = (type_id, bits)
        return self._unique[key]

    def composite(self, type_id: int, *parts: int) -> int:
        """A constant of constants; of a matrix all elements are the one given."""
        key = (Op.CONSTANT_COMPOSITE, type_id, *parts)
        if key not in self._unique:
            self._unique[key] = self.fresh_id()
            self._globals += instruction(Op.CONSTANT_COMPOSITE, type_id, self._unique[key], *parts)
        return self._unique[key]

    def null(self, type_id: int) -> int:
        """The zero of any type."""
        key = (Op.CONSTANT_NULL, type_id)
        if key not in self._unique:
            self._unique[key] = self.fresh_id()
            self._globals += instruction(Op.CONSTANT_NULL, type_id, self._unique[key])
        return self._unique[key]

    def variable(self, storage: StorageClass, pointee: int) -> int:
        """A global variable; never uniqued."""
        made = self.fresh_id()
        self._globals += instruction(Op.VARIABLE, self.pointer(storage, pointee), made, storage)
        return made

    def resource(self, storage: StorageClass, block: int, binding: int) -> int:
        """A block at `binding` of descriptor set 0."""
        made = self.variable(storage, block)
        self.decorate(made, Decoration.DESCRIPTOR_SET, 0)
        self.decorate(made, Decoration.BINDING, binding)
        return made

    def builtin(self, builtin: BuiltIn) -> int:
        """The input variable that holds `builtin`: three u32, or a single one of subgroups."""
        if builtin not in self._builtins:
            type = self.u32 if builtin.is_scalar else self.vector(self.u32, 3)
            made = self.variable(StorageClass.INPUT, type)
            self.decorate(made, Decoration.BUILT_IN, builtin)
            self._builtins[builtin] = made
            self._interface.append(made)
        return self._builtins[builtin]

    def finish(
        self,
        function: FunctionBody,
        workgroup_size: tuple[int, int, int],
        entry_point: str = "main",
    ) -> bytes:
        """The whole module, with `function` as its only entry point.

        Raises:
            InternalError: an instruction does not take its operands' types.
        """
        void_function = self._type(Op.TYPE_FUNCTION, self.void)
        body = function.finish(self.void, void_function)
        check_types(self._globals, body)
        words: list[int] = [MAGIC, VERSION_1_3, 0, self._next_id, 0]
        for capability in self._capabilities:
            words += instruction(Op.CAPABILITY, capability)
        for name in sorted(EXTENSIONS[c] for c in self._capabilities if c in EXTENSIONS):
            words += instruction(Op.EXTENSION, *string_words(name))
        words += self._imports
        is_vulkan = Capability.VULKAN_MEMORY_MODEL in self._capabilities
        model = MEMORY_MODEL_VULKAN if is_vulkan else MEMORY_MODEL_GLSL450
        words += instruction(Op.MEMORY_MODEL, ADDRESSING_LOGICAL, model)
        words += instruction(
            Op.ENTRY_POINT,
            EXECUTION_MODEL_GL_COMPUTE,
            function.id,
            *string_words(entry_point),
            *self._interface,
        )
        words += instruction(
            Op.EXECUTION_MODE, function.id, EXECUTION_MODE_LOCAL_SIZE, *workgroup_size
        )
        words += self._annotations + self._globals + body
        return struct.pack(f"<{len(words)}I", *words)


@dataclass
class Phi:
    """A phi of a structured construct: `incoming` is (value, block) pairs, completed at its end."""

    id: int
    type: int
    chunk: Chunk
    incoming: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Selection:
    """An open `if`; `header` is the block that branches."""

    header: int
    otherwise: int
    merge: int
    then_exit: int = 0


@dataclass
class Loop:
    """An open loop; its header holds the phis and the condition."""

    header: int
    latch: int
    merge: int
    phis: list[Phi]


class FunctionBody:
    """Blocks of the one function, written front to back.

    Code is kept in chunks: what was the tail before a construct opened can still be appended to
    and then runs before the construct, which is how loop-invariant values leave a loop.
    """

    def __init__(self, assembler: Assembler) -> None:
        self._asm = assembler
        self.id = assembler.fresh_id()
        self._variables: Chunk = []
        self._chunks: list[Chunk] = []
        self._phis: list[Phi] = []
        self.block = 0
        self._label(assembler.fresh_id())
        self._chunks.append([])

    @property
    def tail(self) -> Chunk:
        """The chunk to which instructions are appended now."""
        return self._chunks[-1]

    def _label(self, label: int) -> None:
        self._chunks.append(instruction(Op.LABEL, label))
        self.block = label

    def emit(self, op: Op, *operands: int) -> None:
        """An instruction without a result, at the tail."""
        self.tail.extend(instruction(op, *operands))

    def result(self, op: Op, type_id: int, *operands: int, into: Chunk | None = None) -> int:
        """An instruction with a result, at the tail or at the end of an earlier chunk."""
        made = self._asm.fresh_id()
        (self.tail if into is None else into).extend(instruction(op, type_id, made, *operands))
        return made

    def variable(self, pointee: int) -> int:
        """Declares a Function variable, at the start of the first block."""
        made = self._asm.fresh_id()
        self._variables += instruction(
            Op.VARIABLE,
            self._asm.pointer(StorageClass.FUNCTION, pointee),
            made,
            StorageClass.FUNCTION,
        )
        return made

    def phi(self, type_id: int, incoming: list[tuple[int, int]]) -> Phi:
        """Adds a phi to the open block, which has only phis so far."""
        made = Phi(self._asm.fresh_id(), type_id, [], list(incoming))
        self._chunks += [made.chunk, []]
        self._phis.append(made)
        return made

    # Structured control flow

    def open_if(self, condition: int, *, has_else: bool) -> Selection:
        """Opens an if statement; what follows is its `then` side."""
        merge, then = self._asm.fresh_id(), self._asm.fresh_id()
        otherwise = self._asm.fresh_id() if has_else else merge
        opened = Selection(self.block, otherwise, merge)
        self._chunks.append([])
        self.emit(Op.SELECTION_MERGE, merge, 0)
        self.emit(Op.BRANCH_CONDITIONAL, condition, then, otherwise)
        self._label(then)
        return opened

    def open_else(self, selection: Selection) -> None:
        """Ends the `then` side and starts the other one."""
        selection.then_exit = self.block
        self._chunks.append([])
        self.emit(Op.BRANCH, selection.merge)
        self._label(selection.otherwise)

    def close_if(self, selection: Selection) -> tuple[int, int]:
        """Ends the construct; gives the merge block's predecessors: by `then`, and by else."""
        last = self.block
        self._chunks.append([])
        self.emit(Op.BRANCH, selection.merge)
        self._label(selection.merge)
        self._chunks.append([])
        if selection.otherwise == selection.merge:
            return last, selection.header
        return selection.then_exit, last

    def open_loop(self, initial: list[tuple[int, int]]) -> Loop:
        """Starts a loop's header with a phi for each (type, value before the first iteration)."""
        before, header = self.block, self._asm.fresh_id()
        latch, merge = self._asm.fresh_id(), self._asm.fresh_id()
        self._chunks.append([])
        self.emit(Op.BRANCH, header)
        self._label(header)
        phis = [self.phi(type_id, [(value, before)]) for type_id, value in initial]
        return Loop(header, latch, merge, phis)

    def begin_body(
        self, loop: Loop, condition: int, control: LoopControl = LoopControl.NONE
    ) -> None:
        """Ends the header: the body runs as long as `condition`, a value of the header, holds."""
        body = self._asm.fresh_id()
        self.emit(Op.LOOP_MERGE, loop.merge, loop.latch, control)
        self.emit(Op.BRANCH_CONDITIONAL, condition, body, loop.merge)
        self._label(body)

    def close_loop(self, loop: Loop, carried: list[int]) -> None:
        """Ends the body; `carried` are the phis' values for the next iteration."""
        self._chunks.append([])
        self.emit(Op.BRANCH, loop.latch)
        self._label(loop.latch)
        self.emit(Op.BRANCH, loop.header)
        for phi, value in zip(loop.phis, carried, strict=True):
            phi.incoming.append((value, loop.latch))
        self._label(loop.merge)
        self._chunks.append([])

    def finish(self, void: int, function_type: int) -> list[int]:
        """The function's words; phis that nothing needs are left out."""
        self.emit(Op.RETURN)
        self._write_phis()
        words = instruction(Op.FUNCTION, void, self.id, 0, function_type)
        words += self._chunks[0] + self._variables
        for chunk in self._chunks[1:]:
            words += chunk
        return words + instruction(Op.FUNCTION_END)

    def _write_phis(self) -> None:
        """Writes the phis that an instruction uses, straight or by way of other phis."""
        used = {word for chunk in self._chunks for word in chunk}
        by_id = {phi.id: phi for phi in self._phis}
        needed = [phi for phi in self._phis if phi.id in used]
        reached = {phi.id for phi in needed}
        while needed:
            phi = needed.pop()
            for value, _ in phi.incoming:
                if value in by_id and value not in reached:
                    reached.add(value)
                    needed.append(by_id[value])
        for phi in self._phis:
            if phi.id in reached:
                flat = [word for pair in phi.incoming for word in pair]
                phi.chunk.extend(instruction(Op.PHI, phi.type, phi.id, *flat))
