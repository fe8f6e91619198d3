"""Kernel IR to a compute shader: the statements, and what each kind of loop becomes.

WORKGROUP and LANE loops become builtins, UNROLLED and small VECTOR loops are written out, all
others are structured loops. Scratch that `placement` promoted lives in SSA values, joined by phis
where control flow meets. Expressions and memory have modules of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aot.backends.vulkan import subgroups
from aot.backends.vulkan.assembler import Assembler, FunctionBody
from aot.backends.vulkan.elements import Elements, Natives
from aot.backends.vulkan.expressions import Expressions
from aot.backends.vulkan.limits import LimitError
from aot.backends.vulkan.matrices import LANES, Matrices
from aot.backends.vulkan.memory import Memory
from aot.backends.vulkan.parameters import Parameters
from aot.backends.vulkan.peers import Peers, peers_of
from aot.backends.vulkan.placement import Placement, place, shared_bytes
from aot.backends.vulkan.requirements import features_of, matrix_features
from aot.backends.vulkan.shader import ENTRY_POINT, GRID_ROW, PARAM_BUFFER_BYTES, Shader
from aot.backends.vulkan.spirv import (
    BuiltIn,
    Capability,
    LoopControl,
    MemorySemantics,
    Op,
    Scope,
)
from aot.backends.vulkan.texels import Texels
from aot.backends.vulkan.values import Linear, Values
from aot.backends.vulkan.vectors import Vectors
from aot.errors import InternalError
from aot.ir.dims import bounds
from aot.kernels.ir.nodes import (
    Barrier,
    BufferClass,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixDot,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Stmt,
    Store,
    holds_matrices,
    walk,
)
from aot.kernels.nest.steps import lane_iterations
from aot.target.model import GpuGeometry, Target

Register = tuple[Scratch, int]


def compile_kernel(
    kernel: Kernel, target: Target, windowed: frozenset[BufferClass] = frozenset()
) -> Shader:
    """The shader of a kernel that `aot.kernels.ir.verifier.verify` accepts. Operands in the classes
    `windowed` have bindings of their own, and texels are not read then.

    Raises:
        InternalError: the kernel breaks a limit of the target, or computes in a type that
            legalisation should have removed.
    """
    gpu, limits = target.gpu, target.vulkan
    if gpu is None or limits is None:
        raise InternalError(f"target {target.name} is not a vulkan target")
    check_geometry(kernel, gpu)
    natives = Natives.of(gpu, target.dtypes)
    placement = place(kernel, gpu, natives.computed)
    most = limits.max_push_constant_bytes
    emitter = partial(
        _Emitter,
        kernel,
        most,
        placement,
        natives,
        has_dot_product=gpu.integer_dot_product,
        windowed=windowed,
    )
    shader = emitter().compile()
    if not limits.texel_buffers or windowed:
        return shader
    texel = emitter(reads_texels=True).compile()
    return replace(shader, texel=texel) if texel.texels else shader


def check_geometry(kernel: Kernel, gpu: GpuGeometry) -> None:
    """Refuses a workgroup that the target cannot run, and a grid that is known to be too large."""
    for axis, (count, most) in enumerate(zip(kernel.grid, gpu.max_workgroup_count, strict=True)):
        has_rows = axis == 0 and kernel.grid[2] == 1
        if isinstance(count, int) and count > most and not has_rows:
            raise LimitError(
                kernel.name, f"{count} workgroups on axis {axis}, more than the target's {most}"
            )
    size = kernel.workgroup_size
    lanes = size[0] * size[1] * size[2]
    if lanes > gpu.max_workgroup_invocations:
        raise LimitError(
            kernel.name,
            f"a workgroup of {lanes} lanes, more than the target's {gpu.max_workgroup_invocations}",
        )
    for axis, (lane_count, most) in enumerate(zip(size, gpu.max_workgroup_size, strict=True)):
        if lane_count > most:
            raise LimitError(
                kernel.name, f"{lane_count} lanes on axis {axis}, more than the target's {most}"
            )


class _Emitter:
    """One kernel on its way to words."""

    def __init__(
        self,
        kernel: Kernel,
        max_push_constant_bytes: int,
        placement: Placement,
        natives: Natives,
        *,
        has_dot_product: bool = False,
        reads_texels: bool = False,
        windowed: frozenset[BufferClass] = frozenset(),
    ) -> None:
        self.kernel = kernel
        self.asm = Assembler()
        self.body = FunctionBody(self.asm)
        self.values = Values(self.asm, self.body)
        self.placement = placement
        self.params = Parameters(kernel, self.values, max_push_constant_bytes)
        self.natives = natives
        elements = Elements(self.values, natives)
        self.texels = Texels(self.values) if reads_texels else None
        self.has_matrices = holds_matrices(kernel)
        self.memory = Memory(
            *(kernel, self.placement, self.params, elements, self.texels),
            windowed=windowed,
            has_matrices=self.has_matrices,
        )
        self.expressions = Expressions(
            kernel.name, self.values, self.memory, has_dot_product=has_dot_product
        )
        self.vectors = Vectors(self.placement, self.values, self.memory, self.expressions)
        self.matrices = Matrices(self.expressions, self.memory, self.body)
        # what reads texels is for drivers whose loads cost more than shuffles
        shared = peers_of(kernel, placement.unrolled) if reads_texels else {}
        self.peers = Peers(shared, self.values, self.body)
        self.is_looping = False  # inside a loop that goes round

    def compile(self) -> Shader:
        self.statements(self.kernel.body)
        size = self.kernel.workgroup_size
        words = self.asm.finish(self.body, size, ENTRY_POINT)
        return Shader(
            words=words,
            workgroup_size=size,
            bindings=tuple(sorted(self.memory.bindings, key=lambda b: b.value)),
            param_words=len(self.kernel.params),
            push_constant_bytes=self.params.push_constant_bytes,
            param_buffer_bytes=0 if self.params.is_push else PARAM_BUFFER_BYTES,
            shared_bytes=shared_bytes(self.kernel, self.natives.computed),
            capabilities=tuple(c.label for c in self.asm.capabilities),
            features=features_of(self.asm.capabilities, self.matrix_features()),
            iterations=lane_iterations(self.kernel, self.placement.unrolled),
            texels=() if self.texels is None else self.texels.declared,
            windows=tuple(
                (b.binding.value, self.kernel.params.index(b.offset)) for b in self.memory.windows
            ),
        )

    def matrix_features(self) -> tuple[str, ...]:
        if not self.has_matrices:
            return ()
        products = (s for s in walk(self.kernel.body) if isinstance(s, MatrixProduct))
        return matrix_features((s.shape for s in products), self.kernel.workgroup_size[0])

    # Statements

    def statements(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self.expressions.start_statement()
            match stmt:
                case Let():
                    self.expressions.environment[stmt.var] = self.expressions.value(stmt.value)
                case Store():
                    self.store(stmt)
                case If():
                    self.branch(self.expressions.scalar(stmt.condition), stmt.then, stmt.otherwise)
                case For():
                    self.loop(stmt)
                case Prefetch():
                    pass
                case Barrier():
                    self.barrier(stmt)
                case Combine():
                    self.combine(stmt)
                case MatrixZero() | MatrixProduct() | MatrixStore():
                    self.matrices.emit(stmt)
                case MatrixDot():
                    raise InternalError(f"kernel {self.kernel.name}: a CPU's products of matrices")

    def store(self, stmt: Store) -> None:
        if stmt.guard is None:
            self.plain_store(stmt)
            return
        guard = self.expressions.scalar(stmt.guard)
        bits = self.values.bits(guard)
        if bits is not None:
            if bits:
                self.plain_store(stmt)
            return
        plain = Store(stmt.target, stmt.indices, stmt.value)
        self.branch(guard, (plain,), ())

    def plain_store(self, stmt: Store) -> None:
        value = self.expressions.stored(stmt.value)
        indices = [self.expressions.index(i) for i in stmt.indices]
        if isinstance(stmt.target, Scratch):
            if isinstance(value, tuple):
                raise InternalError(
                    f"kernel {self.kernel.name}: scratch {stmt.target.name} is "
                    f"{stmt.target.dtype}, which legalisation should have removed"
                )
            self.memory.store_scratch(stmt.target, indices, value)
        else:
            self.memory.store_buffer(stmt.target, indices, value)

    def barrier(self, stmt: Barrier) -> None:
        scope = self.values.u32(Scope.WORKGROUP)
        bits = MemorySemantics.ACQUIRE_RELEASE | MemorySemantics.WORKGROUP_MEMORY
        if stmt.orders_buffers:
            bits |= MemorySemantics.UNIFORM_MEMORY
        semantics = self.values.u32(bits)
        self.body.emit(Op.CONTROL_BARRIER, scope, scope, semantics)
        self.memory.changed()

    def combine(self, stmt: Combine) -> None:
        lane = self.component(LoopKind.LANE, 0)
        self.values.remember(lane, (0, stmt.extent - 1))
        self.expressions.environment[stmt.lane] = self.values.atom(lane)
        if self.is_looping:
            self.barrier(Barrier())  # others may still read what the last one left
        subgroups.combine(stmt, self.expressions, self.memory, self.body, self.barrier)

    # Conditions

    def branch(self, condition: int, then: tuple[Stmt, ...], otherwise: tuple[Stmt, ...]) -> None:
        bits = self.values.bits(condition)
        if bits is not None:
            self.statements(then if bits else otherwise)
            return
        before = dict(self.memory.registers)
        self.values.open_scope(condition)
        selection = self.body.open_if(condition, has_else=bool(otherwise))
        self.statements(then)
        after_then = self.memory.registers
        self.memory.registers = dict(before)
        if otherwise:
            self.values.reopen_scope(condition)
            self.body.open_else(selection)
            self.statements(otherwise)
        then_block, else_block = self.body.close_if(selection)
        self.values.close_scope()
        self.merge(after_then, self.memory.registers, then_block, else_block)

    def merge(
        self,
        then: dict[Register, int],
        otherwise: dict[Register, int],
        then_block: int,
        else_block: int,
    ) -> None:
        """Joins promoted scratch after a condition."""
        merged: dict[Register, int] = {}
        for key in then | otherwise:
            zero = self.memory.zero(key[0])
            a, b = then.get(key, zero), otherwise.get(key, zero)
            if a != b:
                phi = self.body.phi(
                    self.memory.register_type(key[0]), [(a, then_block), (b, else_block)]
                )
                a = self.values.define(phi.id)
            merged[key] = a
        self.memory.registers = merged
        self.memory.changed()

    # Loops

    def loop(self, loop: For) -> None:
        if loop.extent == 0:
            return  # its indices may be divided by extents that are 0, too
        match loop.kind:
            case LoopKind.WORKGROUP if self.may_have_rows(loop):
                self.spread_in_rows(loop)
            case LoopKind.WORKGROUP | LoopKind.LANE:
                self.spread(loop)
            case _ if loop in self.placement.unrolled:
                if self.vectors.emit(loop):
                    return
                if loop in self.peers.loops:
                    self.shared_loop(loop, self.peers.loops[loop])
                    return
                for number in range(loop.count):
                    self.expressions.environment[loop.var] = Linear((), number)
                    self.statements(loop.body)
            case _:
                self.structured_loop(loop)

    def shared_loop(self, loop: For, count: int) -> None:
        """An unrolled loop whose first statement is a Let that `count` peers share: each computes
        it for an iteration of its own."""
        let, environment = loop.body[0], self.expressions.environment
        assert isinstance(let, Let)
        held: list[int] = []
        for first in range(0, loop.count, count):
            self.expressions.start_statement()
            environment[loop.var] = self.peers.own(first, count, loop.count)
            held.append(self.expressions.scalar(let.value))
        type = self.asm.u32 if let.var.dtype.is_packed else self.asm.f32
        for number in range(loop.count):
            environment[loop.var] = Linear((), number)
            place = number % count
            environment[let.var] = self.peers.take(held[number // count], type, place, count)
            self.statements(loop.body[1:])

    def spread(self, loop: For) -> None:
        """A loop whose iterations are invocations: the variable is a builtin's component."""
        if loop.extent == 1:
            self.expressions.environment[loop.var] = Linear((), 0)
        else:
            self.bind(loop, self.component(loop.kind, loop.axis))
        self.statements(loop.body)

    def component(self, kind: LoopKind, axis: int) -> int:
        if self.has_matrices and kind is LoopKind.LANE:
            self.asm.capability(Capability.GROUP_NON_UNIFORM)
            return self.values.pure(Op.LOAD, self.asm.u32, self.asm.builtin(LANES[axis]))
        builtin = BuiltIn.LOCAL_INVOCATION_ID if kind is LoopKind.LANE else BuiltIn.WORKGROUP_ID
        vector = self.asm.vector(self.asm.u32, 3)
        whole = self.values.pure(Op.LOAD, vector, self.asm.builtin(builtin))
        return self.values.pure(Op.COMPOSITE_EXTRACT, self.asm.u32, whole, literals=(axis,))

    def bind(self, loop: For, value: int) -> None:
        """Makes `value`, which is in the loop's range, its variable."""
        _, most = bounds(loop.extent, {})
        self.values.remember(value, (0, None if most is None else most - 1))
        self.expressions.environment[loop.var] = self.values.atom(value)

    def may_have_rows(self, loop: For) -> bool:
        """Whether the loop's grid may have to be dispatched in rows along z."""
        _, most = bounds(loop.extent, {})
        is_long = most is None or most > GRID_ROW
        return loop.axis == 0 and is_long and self.kernel.grid[2] == 1

    def spread_in_rows(self, loop: For) -> None:
        u32, pure = self.asm.u32, self.values.pure
        row = pure(Op.I_MUL, u32, self.component(loop.kind, 2), self.values.u32(GRID_ROW))
        whole = pure(Op.I_ADD, u32, self.component(loop.kind, 0), row)
        extent = self.values.id_of(self.params.dim(loop.extent))
        is_there = pure(Op.S_LESS_THAN, self.asm.boolean, whole, extent)
        self.bind(loop, whole)
        self.branch(is_there, loop.body, ())

    def structured_loop(self, loop: For) -> None:
        extent = self.params.dim(loop.extent)
        limit, zero = self.values.id_of(extent), self.values.u32(0)
        carried = self.carried(loop)
        registers = self.memory.registers
        initial = [
            (self.asm.u32, zero),
            *(
                (self.memory.register_type(key[0]), registers.get(key, self.memory.zero(key[0])))
                for key in carried
            ),
        ]
        self.values.open_scope()
        opened = self.body.open_loop(initial)
        counter = opened.phis[0].id
        _, most = self.values.range_of(extent)
        self.values.define(counter, (0, None if most is None else most - 1))
        for key, phi in zip(carried, opened.phis[1:], strict=True):
            registers[key] = self.values.define(phi.id)
        more = self.body.result(Op.S_LESS_THAN, self.asm.boolean, counter, limit)
        is_kept = loop in self.placement.kept_loops
        control = LoopControl.DONT_UNROLL if is_kept else LoopControl.NONE
        self.body.begin_body(opened, more, control)
        self.memory.changed()
        self.expressions.environment[loop.var] = self.values.atom(counter)
        was_looping, self.is_looping = self.is_looping, True
        self.statements(loop.body)
        self.is_looping = was_looping
        following = self.body.result(Op.I_ADD, self.asm.u32, counter, self.values.u32(1))
        registers = self.memory.registers
        self.body.close_loop(opened, [following, *(registers[key] for key in carried)])
        self.values.close_scope()
        for key, phi in zip(carried, opened.phis[1:], strict=True):
            # The header comes before what follows the loop, so a phi is a value of that scope.
            registers[key] = self.values.define(phi.id)
        self.memory.changed()

    def carried(self, loop: For) -> list[Register]:
        """The promoted elements that the loop's body may store, in a fixed order."""
        stored = {
            s.target
            for s in walk(loop.body)
            if isinstance(s, Store) and isinstance(s.target, Scratch)
        }
        return [
            (scratch, element)
            for scratch in self.kernel.scratch
            if scratch in stored and self.placement.scratch[scratch].is_promoted
            for element in range(self.placement.values(scratch))
        ]
