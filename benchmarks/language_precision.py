"""How far a language model's options are from its f32 products: KL divergence and top-1.

    python benchmarks/language_precision.py MODEL.gguf [--tokens 1000] [--text FILE]

Each variant reads the same text, which is that of `aotc verify` where none is given, and gives the
logits of all its tokens. This prints what `aotc verify` measures of them: the KL divergence from
the module with `--activations f32` in nats, in the mean and of the token that 99 % are nearer than,
and how often both find the same token most probable; and llama.cpp's where it is installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import aot
from aot.tools.text_verification import TextAgreement

VARIANTS: dict[str, dict[str, Any]] = {
    "(default)": {},
    "--activations int8": {"activations": "int8"},
    "--cache-type int8": {"cache_type": "int8"},
    "--cache-type int8 --activations f32": {"cache_type": "int8", "activations": "f32"},
    "--cache-type int4": {"cache_type": "int4"},
    "--cache-type int4 --activations f32": {"cache_type": "int4", "activations": "f32"},
}


def row(name: str, found: TextAgreement) -> str:
    """A row of the table."""
    same = f"{100 * found.same:.1f} %"
    return f"| {name} | {found.divergence:.5f} | {found.tail:.4f} | {same} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--text", type=Path)
    given = parser.parse_args()
    text = None if given.text is None else given.text.read_text()
    print("| options | KL divergence | of 99 % below | the same token |\n|---|---|---|---|")
    others: tuple[TextAgreement, ...] = ()
    for name, options in VARIANTS.items():
        made = aot.compile(given.model, all_logits=True, context=given.tokens, **options)
        result = aot.verify_text(made, given.model, text=text, tokens=given.tokens)
        print(row(f"`{name}`", result.found), flush=True)
        others = result.others
    for other in others:
        print(row(other.engine, other))


if __name__ == "__main__":
    main()
