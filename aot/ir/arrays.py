"""Arrays of elements as ops see them: numbers, or dims where an op computes with shapes."""

from __future__ import annotations

import numpy as np

from aot.ir import dim_semantics as ds
from aot.ir.dim_ratios import Ratio, as_ratios, truncated
from aot.ir.types import Array, DType


def cast_array(x: Array, to: DType) -> Array:
    """`x` converted as Cast does: float to int truncates and saturates, NaN gives 0."""
    if x.dtype == object:
        return _cast_dims(x, to)
    if DType.of(x).is_float and to.is_integer:
        info = np.iinfo(to.numpy)
        wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
        low, high = wide <= float(info.min), wide >= float(info.max)
        with np.errstate(all="ignore"):
            inside = np.where(low | high, 0.0, wide).astype(to.numpy)
        return np.where(low, info.min, np.where(high, info.max, inside)).astype(to.numpy)
    with np.errstate(all="ignore"):
        return to_bf16(x) if to is DType.BF16 else np.asarray(x.astype(to.numpy))


def to_bf16(x: Array) -> Array:
    """Numbers as bfloat16, rounded to nearest once.

    ml_dtypes rounds by way of float32. To keep that from rounding twice, wider numbers are first
    rounded to an odd float32."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        low = x & x.dtype.type(0x7FF)
        is_long = (x >> 53 != 0) & (x >> 53 != -1) if x.dtype.kind == "i" else x >> 53 != 0
        odd = (x - low) | np.where(low != 0, x.dtype.type(0x800), x.dtype.type(0))
        x = np.where(is_long, odd, x)
    if x.dtype.kind in "iuf" and x.dtype.itemsize >= 4 and x.dtype != np.float32:
        wide = x.astype(np.float64)
        near = wide.astype(np.float32)
        back = near.astype(np.float64)
        is_above, is_other = np.abs(back) > np.abs(wide), back != wide
        bits = near.view(np.uint32) - is_above.astype(np.uint32)
        x = (bits | is_other.astype(np.uint32)).view(np.float32)
    return np.asarray(x.astype(DType.BF16.numpy))


def _cast_dims(x: Array, to: DType) -> Array:
    """Dims cast to integers stay unchanged; cast to floats they become ratios."""
    if any(isinstance(item, Ratio) for item in x.flat):
        x = x if to.is_float else truncated(x)
    if to is DType.BOOL:
        return ds.decide(lambda a, b: not ds.is_equal(a, b), x, np.array(0))
    if to.is_float and to.bits < 32:
        raise ds.UndecidedError(f"a dim as {to}")
    return as_ratios(x) if to.is_float else x
