"""Small GGUF models of every architecture with weights that are the same in every version of numpy.

`python -m tests.support.gguf_models FOLDER` writes them, for llama.cpp to answer to:
benchmarks/llama_logits.py does, and tests/support/gguf_logits.json has what it said.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

TOKENS = [3, 17, 40, 22, 9, 31, 31, 0, 12, 28, 5, 36, 2, 19, 33, 7, 41, 25, 14, 8, 1, 38, 11, 30]
PIECES = (7, 1, 1, 2, 13)  # of TOKENS, a run each
JUDGED = (0, 8, 23)  # tokens whose logits are compared

Array = np.ndarray[Any, Any]


def uniform(seed: int, shape: Sequence[int]) -> Array:
    """Floats from -1 to 1 by splitmix64, f32."""
    with np.errstate(over="ignore"):
        x = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed * 0x10001)
        x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return ((x >> np.uint64(40)).astype(np.float32) / (1 << 23) - 1).reshape(shape)


@dataclass(frozen=True)
class Shape:
    """A model: its architecture, its extents, and what it has beside.

    Attributes:
        extra: keys below the architecture's name.
        vectors: tensors of one dim by name.
        kind, head_kind: block types of matrices, and of the head or a tied embedding.
        spread: of the matrices' elements.
    """

    arch: str
    layers: int = 2
    width: int = 32
    heads: int = 4
    groups: int = 2
    depth: int = 8
    hidden: int = 48
    vocabulary: int = 42
    context: int = 64
    rotated: int = 0
    has_head: bool = True
    has_bias: bool = False
    has_post_norms: bool = False
    has_head_norms: bool = False
    is_fused: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    kind: Kind = Kind.F32
    head_kind: Kind | None = None
    spread: float = 0.35


_LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
_GEMMA = Shape("gemma2", has_head=False, has_post_norms=True, depth=16, spread=0.6)
_PHI = Shape("phi3", is_fused=True, groups=4)
_LONG = [1.0, 1.3, 2.0, 4.5]
MODELS: dict[str, Shape] = {
    "llama": Shape("llama"),
    "llama_factors": Shape(
        "llama", has_head=False, groups=4, vectors={"rope_freqs": [1.0, 1.5, 4.0, 8.0]}
    ),
    "llama_odd": Shape("llama", 3, width=30, heads=6, groups=3, depth=10, hidden=37, has_bias=True),
    "llama_linear": Shape("llama", groups=1, extra=_LINEAR),
    "qwen2": Shape("qwen2", has_bias=True, has_head=False),
    "qwen3": Shape("qwen3", depth=12, has_head_norms=True),
    "gemma2": replace(_GEMMA, layers=3, extra={"attention.sliding_window": 6}),
    "gemma3": replace(
        _GEMMA,
        arch="gemma3",
        layers=7,
        has_head_norms=True,
        extra={"attention.sliding_window": 6, **_LINEAR},
    ),
    "phi3": _PHI,
    "phi3_partial": replace(_PHI, groups=2, rotated=4),
    "phi3_long": replace(
        _PHI,
        context=256,
        vectors={"rope_factors_long": _LONG, "rope_factors_short": _LONG[::-1]},
        extra={"rope.scaling.attn_factor": 1.19, "rope.scaling.original_context_length": 16},
    ),
}


def write(path: Path, shape: Shape, tokens: Sequence[str] = ()) -> Path:
    """Writes a model; its weights depend on its shape alone."""
    writer = gguf.GGUFWriter(path, shape.arch)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.groups)
    writer.add_key_length(shape.depth)
    writer.add_value_length(shape.depth)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.rotated or shape.depth)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    if tokens:
        writer.add_token_list(list(tokens))
    for key, value in shape.extra.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](f"{shape.arch}.{key}", value)
    for number, (name, tensor) in enumerate(_tensors(shape).items()):
        made = tensor if isinstance(tensor, list) else uniform(number + 1, tensor)
        _add(writer, shape, name, np.asarray(made, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def data(shape: Shape, tokens: Sequence[str] = ()) -> bytes:
    """The bytes of such a file."""
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder) / "m.gguf", shape, tokens).read_bytes()


def _add(writer: Any, shape: Shape, name: str, array: Array) -> None:
    if array.ndim == 1:
        if name.endswith("norm.weight"):
            array = 1 + array / 2
        writer.add_tensor(name, array)
        return
    is_head = name in ("output.weight", "token_embd.weight")
    kind = (shape.head_kind if is_head else None) or shape.kind
    array = array * (1 if name.startswith("token") else shape.spread)
    if kind is Kind.F32:
        writer.add_tensor(name, array)
    elif kind is Kind.F16:
        writer.add_tensor(name, array.astype(np.float16))
    else:
        writer.add_tensor(name, blocks(array, kind), raw_dtype=kind)


def blocks(array: Array, kind: Kind) -> Array:
    """A matrix in blocks: as the package quantises it, or random blocks with scales like it."""
    try:
        return np.asarray(gguf.quants.quantize(array, kind))
    except NotImplementedError:
        size, width = gguf.GGML_QUANT_SIZES[kind]
        count = array.size // size
        raw = ((uniform(7, (count, width)) + 1) * 127.99).astype(np.uint8)
        scale = (np.abs(array).max() / 1000 * (1 + uniform(8, (count,)) / 4)).astype(np.float16)
        places = {Kind.Q6_K: (208,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2)}[kind]
        for place in places:
            raw[:, place : place + 2] = scale.view(np.uint8).reshape(count, 2)
        return raw.reshape(array.shape[0], -1)


def _tensors(shape: Shape) -> dict[str, Any]:
    """Dims of tensors by name, or their elements."""
    d, queries, keys = shape.width, shape.heads * shape.depth, shape.groups * shape.depth
    found: dict[str, Any] = {"token_embd.weight": (shape.vocabulary, d)}
    if shape.has_head:
        found["output.weight"] = (shape.vocabulary, d)
    found |= {f"{name}.weight": list(vector) for name, vector in shape.vectors.items()}
    for layer in range(shape.layers):
        own: dict[str, Any] = {"attn_norm.weight": (d,), "ffn_norm.weight": (d,)}
        if shape.has_post_norms:
            own |= {"post_attention_norm.weight": (d,), "post_ffw_norm.weight": (d,)}
        if shape.has_head_norms:
            own |= {f"attn_{n}_norm.weight": (shape.depth,) for n in "qk"}
        if shape.is_fused:
            own |= {
                "attn_qkv.weight": (queries + 2 * keys, d),
                "ffn_up.weight": (2 * shape.hidden, d),
            }
        else:
            rows = {"q": queries, "k": keys, "v": keys}
            own |= {f"attn_{n}.weight": (count, d) for n, count in rows.items()}
            if shape.has_bias:
                own |= {f"attn_{n}.bias": (count,) for n, count in rows.items()}
            own |= {f"ffn_{n}.weight": (shape.hidden, d) for n in ("gate", "up")}
        own |= {"attn_output.weight": (d, queries), "ffn_down.weight": (d, shape.hidden)}
        found |= {f"blk.{layer}.{name}": dims for name, dims in own.items()}
    found["output_norm.weight"] = (d,)
    return found


if __name__ == "__main__":
    for name, shape in MODELS.items():
        write(Path(sys.argv[1]) / f"{name}.gguf", shape)
