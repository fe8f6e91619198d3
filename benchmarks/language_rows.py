"""How much the default precision of each architecture costs, beside what llama.cpp's costs.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    python benchmarks/language_rows.py --libraries package/bins/linux-x64 --headers llama.cpp

For the small model of each architecture in the tests, with weights in a block type: the mean KL
divergence of our logits and of llama.cpp's from those that llama.cpp gives to the same weights as
floats, over eight texts of 60 tokens. Both round what meets the weights. Most models of two layers
get four, of which the middle ones are rounded. benchmarks/llama_programs.py says where the headers
are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import aot
from benchmarks.llama_logits import PROGRAM, answered
from benchmarks.llama_programs import built
from tests.support.gguf_files import write
from tests.support.gguf_models import MODELS

HIDDEN = 48  # of most small models
TEXTS = [[int(n) for n in np.random.default_rng(seed).integers(0, 42, 60)] for seed in range(8)]
Array = np.ndarray[Any, Any]


def divergence(wanted: Array, found: Array) -> float:
    """The mean KL divergence from one array of logits to another, over rows, in nats."""
    logs = []
    for x in (wanted, found):
        x = x.astype(np.float64) - x.max(-1, keepdims=True)
        logs.append(x - np.log(np.exp(x).sum(-1, keepdims=True)))
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--headers", type=Path, required=True)
    parser.add_argument("--kind", default="Q8_0")
    parser.add_argument("models", nargs="*")
    options = parser.parse_args()
    firsts = {shape.arch: name for name, shape in reversed(MODELS.items())}
    kind, libraries = Kind[options.kind], options.libraries.resolve()
    print("| model | aotc | llama.cpp | aotc / llama.cpp |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        program = built(PROGRAM, libraries, options.headers, Path(folder))
        for name in options.models or sorted(firsts.values()):
            shape = replace(MODELS[name], kind=kind, head_kind=kind)
            if shape.hidden == HIDDEN:
                shape = replace(shape, hidden=64)  # rows of whole blocks
            if shape.layers == 2 and not any(n.startswith("blk.") for n in shape.vectors):
                shape = replace(shape, layers=4)
            exact = write(Path(folder) / "exact.gguf", replace(shape, has_floats=True))
            model = write(Path(folder) / "model.gguf", shape)
            compiled = aot.load(aot.compile(model, all_logits=True))
            mine = other = 0.0
            for text in TEXTS:
                wanted = answered(program, libraries, exact, shape, "logits", text)
                theirs = answered(program, libraries, model, shape, "default", text)
                compiled.reset()
                ours = np.array(compiled(np.asarray(text, np.int32))["logits"])
                mine += divergence(wanted, ours) / len(TEXTS)
                other += divergence(wanted, theirs) / len(TEXTS)
            print(f"| {name} | {mine:.2e} | {other:.2e} | {mine / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
