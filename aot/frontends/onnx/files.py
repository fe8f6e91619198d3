"""External weight files of ONNX models."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import _get_all_tensors


def external_names(data: bytes) -> list[str]:
    """The names of the files that contain a model's external tensors; empty if the model is
    damaged."""
    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, RuntimeError):
        return []
    tensors = (t for t in _get_all_tensors(model) if t.data_location == t.EXTERNAL)
    names = {e.value for t in tensors for e in t.external_data if e.key == "location"}
    return sorted(names)


def portable(path: Path) -> bytes:
    """The bytes of the model with all external tensors included."""
    return bytes(onnx.load(str(path)).SerializeToString())
