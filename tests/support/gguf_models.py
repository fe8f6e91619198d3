"""Small GGUF models of every architecture with weights that are the same in every version of numpy.

`python -m tests.support.gguf_models FOLDER` writes them, for llama.cpp to answer to:
benchmarks/llama_logits.py does, and tests/support/gguf_logits.json has what it said.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.support.gguf_files import Shape, write

TOKENS = [3, 17, 40, 22, 9, 31, 31, 0, 12, 28, 5, 36, 2, 19, 33, 7, 41, 25, 14, 8, 1, 38, 11, 30]
PIECES = (7, 1, 1, 2, 13)  # of TOKENS, a run each
JUDGED = (0, 8, 23)  # tokens whose logits are compared

_LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
_WINDOW = {"attention.sliding_window": 6}
_AROUND = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
_BEHIND = ("post_attention_norm", "post_ffw_norm")
_LONG = [1.0, 1.3, 2.0, 4.5]
_FACTORS = {"rope_factors_long": _LONG, "rope_factors_short": _LONG[::-1]}
_GEMMA = Shape("gemma2", has_head=False, norms=_AROUND, depth=16, spread=0.6)
_PHI = Shape("phi3", is_fused=True, gate="fused", groups=4)
_LAYER = Shape(
    "starcoder2", norm_kind="layer", gate="", has_bias=True, has_every_bias=True, has_norm_bias=True
)
_COHERE = Shape("cohere2", norms=("attn_norm",), norm_kind="layer", has_head=False)
_GRANITE = Shape(
    "granite",
    extra={
        "logit_scale": 4.0,
        "residual_scale": 0.22,
        "embedding_scale": 12.0,
        "attention.scale": 0.1,
    },
)
_ALTERNATE = (True, False, True, False, True, False)
_GEMMA4 = Shape(
    "gemma4",
    6,
    groups=(2, 1, 2, 1, 2, 1),
    hidden=(48, 48, 48, 40, 56, 56),
    depth=16,
    local_depth=8,
    local=_ALTERNATE,
    has_head=False,
    norms=_AROUND,
    head_norms="head",
    extra={
        **_WINDOW,
        "attention.sliding_window_pattern": list(_ALTERNATE),
        "attention.shared_kv_layers": 2,
        "attention.key_length_swa": 8,
        "attention.value_length_swa": 8,
        "rope.dimension_count_swa": 8,
        "rope.freq_base_swa": 500.0,
        "embedding_length_per_layer_input": 8,
        "final_logit_softcapping": 5.0,
    },
    vectors={
        "rope_freqs": [1.0, 1.2, 1.5, 2.0, 4.0, 8.0, 1e30, 1e30],
        "blk.1.layer_output_scale": [0.7],
        "blk.4.layer_output_scale": [1.2],
    },
    matrices={
        "per_layer_token_embd.weight": (42, 48),
        "per_layer_model_proj.weight": (48, 32),
        "per_layer_proj_norm.weight": (8,),
        **{f"blk.{n}.inp_gate.weight": (8, 32) for n in range(6)},
        **{f"blk.{n}.proj.weight": (32, 8) for n in range(6)},
        **{f"blk.{n}.post_norm.weight": (32,) for n in range(6)},
    },
    absent=(
        "blk.1.attn_v.weight",
        *(f"blk.{n}.attn_{x}.weight" for n in (4, 5) for x in ("k", "v", "k_norm")),
    ),
)
_GPT2 = replace(
    _LAYER,
    arch="gpt2",
    rotates=False,
    groups=4,
    has_head=False,
    is_fused=True,
    matrices={"position_embd.weight": (64, 32)},
)


def gemma3n(layers: int) -> Shape:
    """A small Gemma 3n: the last two layers read the caches of the two before them.

    llama.cpp reads no keys for these: it has 20 layers with caches, and cuts in the first ten.
    """
    every = range(layers)
    cut = 1.6448533535003662  # the normal distribution's quantile 0.95
    own = {
        "inp_gate": (256, 32),
        "proj": (32, 256),
        "post_norm": (32,),
        "altup_router": (4, 32),
        "altup_router_norm": (32,),
        "altup_predict_coef": (16, 4),
        "altup_correct_coef": (4, 4),
        "altup_correct_scale": (32,),
        "laurel_l": (64, 32),
        "laurel_r": (32, 64),
        "laurel_post_norm": (32,),
    }
    return Shape(
        "gemma3n",
        layers,
        spread=0.06,
        depth=4,
        has_head=False,
        norms=_AROUND,
        head_norms="head",
        extra={
            **_WINDOW,
            "attention.sliding_window_pattern": [
                n % 5 < 4 and n not in (layers - 3, layers - 1) for n in every
            ],
            "attention.shared_kv_layers": 2,
            "rope.freq_base_swa": 500.0,
            "embedding_length_per_layer_input": 256,
            "altup.num_inputs": 4,
            "altup.active_idx": 0,
            "activation_sparsity_scale": [cut if n < 10 else -float("inf") for n in every],
        },
        matrices={
            "per_layer_token_embd.weight": (42, layers * 256),
            "per_layer_model_proj.weight": (layers * 256, 32),
            "per_layer_proj_norm.weight": (256,),
            "altup_proj.weight": (3, 32, 32),
            "altup_unembd_proj.weight": (3, 32, 32),
            **{f"blk.{n}.{name}.weight": dims for name, dims in own.items() for n in every},
        },
    )


_SECTIONS = {"rope.dimension_sections": [1, 1, 2, 0]}
MODELS: dict[str, Shape] = {
    "llama": Shape("llama"),
    "llama_factors": Shape(
        "llama", has_head=False, groups=4, vectors={"rope_freqs": [1.0, 1.5, 4.0, 8.0]}
    ),
    "llama_odd": Shape("llama", 3, width=30, heads=6, groups=3, depth=10, hidden=37, has_bias=True),
    "llama_linear": Shape("llama", groups=1, extra=_LINEAR),
    "qwen2": Shape("qwen2", has_bias=True, has_head=False),
    "qwen3": Shape("qwen3", depth=12, head_norms="head"),
    "gemma2": replace(_GEMMA, layers=3, extra=_WINDOW),
    "gemma3": replace(
        _GEMMA, arch="gemma3", layers=7, head_norms="head", extra={**_WINDOW, **_LINEAR}
    ),
    "phi3": _PHI,
    "phi3_partial": replace(_PHI, groups=2, rotated=4),
    "phi3_long": replace(
        _PHI,
        context=256,
        vectors=_FACTORS,
        extra={"rope.scaling.attn_factor": 1.19, "rope.scaling.original_context_length": 16},
    ),
    "llama_yarn": Shape("llama", extra=_YARN),
    "llama_longrope": Shape(
        "llama",
        vectors=_FACTORS,
        extra={"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 16},
    ),
    "llama_scales": Shape(
        "llama",
        vectors={
            "blk.0.attn_q.scale": [0.5],
            "blk.0.attn_v.scale": [1.75],
            "blk.0.attn_v.input_scale": [3.0],
            "blk.1.attn_output.scale": [0.7],
            "blk.0.ffn_gate.scale": [1.3],
            "blk.1.ffn_up.scale": [0.6],
            "blk.1.ffn_down.scale": [2.0],
        },
    ),
    "llama_biases": Shape("llama", is_fused=True, has_every_bias=True),
    "qwen3_yarn": Shape("qwen3", depth=12, head_norms="head", extra=_YARN),
    "gemma3_pattern": replace(
        _GEMMA,
        arch="gemma3",
        layers=4,
        head_norms="head",
        extra={
            **_WINDOW,
            "attention.sliding_window_pattern": [False, True, True, False],
            "rope.freq_base_swa": 500.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "arcee": Shape("arcee", gate=""),
    "chatglm": Shape("chatglm", is_fused=True, gate="fused", rotated=4, has_bias=True),
    "cohere2": replace(_COHERE, layers=5, extra={**_WINDOW, "logit_scale": 0.25}),
    "codeshell": replace(_LAYER, arch="codeshell", groups=4, is_fused=True),
    "command-r": replace(_COHERE, arch="command-r", extra={"logit_scale": 0.25}),
    "deci": Shape(
        *("deci", 5),
        heads=(4, 2, 0, 4, 4),
        groups=(2, 1, 0, 0, 4),
        hidden=(48, 20, 30, 24, 33),
    ),
    "ernie4_5": Shape("ernie4_5"),
    "exaone": Shape("exaone", vectors={"rope_freqs": [1.0, 1.5, 4.0, 8.0]}),
    "exaone4": Shape("exaone4", norms=_BEHIND, head_norms="head"),
    "exaone4_windows": Shape("exaone4", 64, norms=_BEHIND, head_norms="head", extra=_WINDOW),
    "falcon": replace(
        _LAYER,
        arch="falcon",
        groups=1,
        is_fused=True,
        norms=("attn_norm",),
        has_bias=False,
        has_every_bias=False,
    ),
    "falcon_second": replace(
        _LAYER,
        arch="falcon",
        is_fused=True,
        norms=("attn_norm", "attn_norm_2"),
        has_bias=False,
        has_every_bias=False,
        has_head=False,
    ),
    "gemma": Shape("gemma", has_head=False, depth=16),
    "gemma3n": gemma3n(22),
    "gemma4": _GEMMA4,
    "gemma4_plain": replace(
        _GEMMA4,
        vectors={"rope_freqs": [1.0, 1.2, 1.5, 2.0, 4.0, 8.0, 1e30, 1e30]},
        matrices={},
        absent=(),
        extra={
            **{k: v for k, v in _GEMMA4.extra.items() if "shared" not in k},
            "embedding_length_per_layer_input": 0,
        },
    ),
    "glm4": Shape("glm4", norms=_AROUND, gate="fused", rotated=4, has_bias=True),
    "glm4_sections": Shape("glm4", norms=_AROUND, gate="fused", extra=_SECTIONS),
    "gptneox": replace(
        _LAYER,
        arch="gptneox",
        is_fused=True,
        groups=4,
        rotated=4,
        extra={"use_parallel_residual": True},
    ),
    "gptneox_serial": replace(
        _LAYER, arch="gptneox", is_fused=True, groups=4, extra={"use_parallel_residual": False}
    ),
    "gpt2": _GPT2,
    "granite": _GRANITE,
    "granite_unrotated": replace(
        _GRANITE, extra={"logit_scale": 4.0, "rope.scaling.finetuned": False}
    ),
    "hunyuan-dense": Shape("hunyuan-dense", head_norms="head"),
    "internlm2": Shape("internlm2"),
    "jais2": replace(_LAYER, arch="jais2"),
    "maincoder": Shape("maincoder", head_norms="head"),
    "minicpm": Shape("minicpm", extra={"logit_scale": 4.0}),
    "minicpm_scales": replace(
        _GRANITE, arch="minicpm", extra={k: v for k, v in _GRANITE.extra.items() if "att" not in k}
    ),
    "mistral3": Shape("mistral3", extra={**_YARN, "attention.temperature_scale": 0.3}),
    "mistral3_ramp": Shape(
        "mistral3",
        depth=16,
        extra={
            **_YARN,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 0.25,
            "rope.scaling.yarn_log_multiplier": 0.8,
        },
    ),
    "nanbeige": Shape("nanbeige", extra={"num_loops": 2}),
    "nanbeige_plain": Shape("nanbeige", extra={"num_loops": 2, "skip_loop_final_norm": True}),
    "nemotron": replace(_LAYER, arch="nemotron", rotated=4),
    "olmo": Shape("olmo", norm_kind="plain", extra={"attention.clamp_kqv": 0.4}),
    "olmo2": Shape("olmo2", norms=_BEHIND, head_norms="row"),
    "olmo2_windows": Shape("olmo2", 5, norms=_BEHIND, head_norms="row", extra={**_WINDOW, **_YARN}),
    "openelm": Shape(
        "openelm",
        3,
        heads=(4, 2, 6),
        groups=(2, 1, 2),
        hidden=(48, 20, 33),
        head_norms="head",
        is_fused=True,
        has_head=False,
    ),
    "orion": Shape("orion", norm_kind="layer", has_norm_bias=True),
    "pangu-embedded": Shape(
        "pangu-embedded",
        has_bias=True,
        vectors={f"blk.{n}.attn_output.bias": [0.3 - m / 32 for m in range(32)] for n in range(2)},
    ),
    "phi2": replace(
        _LAYER,
        arch="phi2",
        norms=("attn_norm",),
        rotated=4,
        vectors={"output.bias": [n / 42 for n in range(42)]},
    ),
    "plamo": Shape("plamo", norms=("attn_norm",)),
    "qwen": Shape(
        "qwen", groups=4, hidden=24, is_fused=True, has_bias=True, extra={"feed_forward_length": 48}
    ),
    "qwen2vl": Shape("qwen2vl", has_bias=True, extra=_SECTIONS),
    "qwen3vl": Shape(
        "qwen3vl",
        depth=12,
        head_norms="head",
        extra={"rope.dimension_sections": [2, 2, 2, 0], "n_deepstack_layers": 0},
    ),
    "seed_oss": Shape("seed_oss", norms=("attn_norm", "post_attention_norm"), has_bias=True),
    "smollm3": Shape("smollm3", 5),
    "stablelm": replace(
        _LAYER, arch="stablelm", gate="own", has_every_bias=False, head_norms="heads", rotated=4
    ),
    "starcoder": replace(_GPT2, arch="starcoder", groups=1, has_head=True),
    "starcoder2": _LAYER,
    "xverse": Shape("xverse", groups=4),
}


_TYPES = {"tokenizer.ggml.token_type_count": 2}
_BERT = Shape(
    "bert",
    rotates=False,
    groups=4,
    has_head=False,
    has_bias=True,
    has_every_bias=True,
    has_norm_bias=True,
    norms=("attn_output_norm", "layer_output_norm"),
    norm_kind="layer",
    last_norm="",
    gate="",
    extra={"attention.causal": False, "pooling_type": 2},
    keys=_TYPES,
    vectors={"token_embd_norm.bias": [n / 64 - 0.2 for n in range(32)]},
    matrices={
        "token_types.weight": (2, 32),
        "position_embd.weight": (64, 32),
        "token_embd_norm.weight": (32,),
    },
)
_PARTS = {n: dims for n, dims in _BERT.matrices.items() if not n.startswith("position")}
_MEAN = {"attention.causal": False, "pooling_type": 1}
_T5 = Shape(
    "t5encoder",
    rotates=False,
    groups=4,
    has_head=False,
    gate="",
    prefix="enc.",
    last_norm="enc.output_norm",
    extra={"attention.relative_buckets_count": 32, "attention.layer_norm_epsilon": 1e-6},
    matrices={"enc.blk.0.attn_rel_b.weight": (32, 4)},
)
ENCODERS: dict[str, Shape] = {
    "bert": _BERT,
    "bert_mean": replace(_BERT, is_fused=True, extra=_MEAN),
    "bert_none": replace(_BERT, extra={"attention.causal": False}),
    "bert_last": replace(_BERT, extra={"attention.causal": False, "pooling_type": 3}),
    "nomic-bert": replace(
        _BERT,
        arch="nomic-bert",
        is_fused=True,
        gate="own",
        has_bias=False,
        has_every_bias=False,
        rotates=True,
        base=1000.0,
        extra=_MEAN,
        matrices=_PARTS,
    ),
    "jina-bert-v2": replace(
        _BERT,
        arch="jina-bert-v2",
        width=48,
        heads=6,
        groups=6,
        gate="own",
        extra=_MEAN,
        vectors={"token_embd_norm.bias": [n / 64 - 0.2 for n in range(48)]},
        matrices={"token_types.weight": (2, 48), "token_embd_norm.weight": (48,)},
        absent=tuple(f"blk.{n}.ffn_gate.bias" for n in range(2)),
    ),
    "jina-bert-v2_fused": replace(
        _BERT,
        arch="jina-bert-v2",
        gate="fused",
        head_norms="row",
        extra=_MEAN,
        matrices=_PARTS,
    ),
    "modern-bert": Shape(
        "modern-bert",
        layers=4,
        groups=4,
        has_head=False,
        is_fused=True,
        gate="fused",
        norm_kind="layer",
        base=160000.0,
        extra={**_MEAN, **_WINDOW},
        matrices={"token_embd_norm.weight": (32,)},
        absent=("blk.0.attn_norm.weight",),
    ),
    "modern-bert_silu": Shape(
        "modern-bert",
        groups=4,
        has_head=False,
        is_fused=True,
        gate="fused",
        norm_kind="layer",
        extra={"pooling_type": 2, "hidden_activation": "silu"},
        matrices={"token_embd_norm.weight": (32,)},
        absent=("blk.0.attn_norm.weight",),
    ),
    "gemma-embedding": replace(
        _GEMMA,
        arch="gemma-embedding",
        layers=7,
        head_norms="head",
        spread=0.35,
        extra={**_MEAN, **_WINDOW},
    ),
    "t5encoder": _T5,
    "t5encoder_gated": replace(_T5, gate="own", extra={**_T5.extra, "pooling_type": 1}),
    "t5encoder_long": replace(_T5, context=256, repeats=8, extra={**_T5.extra, "pooling_type": 1}),
    "jina-bert-v2_long": replace(
        _BERT,
        arch="jina-bert-v2",
        context=128,
        repeats=5,
        gate="",
        extra=_MEAN,
        matrices=_PARTS,
    ),
    "eurobert": Shape("eurobert", has_head=False, extra=_MEAN),
    "llama-embed": Shape("llama-embed", has_head=False, extra=_MEAN),
    "gemma4_mean": replace(_GEMMA4, extra={**_GEMMA4.extra, "pooling_type": 1}),
    "qwen3_last": Shape(
        "qwen3", depth=12, head_norms="head", has_head=False, extra={"pooling_type": 3}
    ),
}
"""Models that embed texts."""


if __name__ == "__main__":
    for name, shape in (MODELS | ENCODERS).items():
        write(Path(sys.argv[1]) / f"{name}.gguf", shape)
