"""How much of a language model is in memory while it runs: rows of its tables of embeddings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import aot
from tests.support.gguf_files import write
from tests.support.gguf_models import gemma3n


def resident(key: str, path: Path | None = None) -> int:
    """This process' bytes in memory: all, or those of a mapped file."""
    found, is_own = 0, path is None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_own = path is None or line.endswith(str(path))
        elif is_own and line.startswith(f"{key}:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("kind", "rows"), [(Kind.Q8_0, 32768), (Kind.F16, 16384)])
def test_tables_of_embeddings_stay_in_the_file(kind: Kind, rows: int, tmp_path: Path) -> None:
    """The rows of tokens are read where they are. Linux maps up to 2 MiB around each."""
    shape = gemma3n(4)
    tables = {"per_layer_token_embd.weight": (rows, 4 * 256)}
    shape = replace(shape, vocabulary=rows, kind=kind, head_kind=kind)
    shape = replace(shape, matrices={**shape.matrices, **tables})
    path = tmp_path / "m.aotm"
    aot.compile(write(tmp_path / "m.gguf", shape), jobs=1).save(path)
    assert path.stat().st_size > 32 << 20
    program = aot.load(path, device="cpu")
    before = resident("Anonymous")
    for token in (5, rows // 2, rows - 1):
        program(np.asarray([token], np.int32))
    assert 0 < resident("Rss", path) < path.stat().st_size / 2
    assert resident("Anonymous") - before < 4 << 20
