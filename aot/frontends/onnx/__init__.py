"""The ONNX importer. Importing this package fills the table of ONNX ops."""

from aot.frontends.onnx import (
    ops_elementwise,
    ops_nn,
    ops_quantized,
    ops_recurrent,
    ops_reduction,
    ops_tensor,
)
from aot.frontends.onnx.importer import import_onnx
from aot.frontends.onnx.table import supported_ops

__all__ = [
    "import_onnx",
    "ops_elementwise",
    "ops_nn",
    "ops_quantized",
    "ops_recurrent",
    "ops_reduction",
    "ops_tensor",
    "supported_ops",
]
