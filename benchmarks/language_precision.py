"""How far a language model's options are from its f32 products: KL divergence and top-1.

    python benchmarks/language_precision.py MODEL.gguf [--tokens 1000] [--text FILE]

Each variant reads the same text, one token after another as it is written there, and gives the
logits of all of them. Of each token this prints, in the mean, the KL divergence from the module
with `--activations f32` in nats, and how often both find the same token most probable.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import aot
from aot.runtime.text import Tokeniser

VARIANTS: dict[str, dict[str, Any]] = {
    "--activations f32": {"activations": "f32"},
    "(default)": {},
    "--cache-type int8": {"cache_type": "int8"},
    "--cache-type int8 --activations f32": {"cache_type": "int8", "activations": "f32"},
}
PIECE = 256  # tokens of a call


def log_probabilities(
    model: Path, folder: Path, text: str, tokens: int, **options: Any
) -> NDArray[np.float64]:
    """The log probabilities after each of the first `tokens` tokens of a text, f64[tokens,
    vocabulary]."""
    path = folder / "m.aotm"
    aot.compile(model, all_logits=True, context=tokens, **options).save(path)
    with aot.load(path) as program:
        ids = Tokeniser(program).encode(text)[:tokens]
        pieces = [ids[at : at + PIECE] for at in range(0, len(ids), PIECE)]
        wide = np.concatenate([np.array(program.run([piece])[0]) for piece in pieces])
    wide = wide.astype(np.float64) - wide.max(-1, keepdims=True)
    shares: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--text", type=Path, default=ROOT / "CONTRIBUTING.md")
    given = parser.parse_args()
    text = given.text.read_text()
    wanted = None
    print("| options | KL divergence | the same token |\n|---|---|---|")
    for name, options in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = log_probabilities(given.model, Path(folder), text, given.tokens, **options)
        if wanted is None:
            wanted = found
        divergence = float((np.exp(wanted) * (wanted - found)).sum(-1).mean())
        same = float((wanted.argmax(-1) == found.argmax(-1)).mean())
        print(f"| `{name}` | {divergence:.5f} | {100 * same:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
