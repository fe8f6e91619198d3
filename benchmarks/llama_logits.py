"""What llama.cpp answers to the small GGUF models of the tests: tests/support/gguf_logits.json.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    python benchmarks/llama_logits.py --libraries package/bins/linux-x64 --headers llama.cpp

With names of models behind, it asks for the logits of those only. benchmarks/llama_programs.py says
where the headers are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.llama_programs import built
from tests.support.gguf_models import JUDGED, MODELS, TOKENS, write

PROGRAM = Path(__file__).with_suffix(".c")
RESULT = ROOT / "tests/support/gguf_logits.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--headers", type=Path, required=True)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    found = json.loads(RESULT.read_text())
    with tempfile.TemporaryDirectory() as folder:
        libraries = options.libraries.resolve()
        program = built(PROGRAM, libraries, options.headers, Path(folder))
        for name in options.models:
            shape = MODELS[name]
            model, out = write(Path(folder) / f"{name}.gguf", shape), Path(folder) / "out"
            context = str(shape.context)
            tokens = map(str, TOKENS)
            subprocess.run([program, libraries, model, out, context, *tokens], check=True)
            logits = np.fromfile(out, np.float32).reshape(len(TOKENS), shape.vocabulary)
            rows = [[float(f"{x:.5g}") for x in logits[n]] for n in JUDGED]
            found[name] = {"range": float(f"{np.ptp(logits):.5g}"), "logits": rows}
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in MODELS]
    RESULT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
