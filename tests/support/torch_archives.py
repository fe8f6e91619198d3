"""Files of torch.export.save as tests make and change them.

Nothing here imports torch before it is called.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


def saved(program: Any) -> bytes:
    """The file of a torch.export.ExportedProgram."""
    import torch

    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def saved_before(program: Any) -> bytes:
    """The file as torch before 2.8 has written it."""
    from torch._export.serde.serialize import serialize

    made = serialize(program)
    return zipped(
        {
            "version": b"8.20",
            "serialized_exported_program.json": made.exported_program,
            "serialized_state_dict.pt": made.state_dict,
            "serialized_constants.pt": made.constants,
            "serialized_example_inputs.pt": made.example_inputs,
        }
    )


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def entries_of(data: bytes) -> dict[str, bytes]:
    """The entries of a file, without the folder that they are in."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """The file of such entries."""
    return zipped({f"model/{name}": content for name, content in entries.items()}, method)


def changed(data: bytes, change: Callable[[Any], None], name: str = MODEL) -> bytes:
    """The file with one of its JSON entries as `change` leaves it."""
    entries = entries_of(data)
    content = json.loads(entries[name])
    change(content)
    return packed(entries | {name: json.dumps(content).encode()})
