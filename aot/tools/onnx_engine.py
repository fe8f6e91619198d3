"""What all that ask ONNX Runtime need of it: numpy's names of its types, and one line of a reason.

Imports no engine.
"""

from __future__ import annotations

_NUMPY = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(string)": "object",
}


def numpy_name(onnx_type: str) -> str:
    """numpy's name of the elements of what ONNX Runtime calls tensor(float)."""
    return _NUMPY.get(onnx_type, onnx_type.removeprefix("tensor(").removesuffix(")"))


def first_line(error: Exception) -> str:
    """Why an engine failed; exceptions of engines have no common base."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
