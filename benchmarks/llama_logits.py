"""What llama.cpp answers to the small GGUF models of the tests: tests/support/gguf_logits.json.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    python benchmarks/llama_logits.py --libraries package/bins/linux-x64 --headers llama.cpp

With names of models behind, it asks for those only, with "embedding " before those of encoders.
benchmarks/llama_programs.py says where the headers are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.llama_programs import built
from tests.support.gguf_files import Shape, write
from tests.support.gguf_models import ENCODERS, JUDGED, MODELS, TOKENS

PROGRAM = Path(__file__).with_suffix(".c")
RESULT = ROOT / "tests/support/gguf_logits.json"


def answered(
    program: Path,
    libraries: Path,
    model: Path,
    shape: Shape,
    kind: str = "logits",
    tokens: Sequence[int] = TOKENS,
) -> np.ndarray[Any, Any]:
    """What llama.cpp says to tokens: logits or embeddings, a row for each or one for all.

    Args:
        kind: "logits" with keys and values in f32, "default" with llama.cpp's, or "embedding".
    """
    out = model.with_suffix(".out")
    command = [program, libraries, model, out, str(shape.context), kind]
    subprocess.run([*command, *map(str, [*tokens] * shape.repeats)], check=True)
    width = shape.width if kind == "embedding" else shape.vocabulary
    return np.fromfile(out, np.float32).reshape(-1, width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--headers", type=Path, required=True)
    every = {**MODELS, **{f"embedding {name}": shape for name, shape in ENCODERS.items()}}
    parser.add_argument("models", nargs="*", default=list(every))
    options = parser.parse_args()
    found = json.loads(RESULT.read_text())
    with tempfile.TemporaryDirectory() as folder:
        libraries = options.libraries.resolve()
        program = built(PROGRAM, libraries, options.headers, Path(folder))
        for name in options.models:
            shape, kind = every[name], "embedding" if name.startswith("embedding ") else "logits"
            model = write(Path(folder) / "m.gguf", shape)
            rows = answered(program, libraries, model, shape, kind)
            judged = [rows[n] for n in JUDGED] if len(rows) > 1 else [rows[0]]
            texts = [[float(f"{x:.5g}") for x in row] for row in judged]
            found[name] = {"range": float(f"{np.ptp(rows):.5g}"), "logits": texts}
    lines = [f"{json.dumps(n)}: {json.dumps(found[n])}" for n in every if n in found]
    RESULT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
