"""Computes element addresses in each lane, from the dispatch's record of buffers and parameters.

Owns what the entry block loads of the dispatch, where buffers and scratch begin, and how indices
become addresses that neighbouring accesses share.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.cpu.assembler import PTR, Assembler, Block, Type, Value, integer
from aot.backends.cpu.gathered import before_a_step
from aot.backends.cpu.lanes import Address, Affine, DimEvaluator, Laned, Lanes, PerLane, is_uniform
from aot.backends.cpu.ranges import LinearForm
from aot.backends.cpu.scopes import Scopes
from aot.backends.cpu.scratch import ScratchPlan
from aot.errors import InternalError
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.expr import Expr, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, BufferClass, Kernel, Scratch

# Position of the buffers' and other pointers in aot_dispatch_t.
_FIELDS = {
    BufferClass.CONSTANTS: 0,
    BufferClass.ARENA: 1,
    BufferClass.INPUTS: 2,
    BufferClass.OUTPUTS: 3,
}
_PARAMS_FIELD = 4
_SCRATCH_FIELD = 5
INVARIANT = ", !invariant.load !0"


class Addresses:
    """Addresses of one kernel's memory; `evaluate` gives the value of an index expression."""

    def __init__(
        self,
        kernel: Kernel,
        lanes: Lanes,
        scopes: Scopes,
        plan: ScratchPlan,
        evaluate: Callable[[Expr], Laned],
    ) -> None:
        self.kernel = kernel
        self.lanes = lanes
        self.asm = lanes.asm
        self.traits = lanes.traits
        self.scopes = scopes
        self.plan = plan
        self.evaluate = evaluate
        self.dims = DimEvaluator(lanes, self.symbol)
        self.lane_index: list[Value | None] = [None, None, None]
        self._words = {p: i for i, p in enumerate(kernel.params)}
        self._fields: dict[int, Value] = {}
        self._params: dict[object, Value] = {}
        self._bases: dict[object, Value] = {}
        self._block: Block | None = None  # that is written now, in which starts are shared
        self._starts: dict[object, tuple[Laned, Value]] = {}
        self._forms: dict[tuple[Buffer | Scratch, tuple[Expr, ...]], LinearForm] = {}
        self._by_name = {p.name: p for p in kernel.params if p.dtype is DType.INDEX}

    def field(self, position: int) -> Value:
        """A pointer field of the dispatch record."""
        if position not in self._fields:
            here, self.asm.current = self.asm.current, self.asm.entry
            width = self.traits.target.word_bytes
            distance = self.lanes.constant(position * width)
            address = self.asm.offset(Value("%dispatch", PTR), distance)
            self._fields[position] = self.asm.load(PTR, address, width, INVARIANT)
            self.asm.current = here
        return self._fields[position]

    def param(self, param: object) -> Value:
        """The value of a kernel parameter."""
        if param not in self._params:
            word = self._words.get(param)  # type: ignore[call-overload]
            name, dtype = param.name, param.dtype  # type: ignore[attr-defined]
            width = self.traits.target.word_bytes
            if word is None:
                raise InternalError(f"kernel {self.kernel.name}: {name} is not a parameter")
            if self.traits.bytes_of(dtype) > width:
                raise InternalError(
                    f"kernel {self.kernel.name}: parameter {name} of {dtype} does "
                    f"not fit into a word of {width} bytes"
                )
            block = self.field(_PARAMS_FIELD)
            here, self.asm.current = self.asm.current, self.asm.entry
            address = self.asm.offset(block, self.lanes.constant(word * width))
            type_ = Type(self.traits.memory_element(dtype))
            value = self.asm.load(type_, address, self.traits.bytes_of(dtype), INVARIANT)
            self._params[param] = from_memory(self.asm, value, dtype)
            self.asm.current = here
        return self._params[param]

    def symbol(self, name: str) -> Value:
        """The value of a dim's symbol: the INDEX parameter of that name."""
        if name not in self._by_name:
            raise InternalError(f"kernel {self.kernel.name}: dim symbol {name} is not a parameter")
        return self.param(self._by_name[name])

    def base(self, memory: Buffer | Scratch) -> Value:
        """Address of the first element."""
        if memory not in self._bases:
            if isinstance(memory, Buffer):
                start, offset = self._buffer(memory), self.param(memory.offset)
            else:
                slot = self.plan.slots[memory]
                if slot.offset is None:
                    count = 1
                    for extent in memory.shape:
                        count *= extent
                    type_ = Type(self.traits.memory_element(memory.dtype))
                    self._bases[memory] = self.asm.alloca(type_, count, 64)
                    return self._bases[memory]
                start = self.field(_SCRATCH_FIELD)
                offset = self.lanes.constant(slot.offset)
            here, self.asm.current = self.asm.current, self.asm.entry
            self._bases[memory] = self.asm.offset(start, offset)
            self.asm.current = here
        return self._bases[memory]

    def _buffer(self, buffer: Buffer) -> Value:
        """The start of the dispatch's buffer that `buffer` is in."""
        if buffer.class_param is None:
            return self.field(_FIELDS[buffer.binding])
        number = self.param(buffer.class_param)
        here, self.asm.current = self.asm.current, self.asm.entry
        width = self.traits.target.word_bytes
        distance = self.lanes.index_binary(
            "mul", number, self.lanes.constant(width), is_nonnegative=True
        )
        assert isinstance(distance, Value)
        address = self.asm.offset(Value("%dispatch", PTR), distance)
        start = self.asm.load(PTR, address, width, INVARIANT)
        self.asm.current = here
        return start

    def of(self, memory: Buffer | Scratch, indices: tuple[Expr, ...]) -> Address:
        """The address of element `indices` in each lane."""
        strides = memory.strides if isinstance(memory, Buffer) else _dense(memory.shape)
        if len(indices) != len(strides):
            raise InternalError(
                f"kernel {self.kernel.name}: {memory.name} has {len(strides)} dims,"
                f" accessed with {len(indices)} indices"
            )
        form = self._forms.get((memory, indices))
        if form is None:
            form = self._forms[memory, indices] = LinearForm.of(indices, strides)
        constant, terms = self.resolved(form)
        fixed = constant.constant if isinstance(constant, DimExpr) else constant
        open_part = dims.add(constant, -fixed) if isinstance(constant, DimExpr) else 0
        if self._block is not self.asm.current:
            self._block, self._starts = self.asm.current, {}
        key = self._key(memory, open_part, terms)
        start = None if key is None else self._starts.get(key)
        if start is None:
            start = self._start(memory, open_part, terms)
            if key is not None and self._block is self.asm.current:
                self._starts[key] = start
        found = self._at(memory, *start, fixed)
        if found.step is None or not isinstance(memory, Scratch) or constant != fixed:
            return found
        factors = (*(factor for _, factor in terms), *memory.shape[-1:])
        before = before_a_step(fixed, found.step.number, factors)
        return Address(found.pointer, found.step, found.pointers, found.places, before)

    def _at(self, memory: Buffer | Scratch, elements: Laned, base: Value, fixed: int) -> Address:
        size = self.traits.bytes_of(memory.dtype)
        each, after = self.lanes.constant(size), self.lanes.constant(fixed * size)
        asm, constant = self.asm, self.lanes.constant

        def pointer(count: Value) -> Value:
            number = count.number
            scaled = constant(number * size) if number is not None else asm.op("mul", count, each)
            return asm.offset(asm.offset(base, scaled), after)

        if isinstance(elements, Affine):
            return Address(pointer(elements.base), elements.step)
        if isinstance(elements, PerLane):
            pointers = tuple(pointer(v) for v in elements.values)
            numbers = [v.number for v in elements.values]
            places = tuple(n for n in numbers if n is not None)
            if len(places) < len(numbers):
                return Address(pointers[0], None, pointers)
            least = self.lanes.constant(min(places))
            return Address(pointer(least), None, pointers, tuple(n - min(places) for n in places))
        return Address(pointer(elements))

    def _key(
        self, memory: Buffer | Scratch, open_part: Dim, terms: list[tuple[Expr, Dim]]
    ) -> object | None:
        """A key of everything that a start address depends on within a block; None where a part has
        no value yet."""
        if isinstance(memory, Scratch) and self.plan.slots[memory].copies != (1, 1, 1):
            return None
        key: list[object] = [memory, open_part]
        for e, factor in terms:
            value = self.scopes.known.get(e)
            if value is None or isinstance(value, PerLane):
                return None
            refs = (value.base.ref, value.step.ref) if isinstance(value, Affine) else value.ref
            key.append((refs, factor, self.scopes.depth(e)))
        return tuple(key)

    def _start(
        self, memory: Buffer | Scratch, open_part: Dim, terms: list[tuple[Expr, Dim]]
    ) -> tuple[Laned, Value]:
        """(element offset that is not a constant, pointer to count from)."""
        parts: dict[int, Laned] = {0: self.dims.value(open_part)}
        for e, factor in terms:
            scale = self.dims.value(factor)
            part = self.lanes.index_binary("mul", self.evaluate(e), scale, is_nonnegative=False)
            depth = self.scopes.depth(e)
            if depth in parts:
                part = self.lanes.index_binary("add", parts[depth], part, is_nonnegative=False)
            parts[depth] = part
        # Outer loops' parts first, so that a partial sum is invariant in the inner loops; what
        # the innermost adds is one number for all addresses that differ in the outer ones.
        total, *rest = (parts[depth] for depth in sorted(parts))
        base = self._copy_of(memory)
        size = self.lanes.constant(self.traits.bytes_of(memory.dtype))
        is_open = any(isinstance(n, DimExpr) for n in (open_part, *(n for _, n in terms)))
        is_apart = is_open and self.traits.has_free_steps
        while rest and isinstance(total, Value):
            base = self.asm.offset(base, self.asm.op("mul", total, size))
            total = rest.pop(0)
            if is_apart and isinstance(total, Value) and not any(map(is_uniform, rest)):
                # LLVM would compute the address of each row from that of the row before it, in
                # every turn: it may not know that they are related
                base = self.asm.emit_pure(PTR, f"freeze {base}")
        for part in rest:
            total = self.lanes.index_binary("add", total, part, is_nonnegative=False)
        return total, base

    def _copy_of(self, memory: Buffer | Scratch) -> Value:
        """The base address of the current lane's copy, for scratch private to lanes."""
        base = self.base(memory)
        if isinstance(memory, Buffer) or self.plan.slots[memory].copies == (1, 1, 1):
            return base
        copies = self.plan.slots[memory].copies
        copy = self.lanes.constant(0)
        for axis in (2, 1, 0):
            lane = self.lane_index[axis] or self.lanes.constant(0)
            copy = self.asm.op("mul", copy, self.lanes.constant(copies[axis]))
            copy = self.asm.op("add", copy, lane)
        size = self.traits.bytes_of(memory.dtype)
        for extent in memory.shape:
            size *= extent
        return self.asm.offset(base, self.asm.op("mul", copy, self.lanes.constant(size)))

    def resolved(self, form: LinearForm) -> tuple[Dim, list[tuple[Expr, Dim]]]:
        """(constant, terms) of a linear form after replacing variables with known values: copies of
        an unrolled loop then differ only in the constant."""
        known = self.scopes.known
        constant, terms = form.constant, []
        for e, factor in form.terms:
            value = known.get(e) if isinstance(e, Var) else None
            if isinstance(value, Value) and value.number is not None and not value.type.lanes:
                constant = dims.add(constant, dims.multiply(factor, value.number))
            else:
                terms.append((e, factor))
        return constant, terms

    # Loads.


def from_memory(asm: Assembler, value: Value, dtype: DType) -> Value:
    """A loaded element as a value; bools are bytes in memory."""
    return asm.icmp("ne", value, integer(0, value.type)) if dtype is DType.BOOL else value


def to_memory(asm: Assembler, value: Value, dtype: DType) -> Value:
    """A value in the form of its dtype in memory; bools are bytes there."""
    return asm.cast("zext", value, "i8") if dtype is DType.BOOL else value


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
