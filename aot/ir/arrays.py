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
        return x.astype(to.numpy)


def _cast_dims(x: Array, to: DType) -> Array:
    """Dims as integers stay what they are; as floats they are ratios."""
    if any(isinstance(item, Ratio) for item in x.flat):
        x = x if to.is_float else truncated(x)
    if to is DType.BOOL:
        return ds.decide(lambda a, b: not ds.is_equal(a, b), x, np.array(0))
    if to.is_float and to.bits < 32:
        raise ds.UndecidedError(f"a dim as {to}")
    return as_ratios(x) if to.is_float else x
