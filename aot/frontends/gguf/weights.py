"""The tensors of a GGUF model as constants, by name.

Quantised tensors stay in their bits: products and embeddings read them as they are stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from aot.errors import InternalError
from aot.frontends.gguf.reader import GgufFile, Tensor
from aot.frontends.lib.place import Place
from aot.ir.graph import Attr, ConstantData, Value
from aot.ir.large_arrays import empty, forget, frozen
from aot.ir.rewriter import insert_constant
from aot.ir.types import Array, DType
from aot.ops.blocked import PANEL

F32 = DType.F32
# What meets these is not rounded to 8 bits: it is half of what rounding costs (docs/use/gguf.md).
_IN_F32 = re.compile(r"(output|token_embd|blk\.\d+\.attn_v)\.weight")
_FEWEST_LAYERS = 16  # of fewer, the first one is more than a sixteenth of a prompt
PACKED_ELEMENTS = 1 << 24  # of a matrix, whose rows are packed together


def ends_of(layers: int) -> tuple[int, ...]:
    """The first and the last of a model's layers, where these are a small part of it. Rounding what
    meets the last one's weights costs as much as it does in a third of all layers, and of a prompt
    only the last token goes through most of it.
    """
    return (0, layers - 1) if layers >= _FEWEST_LAYERS else ()


class Weights:
    """A model's tensors by name.

    Args:
        needed: those that may be requested; the file has them in their shapes.
        progress: called with the number of tensors that were asked for, and of all.
        exact_layers: the layers of which no product rounds what meets the weights.

    Attributes:
        names: of those that were asked for.
    """

    def __init__(
        self,
        file: GgufFile,
        needed: Collection[str],
        progress: Callable[[int, int], None],
        exact_layers: Collection[int] = (),
    ) -> None:
        self.file = file
        self.needed = needed
        self._exact = tuple(f"blk.{number}." for number in exact_layers)
        self.names: set[str] = set()
        self._progress = progress
        self._blocked: dict[tuple[str, bytes], tuple[list[Value | None], dict[str, Attr]]] = {}

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def tensor(self, name: str) -> Tensor:
        if name not in self.needed:
            raise InternalError(f"tensor {name!r} is read, and no part names it")
        self.names.add(name)
        self._progress(len(self.names), len(self.file.tensors))
        return self.file.tensors[name]

    def vector(self, name: str) -> Array:
        """A tensor of floats, in f32."""
        tensor = self.tensor(name)
        assert tensor.type.floats is not None
        return tensor.data.view(tensor.type.floats).reshape(tensor.dims).astype(np.float32)

    # as constants

    def product(self, place: Place, x: Value, name: str, order: Array | None = None) -> Value:
        """x [..., columns] times a matrix [rows, columns] of the file, transposed. x may be rounded
        to 8 bits, but not for the head, attention's values and `exact_layers`. Matrices of one
        tensor are below each other.

        Args:
            order: which row of the file comes where; None where they stay. Others are left out.
        """
        tensor = self.tensor(name)
        if tensor.type.codes is None:
            matrix = place.emit("transpose", self._floats(place, tensor, order), perm=(1, 0))
            return place.emit("matmul", x, place.cast(matrix, F32))
        operands, attrs = self._codes(place, tensor, order)
        is_exact = _IN_F32.fullmatch(name) is not None or name.startswith(self._exact)
        attrs = {**attrs, "may_quantize": not is_exact}
        return place.emit("matmul_blocked", x, *operands, **attrs)

    def rows(self, place: Place, numbers: Value, name: str) -> Value:
        """Rows by number of a matrix of the file, in f32."""
        tensor = self.tensor(name)
        if tensor.type.codes is None:
            table = self._floats(place, tensor, None)
            return place.cast(place.emit("gather", table, numbers, axis=0), F32)
        operands, attrs = self._codes(place, tensor, None)
        return place.emit("gather_blocked", numbers, *operands, **attrs)

    def _floats(self, place: Place, tensor: Tensor, order: Array | None) -> Value:
        assert tensor.type.floats is not None
        array = tensor.data.view(tensor.type.floats).reshape(-1, tensor.dims[-1])
        data = ConstantData.borrowed(array if order is None else array[order])
        return insert_constant(place.rewriter, data, tensor.name)

    def _codes(
        self, place: Place, tensor: Tensor, order: Array | None
    ) -> tuple[list[Value | None], dict[str, Attr]]:
        """(operands after the first, attributes) of an op on a quantised matrix; made once per
        matrix and order.
        """
        key = tensor.name, b"" if order is None else order.tobytes()
        if key not in self._blocked:
            arrays, attrs = self._packed(tensor, order)
            made = [
                None
                if array is None
                else insert_constant(place.rewriter, ConstantData(array), tensor.name)
                for array in arrays
            ]
            self._blocked[key] = made, attrs
        return self._blocked[key]

    def _packed(
        self, tensor: Tensor, order: Array | None
    ) -> tuple[list[Array | None], dict[str, Attr]]:
        """A quantised matrix as it is stored, and its attributes: packed some rows at a time, which
        alone need memory for their codes."""
        assert tensor.type.codes is not None
        columns = tensor.dims[-1]
        rows = len(tensor.data) if order is None else len(order)
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
            for n, (whole, part) in enumerate(zip(found, packed, strict=True)):
                if whole is not None and part is not None:
                    whole = found[n] = _wide_enough(whole, part.dtype)
                    whole[first : first + len(part)] = part
                    forget(whole)
            self.file.forget()
        return [None if a is None else frozen(a) for a in found], attrs


def _wide_enough(whole: Array, dtype: np.dtype[Any]) -> Array:
    """The same array, or a copy whose dtype has the elements of another too."""
    wide = np.promote_types(whole.dtype, dtype)
    if wide == whole.dtype:
        return whole
    made = empty(whole.shape, wide)
    made[...] = whole
    return made
