"""Small GGUF files, of random weights that are the same in every version of numpy.

What a file has is a Shape's; tests/support/gguf_models.py has one for every architecture.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

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
        heads, groups, hidden: of all layers, or of each.
        has_bias, has_every_bias: of queries, keys and values, and of every matrix of a layer.
        has_norm_bias: the norms of layers and the last one have one.
        norms: of a layer, by their tensors' names.
        norm_kind: "rms", "layer", or "plain" for one without weights.
        head_norms: "head", "heads" or "row", as aot.frontends.gguf.parts.HeadNorms has it; or "".
        is_fused: queries, keys and values are one matrix.
        gate: "own", "fused" or "", as aot.frontends.gguf.parts.FeedForward has it.
        extra: keys below the architecture's name.
        rotates, base, rotated: whether heads are rotated, by which base, and how many of their
            elements; 0 is all.
        keys: others, by their whole names.
        vectors: tensors of one dim by name.
        matrices: dims of tensors beside, by their whole names.
        absent: tensors that the file lacks.
        prefix: of the names of layers' tensors.
        last_norm: the name of the norm after the last layer; "" is none.
        local, local_depth: layers whose heads are of another depth, and that.
        repeats: of TOKENS in the text that an encoder is asked about.
        kind, head_kind: block types of matrices whose rows are whole blocks, and of the head or a
            tied embedding.
        has_floats: matrices are floats, of what they would be in blocks.
        spread: of the matrices' elements.
    """

    arch: str
    layers: int = 2
    width: int = 32
    heads: int | tuple[int, ...] = 4
    groups: int | tuple[int, ...] = 2
    depth: int = 8
    hidden: int | tuple[int, ...] = 48
    vocabulary: int = 42
    context: int = 64
    rotates: bool = True
    base: float = 10000.0
    rotated: int = 0
    has_head: bool = True
    has_bias: bool = False
    has_every_bias: bool = False
    has_norm_bias: bool = False
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    norm_kind: str = "rms"
    head_norms: str = ""
    is_fused: bool = False
    gate: str = "own"
    extra: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    matrices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    prefix: str = ""
    last_norm: str = "output_norm"
    repeats: int = 1
    local: tuple[bool, ...] = ()
    local_depth: int = 0
    kind: Kind = Kind.F32
    head_kind: Kind | None = None
    has_floats: bool = False
    spread: float = 0.35


def write(path: Path, shape: Shape, tokens: Sequence[str] = (), tensors_per_file: int = 0) -> Path:
    """Writes a model; its weights depend on its shape alone.

    Args:
        tensors_per_file: in each of several files, as the package names them; 0 is one file.
    """
    writer = gguf.GGUFWriter(path, shape.arch, split_max_tensors=tensors_per_file)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    if "feed_forward_length" not in shape.extra:
        writer.add_feed_forward_length(_listed(shape.hidden))
    writer.add_head_count(_listed(shape.heads))
    writer.add_head_count_kv(_listed(shape.groups))
    writer.add_key_length(shape.depth)
    writer.add_value_length(shape.depth)
    add_epsilon = writer.add_layer_norm_rms_eps
    (add_epsilon if shape.norm_kind == "rms" else writer.add_layer_norm_eps)(1e-5)
    if shape.rotates:
        writer.add_rope_freq_base(shape.base)
        writer.add_rope_dimension_count(shape.rotated or shape.depth)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    if tokens:
        writer.add_token_list(list(tokens))
    named = {f"{shape.arch}.{key}": value for key, value in shape.extra.items()}
    for key, value in (named | dict(shape.keys)).items():
        add = {
            str: writer.add_string,
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            list: writer.add_array,
        }
        add[type(value)](key, value)
    for number, (name, tensor) in enumerate(_tensors(shape).items()):
        made = tensor if isinstance(tensor, list) else uniform(number + 1, tensor)
        _add(writer, shape, name, np.asarray(made, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _listed(value: int | tuple[int, ...]) -> Any:
    return list(value) if isinstance(value, tuple) else value


def data(shape: Shape, tokens: Sequence[str] = ()) -> bytes:
    """The bytes of such a file."""
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder) / "m.gguf", shape, tokens).read_bytes()


def _add(writer: Any, shape: Shape, name: str, array: Array) -> None:
    is_norm = name.endswith("norm.weight")
    if array.ndim == 1 or is_norm:
        writer.add_tensor(name, 1 + array / 2 if is_norm else array)
        return
    is_head = name in ("output.weight", "token_embd.weight")
    kind = (shape.head_kind if is_head else None) or shape.kind
    array = array * (1 if name.startswith("token") else shape.spread)
    if kind is Kind.F32 or array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        writer.add_tensor(name, array)
    elif kind is Kind.F16:
        writer.add_tensor(name, array.astype(np.float16))
    elif shape.has_floats:
        writer.add_tensor(name, gguf.quants.dequantize(blocks(array, kind), kind))
    else:
        writer.add_tensor(name, blocks(array, kind), raw_dtype=kind)


HALVES = {
    Kind.Q4_0: (0,),
    Kind.Q4_1: (0, 2),
    Kind.Q5_0: (0,),
    Kind.Q5_1: (0, 2),
    Kind.Q8_0: (0,),
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.IQ1_S: (0,),
    Kind.IQ1_M: (),
    Kind.IQ2_XXS: (0,),
    Kind.IQ2_XS: (0,),
    Kind.IQ2_S: (0,),
    Kind.IQ3_XXS: (0,),
    Kind.IQ3_S: (0,),
    Kind.IQ4_NL: (0,),
    Kind.IQ4_XS: (0,),
    Kind.TQ1_0: (52,),
    Kind.TQ2_0: (64,),
    Kind.MXFP4: (),
    Kind.NVFP4: (),
}
"""Where floats of 16 bits are in a block."""


def blocks(array: Array, kind: Kind) -> Array:
    """A matrix in blocks: as the package quantises it, or random blocks with scales like it."""
    try:
        return np.asarray(gguf.quants.quantize(array, kind))
    except NotImplementedError:
        size, width = gguf.GGML_QUANT_SIZES[kind]
        count = array.size // size
        raw = ((uniform(7, (count, width)) + 1) * 127.99).astype(np.uint8)
        scale = (np.abs(array).max() / 1000 * (1 + uniform(8, (count,)) / 4)).astype(np.float16)
        if kind is Kind.IQ1_M:  # a scale of 2 ** -11, in four parts
            for place, bits in zip((49, 51, 53, 55), (0, 0, 0, 0x1), strict=True):
                raw[:, place] = raw[:, place] & 15 | bits << 4
        if kind is Kind.NVFP4:
            raw[:, :4] //= 8  # scales of one byte, up to 1/16
        for place in HALVES[kind]:
            raw[:, place : place + 2] = scale.view(np.uint8).reshape(count, 2)
        return raw.reshape(array.shape[0], -1)


def _tensors(shape: Shape) -> dict[str, Any]:
    """Dims of tensors by name, or their elements."""
    d = shape.width
    found: dict[str, Any] = {"token_embd.weight": (shape.vocabulary, d)}
    if shape.has_head:
        found["output.weight"] = (shape.vocabulary, d)
    for name, vector in shape.vectors.items():
        found[name if name.endswith((".bias", ".scale", ".input_scale")) else f"{name}.weight"] = (
            list(vector)
        )
    for layer in range(shape.layers):
        label = f"{shape.prefix}blk.{layer}"
        found |= {f"{label}.{name}": dims for name, dims in _layer(shape, layer).items()}
    if shape.norm_kind != "plain" and shape.last_norm:
        found[f"{shape.last_norm}.weight"] = (d,)
        if shape.has_norm_bias:
            found[f"{shape.last_norm}.bias"] = (d,)
    found |= shape.matrices
    return {name: dims for name, dims in found.items() if name not in shape.absent}


def _layer(shape: Shape, layer: int) -> dict[str, Any]:
    """Dims of a layer's tensors, by the ends of their names."""
    heads, groups, hidden = (
        n[layer] if isinstance(n, tuple) else n for n in (shape.heads, shape.groups, shape.hidden)
    )
    depth = shape.local_depth if shape.local and shape.local[layer] else shape.depth
    d, queries, keys = shape.width, heads * depth, groups * depth
    own: dict[str, Any] = {}
    for name in shape.norms if shape.norm_kind != "plain" else ():
        if hidden if "ff" in name else heads:
            own[f"{name}.weight"] = (d,)
            if shape.has_norm_bias:
                own[f"{name}.bias"] = (d,)
    if shape.head_norms and groups:
        for name, count in (("q", heads), ("k", groups)):
            dims = {"head": (depth,), "heads": (count, depth), "row": (count * depth,)}
            own[f"attn_{name}_norm.weight"] = dims[shape.head_norms]
    matrices: dict[str, tuple[int, int]] = {}
    if groups and shape.is_fused:
        matrices["attn_qkv"] = (queries + 2 * keys, d)
    elif groups:
        matrices |= {"attn_q": (queries, d), "attn_k": (keys, d), "attn_v": (keys, d)}
    own |= {f"{name}.weight": dims for name, dims in matrices.items()}
    if shape.has_bias:
        own |= {f"{name}.bias": dims[:1] for name, dims in matrices.items()}
    if hidden:
        if shape.gate == "own":
            matrices["ffn_gate"] = (hidden, d)
        matrices["ffn_up"] = (2 * hidden if shape.gate == "fused" else hidden, d)
    if heads:
        matrices["attn_o" if shape.prefix else "attn_output"] = (d, queries if groups else d)
    if hidden:
        matrices["ffn_down"] = (d, hidden)
    own |= {f"{name}.weight": dims for name, dims in matrices.items()}
    if shape.has_every_bias:
        own |= {f"{name}.bias": dims[:1] for name, dims in matrices.items()}
    return own
