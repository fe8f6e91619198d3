"""The ONNX importer. Importing this package fills the table of ONNX ops."""

from aot.frontends.onnx.importer import CONTROL, import_onnx
from aot.frontends.onnx.ops import attention as ops_attention
from aot.frontends.onnx.ops import attention_microsoft as ops_attention_microsoft
from aot.frontends.onnx.ops import detection as ops_detection
from aot.frontends.onnx.ops import einsum as ops_einsum
from aot.frontends.onnx.ops import elementwise as ops_elementwise
from aot.frontends.onnx.ops import fused_microsoft as ops_fused_microsoft
from aot.frontends.onnx.ops import group_attention as ops_group_attention
from aot.frontends.onnx.ops import indexing as ops_indexing
from aot.frontends.onnx.ops import labels as ops_labels
from aot.frontends.onnx.ops import linear_attention as ops_linear_attention
from aot.frontends.onnx.ops import math as ops_math
from aot.frontends.onnx.ops import matrix as ops_matrix
from aot.frontends.onnx.ops import ml as ops_ml
from aot.frontends.onnx.ops import nbits as ops_nbits
from aot.frontends.onnx.ops import nn as ops_nn
from aot.frontends.onnx.ops import normalization as ops_normalization
from aot.frontends.onnx.ops import quantized as ops_quantized
from aot.frontends.onnx.ops import quantized_microsoft as ops_quantized_microsoft
from aot.frontends.onnx.ops import random as ops_random
from aot.frontends.onnx.ops import recurrent as ops_recurrent
from aot.frontends.onnx.ops import reduction as ops_reduction
from aot.frontends.onnx.ops import reshape as ops_reshape
from aot.frontends.onnx.ops import resize as ops_resize
from aot.frontends.onnx.ops import signal as ops_signal
from aot.frontends.onnx.ops import spatial as ops_spatial
from aot.frontends.onnx.ops import tensor as ops_tensor
from aot.frontends.onnx.ops import text as ops_text
from aot.frontends.onnx.ops import trees as ops_trees
from aot.frontends.onnx.sequences import SEQUENCES
from aot.frontends.onnx.table import supported_ops

__all__ = [
    "CONTROL",
    "SEQUENCES",
    "import_onnx",
    "ops_attention",
    "ops_attention_microsoft",
    "ops_detection",
    "ops_einsum",
    "ops_elementwise",
    "ops_fused_microsoft",
    "ops_group_attention",
    "ops_indexing",
    "ops_labels",
    "ops_linear_attention",
    "ops_math",
    "ops_matrix",
    "ops_ml",
    "ops_nbits",
    "ops_nn",
    "ops_normalization",
    "ops_quantized",
    "ops_quantized_microsoft",
    "ops_random",
    "ops_recurrent",
    "ops_reduction",
    "ops_reshape",
    "ops_resize",
    "ops_signal",
    "ops_spatial",
    "ops_tensor",
    "ops_text",
    "ops_trees",
    "supported_ops",
]
