"""The tensors of a GGUF model, by the parts of a decoder that they are: checked, and as constants.

Owns the check that a file has all tensors of its architecture, in their shapes, and no others.
Quantised tensors stay in their bits: products and embeddings read them as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot.errors import CompileError, UnsupportedError
from aot.frontends.gguf.reader import GgufFile, Tensor
from aot.frontends.lib.place import Place
from aot.ir.graph import Attr, ConstantData, Value
from aot.ir.large_arrays import empty, forget, frozen
from aot.ir.rewriter import insert_constant
from aot.ir.types import Array, DType
from aot.ops.blocked import PANEL

F32 = DType.F32
PACKED_ELEMENTS = 1 << 24  # of a matrix, whose rows are packed together


class Weights:
    """A model's tensors by name; each is requested with the shape that it must have.

    Args:
        progress: called with the number of tensors that were asked for, and of all.

    Attributes:
        names: of those that were asked for.
    """

    def __init__(self, file: GgufFile, progress: Callable[[int, int], None]) -> None:
        self.file = file
        self.names: set[str] = set()
        self._progress = progress
        self._blocked: dict[str, tuple[list[Value | None], dict[str, Attr]]] = {}

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def tensor(self, name: str, *dims: int) -> Tensor:
        """A tensor of a shape.

        Raises:
            CompileError: there is none of that name, or it has another shape.
        """
        found = self.file.tensors.get(name)
        if found is None:
            raise CompileError(f"{self.file.where}: tensor {name!r} is missing")
        self.names.add(name)
        self._progress(len(self.names), len(self.file.tensors))
        if found.dims != dims:
            raise CompileError(
                f"{self.file.where}: tensor {name!r} has dims {list(found.dims)}, expected "
                f"{list(dims)}"
            )
        return found

    def vector(self, name: str, extent: int) -> Array:
        """A tensor of one dim, in f32.

        Raises:
            CompileError: there is none, it has another shape or is quantised.
        """
        tensor = self.tensor(name, extent)
        if tensor.type.floats is None:
            raise CompileError(
                f"{self.file.where}: tensor {name!r} is {tensor.type.name}, expected floats"
            )
        return tensor.data.view(tensor.type.floats).reshape(extent).astype(np.float32)

    def check_all_used(self) -> None:
        """Raises an UnsupportedError if the file has tensors that were never requested."""
        others = sorted(set(self.file.tensors) - self.names)
        if others:
            raise UnsupportedError(
                f"{self.file.where}: tensors that its architecture does not have ({len(others)}):",
                [f"tensor {name!a}" for name in others],
            )

    # as constants

    def product(
        self, place: Place, x: Value, name: str, dims: tuple[int, int], order: Array | None = None
    ) -> Value:
        """x [..., columns] times a matrix [rows, columns] of the file, transposed.

        Args:
            order: which row of the file comes where; None where they stay.
        """
        tensor = self.tensor(name, *dims)
        if tensor.type.codes is None:
            matrix = place.emit("transpose", self._floats(place, tensor, order), perm=(1, 0))
            return place.emit("matmul", x, place.cast(matrix, F32))
        operands, attrs = self._codes(place, tensor, order)
        attrs = {**attrs, "may_quantize": True}
        return place.emit("matmul_blocked", x, *operands, **attrs)

    def rows(self, place: Place, numbers: Value, name: str, dims: tuple[int, int]) -> Value:
        """Rows by number of a matrix of the file, in f32."""
        tensor = self.tensor(name, *dims)
        if tensor.type.codes is None:
            table = self._floats(place, tensor, None)
            return place.cast(place.emit("gather", table, numbers, axis=0), F32)
        operands, attrs = self._codes(place, tensor, None)
        return place.emit("gather_blocked", numbers, *operands, **attrs)

    def _floats(self, place: Place, tensor: Tensor, order: Array | None) -> Value:
        assert tensor.type.floats is not None
        array = tensor.data.view(tensor.type.floats).reshape(tensor.dims)
        data = ConstantData.borrowed(array if order is None else array[order])
        return insert_constant(place.rewriter, data, tensor.name)

    def _codes(
        self, place: Place, tensor: Tensor, order: Array | None
    ) -> tuple[list[Value | None], dict[str, Attr]]:
        """(operands after the first, attributes) of an op on a quantised matrix; made once per
        matrix.
        """
        if tensor.name not in self._blocked:
            arrays, attrs = self._packed(tensor, order)
            made = [
                None
                if array is None
                else insert_constant(place.rewriter, ConstantData(array), tensor.name)
                for array in arrays
            ]
            self._blocked[tensor.name] = made, attrs
        return self._blocked[tensor.name]

    def _packed(
        self, tensor: Tensor, order: Array | None
    ) -> tuple[list[Array | None], dict[str, Attr]]:
        """A quantised matrix as it is stored, and its attributes: packed some rows at a time, which
        alone need memory for their codes."""
        assert tensor.type.codes is not None
        rows, columns = tensor.dims
        step = max(1, PACKED_ELEMENTS // columns // PANEL) * PANEL
        found: list[Array | None] = []
        attrs: dict[str, Attr] = {}
        for start in range(0, rows, step):
            some = slice(start, start + step)
            codes = tensor.type.codes(tensor.data[some if order is None else order[some]])
            packed = codes.operands()
            if not found:
                panels = -(-rows // PANEL)
                found = [
                    None if a is None else empty((panels, *a.shape[1:]), a.dtype) for a in packed
                ]
                attrs = {**codes.attrs(), "columns": rows}
            first = start // PANEL
            for whole, part in zip(found, packed, strict=True):
                if whole is not None and part is not None:
                    whole[first : first + len(part)] = part
                    forget(whole)
            self.file.forget()
        return [None if a is None else frozen(a) for a in found], attrs
