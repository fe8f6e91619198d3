"""The ONNX importer. Importing this package fills the table of ONNX ops."""

from aot.frontends.onnx import (
    ops_attention,
    ops_detection,
    ops_einsum,
    ops_elementwise,
    ops_indexing,
    ops_linear_attention,
    ops_math,
    ops_matrix,
    ops_nn,
    ops_normalization,
    ops_quantized,
    ops_recurrent,
    ops_reduction,
    ops_resize,
    ops_signal,
    ops_spatial,
    ops_tensor,
    ops_text,
)
from aot.frontends.onnx.importer import CONTROL, import_onnx
from aot.frontends.onnx.table import supported_ops

__all__ = [
    "CONTROL",
    "import_onnx",
    "ops_attention",
    "ops_detection",
    "ops_einsum",
    "ops_elementwise",
    "ops_indexing",
    "ops_linear_attention",
    "ops_math",
    "ops_matrix",
    "ops_nn",
    "ops_normalization",
    "ops_quantized",
    "ops_recurrent",
    "ops_reduction",
    "ops_resize",
    "ops_signal",
    "ops_spatial",
    "ops_tensor",
    "ops_text",
    "supported_ops",
]
