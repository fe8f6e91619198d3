"""Products of matrices that the lanes of a subgroup hold together: cooperative matrices.

Owns their types, instructions and what these need of a device. The sums are variables of the
function, one a matrix, which every driver keeps in registers; what is multiplied is loaded once for
all products of it between two changes of memory. Owns no address.
"""

from __future__ import annotations

from aot.backends.vulkan.assembler import FunctionBody
from aot.backends.vulkan.expressions import Expressions
from aot.backends.vulkan.memory import Memory
from aot.backends.vulkan.spirv import (
    MATRIX_COLUMN_MAJOR,
    MATRIX_ROW_MAJOR,
    BuiltIn,
    Capability,
    MatrixOperands,
    MatrixUse,
    MemoryOperands,
    Op,
    Scope,
)
from aot.errors import InternalError
from aot.ir.expr import Expr
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Matrix,
    MatrixProduct,
    MatrixStmt,
    MatrixStore,
    MatrixZero,
    Scratch,
)

# what lanes along an axis of a kernel with matrices are
LANES = BuiltIn.SUBGROUP_LOCAL_INVOCATION_ID, BuiltIn.SUBGROUP_ID


class Matrices:
    """The matrices of one shader."""

    def __init__(self, expressions: Expressions, memory: Memory, body: FunctionBody) -> None:
        self.expressions = expressions
        self.memory = memory
        self.values = memory.values
        self.asm = memory.asm
        self.body = body
        self._variables: dict[tuple[Scratch, int], int] = {}

    def emit(self, stmt: MatrixStmt) -> None:
        for capability in (
            Capability.GROUP_NON_UNIFORM,
            Capability.VULKAN_MEMORY_MODEL,
            Capability.COOPERATIVE_MATRIX_KHR,
        ):
            self.asm.capability(capability)
        rows, columns = stmt.sums.shape[-2:]
        type_ = self._type(stmt.sums.dtype, rows, columns, MatrixUse.ACCUMULATOR)
        variable = self._variable(stmt.sums, stmt.place, type_)
        match stmt:
            case MatrixZero():
                zero = self.asm.composite(type_, self.asm.constant(self._part(stmt.sums.dtype), 0))
                self.body.emit(Op.STORE, variable, zero)
            case MatrixProduct():
                self._product(stmt, variable, type_)
            case MatrixStore():
                self._store(stmt.target, self.body.result(Op.LOAD, type_, variable))

    def _product(self, stmt: MatrixProduct, variable: int, type_: int) -> None:
        rows, columns = stmt.sums.shape[-2:]
        left = self._load(stmt.left, rows, stmt.terms, MatrixUse.A)
        right = self._load(stmt.right, stmt.terms, columns, MatrixUse.B)
        old = self.body.result(Op.LOAD, type_, variable)
        signs = MatrixOperands.NONE
        if stmt.sums.dtype.is_integer:
            signs |= MatrixOperands.C_SIGNED | MatrixOperands.RESULT_SIGNED
            if stmt.left.source.dtype.is_signed:
                signs |= MatrixOperands.A_SIGNED
            if stmt.right.source.dtype.is_signed:
                signs |= MatrixOperands.B_SIGNED
        literals = (int(signs),) if signs else ()
        operation = Op.COOPERATIVE_MATRIX_MUL_ADD_KHR
        total = self.body.result(operation, type_, left, right, old, *literals)
        self.body.emit(Op.STORE, variable, total)

    def _part(self, dtype: DType) -> int:
        """The type of a matrix's elements, which is theirs in memory."""
        return self.memory.elements.value_type(dtype)

    def _type(self, dtype: DType, rows: int, columns: int, use: MatrixUse) -> int:
        u32 = self.values.u32
        sizes = u32(rows), u32(columns)
        return self.asm.matrix(self._part(dtype), u32(Scope.SUBGROUP), *sizes, u32(use))

    def _variable(self, sums: Scratch, place: tuple[Expr, ...], type_: int) -> int:
        """The variable of a matrix; the dim that counts subgroups takes none."""
        number = 0
        for index, extent in zip(place, sums.shape, strict=False):
            constant = self.expressions.index(index).number
            if constant is None:
                raise InternalError(f"which matrix of {sums.name} it is, is not known")
            number = number * extent + constant
        key = (sums, number)
        if key not in self._variables:
            self._variables[key] = self.body.variable(type_)
        return self._variables[key]

    def _load(self, matrix: Matrix, rows: int, columns: int, use: MatrixUse) -> int:
        type_ = self._type(matrix.source.dtype, rows, columns, use)
        pointer, version = self._pointer(matrix)
        layout, step = self._layout(matrix), self._step(matrix)
        operands = self._operands(matrix, MemoryOperands.MAKE_POINTER_VISIBLE)
        return self.values.cached(
            (Op.COOPERATIVE_MATRIX_LOAD_KHR, version, type_, pointer, layout, step),
            lambda: self.body.result(
                Op.COOPERATIVE_MATRIX_LOAD_KHR, type_, pointer, layout, step, *operands
            ),
        )

    def _store(self, matrix: Matrix, value: int) -> None:
        pointer, _ = self._pointer(matrix)
        layout, step = self._layout(matrix), self._step(matrix)
        operands = self._operands(matrix, MemoryOperands.MAKE_POINTER_AVAILABLE)
        operation = Op.COOPERATIVE_MATRIX_STORE_KHR
        self.body.emit(operation, pointer, value, layout, step, *operands)
        self.memory.changed()

    def _pointer(self, matrix: Matrix) -> tuple[int, int]:
        indices = [self.expressions.index(i) for i in matrix.indices]
        return self.memory.pointer_to(matrix.source, indices)

    def _layout(self, matrix: Matrix) -> int:
        return self.values.u32(MATRIX_COLUMN_MAJOR if matrix.is_transposed else MATRIX_ROW_MAJOR)

    def _step(self, matrix: Matrix) -> int:
        """From a row to the next one, in what the pointer is to."""
        return self.values.u32(matrix.step // self.memory.elements_together(matrix.source))

    def _operands(self, matrix: Matrix, wanted: MemoryOperands) -> tuple[int, ...]:
        is_shared = isinstance(matrix.source, Scratch)
        return self.memory.shared_operands(wanted) if is_shared else ()
