"""The parameter block of a shader, and the dims that its words make up.

Owns whether the block is push constants or a uniform buffer. Knows nothing of buffers.
"""

from __future__ import annotations

from aot.backends.vulkan.limits import LimitError
from aot.backends.vulkan.placement import nodes, roots
from aot.backends.vulkan.shader import PARAM_BUFFER_BINDING, PARAM_BUFFER_BYTES
from aot.backends.vulkan.spirv import Op, StorageClass
from aot.backends.vulkan.values import Linear, Values
from aot.errors import InternalError
from aot.ir.dims import Atom, Dim, FloorDiv, Symbol, symbols
from aot.ir.expr import Size
from aot.kernels.ir.nodes import For, Kernel, walk


class Parameters:
    """Reads parameters and dims; each is read once, where the shader starts."""

    def __init__(self, kernel: Kernel, values: Values, max_push_constant_bytes: int) -> None:
        self.kernel = kernel
        self.values = values
        self.asm = values.asm
        self.is_push = 4 * len(kernel.params) <= max_push_constant_bytes
        self._words = {p.name: n for n, p in enumerate(kernel.params)}
        # Dims' symbols are never negative; other INDEX parameters may be.
        self._symbols = _dim_symbols(kernel)
        self._push_block = 0
        self._uniform_block = 0
        if len(self._words) != len(kernel.params):
            raise InternalError(f"kernel {kernel.name}: two parameters have one name")
        if not self.is_push and 4 * len(kernel.params) > PARAM_BUFFER_BYTES:
            raise LimitError(
                kernel.name,
                f"{len(kernel.params)} parameters are more than a uniform buffer of "
                f"{PARAM_BUFFER_BYTES} bytes holds",
            )

    @property
    def push_constant_bytes(self) -> int:
        return 4 * len(self.kernel.params) if self.is_push else 4

    def word(self, name: str) -> int:
        """A parameter's word as u32."""
        if name not in self._words:
            raise InternalError(f"kernel {self.kernel.name}: no parameter {name}")
        number = self._words[name]
        if self.is_push:
            value = self._push_constant(number, len(self.kernel.params))
        else:
            value = self._uniform(number)
        if name in self._symbols:
            self.values.remember(value, (0, None))
        return value

    def _push_constant(self, word: int, count: int) -> int:
        if not self._push_block:
            words = self.asm.array(self.asm.u32, count, stride=4)
            self._push_block = self.asm.variable(
                StorageClass.PUSH_CONSTANT, self.asm.block(words, is_written=True)
            )
        return self._read(StorageClass.PUSH_CONSTANT, self._push_block, self.values.u32(word))

    def _uniform(self, word: int) -> int:
        base = self.values.pure(
            Op.SHIFT_RIGHT_LOGICAL, self.asm.u32, self._push_constant(0, 1), self.values.u32(2)
        )
        if not self._uniform_block:
            rows = self.asm.array(
                self.asm.vector(self.asm.u32, 4), PARAM_BUFFER_BYTES // 16, stride=16
            )
            self._uniform_block = self.asm.resource(
                StorageClass.UNIFORM, self.asm.block(rows, is_written=True), PARAM_BUFFER_BINDING
            )
        row = self.values.pure(Op.I_ADD, self.asm.u32, base, self.values.u32(word // 4))
        return self._read(StorageClass.UNIFORM, self._uniform_block, row, self.values.u32(word % 4))

    def _read(self, storage: StorageClass, base: int, *indices: int) -> int:
        """A word of memory that never changes."""
        pointer = self.values.pure(
            Op.ACCESS_CHAIN,
            self.asm.pointer(storage, self.asm.u32),
            base,
            self.values.u32(0),
            *indices,
        )
        return self.values.pure(Op.LOAD, self.asm.u32, pointer)

    # Dims

    def dim(self, value: Dim) -> Linear:
        """A dim as an index."""
        if isinstance(value, int):
            return Linear((), value)
        total = Linear((), value.constant)
        for monomial, coefficient in value.terms:
            term = Linear((), coefficient)
            for atom in monomial:
                term = self.values.multiply(term, self._atom(atom))
            total = total + term
        return total

    def _atom(self, atom: Atom) -> Linear:
        if isinstance(atom, Symbol):
            return self.values.atom(self.word(atom.name))
        if isinstance(atom, FloorDiv):
            return self.values.floor_divide(self.dim(atom.numerator), self.dim(atom.denominator))
        result = self.dim(atom.args[0])
        for arg in atom.args[1:]:
            result = self.values.extremum(result, self.dim(arg), is_max=atom.is_max)
        return result


def _dim_symbols(kernel: Kernel) -> set[str]:
    """The parameters that dims are made of."""
    found: set[str] = set()
    for buffer in kernel.buffers:
        for dim in (*buffer.shape, *buffer.strides):
            found |= symbols(dim)
    for stmt in walk(kernel.body):
        if isinstance(stmt, For):
            found |= symbols(stmt.extent)
        for node in nodes(roots(stmt)):
            if isinstance(node, Size):
                found |= symbols(node.dim)
    return found
