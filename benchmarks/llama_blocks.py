"""How fast models of each block type reply, beside llama.cpp: random blocks of one size of model.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    python benchmarks/llama_blocks.py --libraries package/bins/linux-x64 --headers llama.cpp Q2_K

benchmarks/llama_race.py says what is timed. All types are in one run; a model has about 150 million
weights, so that those of no type fit into a core's cache.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import aot
from benchmarks import llama_race
from benchmarks.llama_programs import built
from tests.support.gguf_files import blocks

WIDTH, HIDDEN, LAYERS, HEADS, VOCABULARY = 1024, 2816, 12, 16, 4096
NAMED = ("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "TQ1_0", "TQ2_0")
OTHERS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


def write(path: Path, kind: Kind) -> Path:
    """A llama whose matrices are of a block type; they repeat one with other rows first."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
    shapes |= {"ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN)}
    made = {
        dims: blocks(0.05 * rng.standard_normal(dims, np.float32), kind)
        for dims in {*shapes.values(), (VOCABULARY, WIDTH)}
    }
    for layer in range(LAYERS):
        for name, dims in shapes.items():
            rows = np.roll(made[dims], layer, axis=0)
            writer.add_tensor(f"blk.{layer}.{name}.weight", rows, raw_dtype=kind)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", made[VOCABULARY, WIDTH], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*", default=[*NAMED, *OTHERS])
    parser.add_argument("--libraries", type=Path, required=True)
    parser.add_argument("--headers", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print("| type | prompt, tok/s: aotc / llama.cpp | decode, tok/s | decode, of a read loop |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        libraries = options.libraries.resolve()
        program = built(llama_race.PROGRAM, libraries, options.headers, Path(folder))
        for name in options.types:
            model = write(Path(folder) / f"{name}.gguf", Kind[name])
            module = Path(folder) / "model.aotm"
            aot.compile(model, context=options.prompt + options.tokens).save(module)
            llama_race.race(program, model, module, options)
            model.unlink()


if __name__ == "__main__":
    main()
