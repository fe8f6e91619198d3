"""The architectures of GGUF files: a table of what parts each is made of.

Owns the rows and nothing else. docs/internals/add-an-architecture.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping

from aot.frontends.gguf.parts import (
    Architecture,
    Attention,
    Embedding,
    Extents,
    FeedForward,
    Head,
    HeadNorms,
    LowRank,
    Norms,
    Pooling,
    Residual,
    Rope,
    Side,
    Streams,
    Window,
)

_AROUND = Norms(after=("post_attention_norm", "post_ffw_norm"))
_BEHIND = Norms(attention="", feed_forward="", after=("post_attention_norm", "post_ffw_norm"))
_LAYER = Norms("layer")
_LAYER_SHARED = Norms("layer", feed_forward="")
_BERT = Norms(
    "layer",
    attention="",
    feed_forward="",
    after=("attn_output_norm", "layer_output_norm"),
    follow_sums=True,
    last="",
)
_GELU = FeedForward(activation="gelu")
_NEIGHBOURS = Rope("neighbours")
_LLAMA = Rope("neighbours", factors="any")

ARCHITECTURES: Mapping[str, Architecture] = {
    "arcee": Architecture("AFM", rope=_LLAMA, feed_forward=FeedForward("", "relu squared")),
    "bert": Architecture(
        "BERT, all-MiniLM, bge, e5, gte, snowflake-arctic-embed",
        embedding=Embedding(has_types=True, has_positions=True, norm="layer"),
        norms=_BERT,
        rope=Rope(""),
        feed_forward=FeedForward("", "gelu"),
        pooling=Pooling(is_causal=False),
    ),
    "chatglm": Architecture("GLM 3 and 4", rope=_NEIGHBOURS, feed_forward=FeedForward("fused")),
    "cohere2": Architecture(
        "Command R7B, Command A, Aya",
        norms=_LAYER_SHARED,
        window=Window(period=4),
        rope=Rope("neighbours", is_local=True),
        residual=Residual(is_parallel=True),
        head=Head("times", needs_scale=True),
    ),
    "codeshell": Architecture("CodeShell", norms=_LAYER, feed_forward=FeedForward("", "gelu")),
    "command-r": Architecture(
        "Command R and R+, Aya 23",
        norms=_LAYER_SHARED,
        head_norms=HeadNorms("heads", "layer", are_optional=True),
        rope=_NEIGHBOURS,
        residual=Residual(is_parallel=True),
        head=Head("times"),
    ),
    "deci": Architecture("Llama Nemotron Super and Ultra, DeciLM", rope=_LLAMA),
    "ernie4_5": Architecture("ERNIE 4.5 0.3B", rope=Rope("neighbours", has_sections=True)),
    "eurobert": Architecture("EuroBERT", pooling=Pooling(is_causal=False)),
    "exaone": Architecture("EXAONE 3 and 3.5", rope=Rope(factors="any")),
    "exaone4": Architecture(
        "EXAONE 4",
        norms=_BEHIND,
        head_norms=HeadNorms(),
        window=Window(4096, period=4, layers=64),
        rope=Rope(factors="any", is_local=True),
    ),
    "falcon": Architecture(
        "Falcon",
        norms=Norms("layer", feed_forward="", second="attn_norm_2"),
        feed_forward=FeedForward("", "gelu"),
        residual=Residual(is_parallel=True),
    ),
    "gemma": Architecture("Gemma", embedding=Embedding("width"), feed_forward=_GELU),
    "gemma2": Architecture(
        "Gemma 2",
        embedding=Embedding("width"),
        norms=_AROUND,
        attention=Attention(wide_layers=46, cap=50.0),
        window=Window(4096, period=2),
        feed_forward=_GELU,
        head=Head(cap=30.0),
    ),
    "gemma3": Architecture(
        "Gemma 3, text only",
        embedding=Embedding("width"),
        norms=_AROUND,
        head_norms=HeadNorms(),
        attention=Attention(wide_layers=62),
        window=Window(period=6, base=10000.0, is_plain=True),
        feed_forward=_GELU,
        head=Head(cap=0.0),
    ),
    "gemma-embedding": Architecture(
        "EmbeddingGemma",
        embedding=Embedding("width"),
        norms=_AROUND,
        head_norms=HeadNorms(),
        window=Window(period=6, base=10000.0, is_plain=True),
        feed_forward=_GELU,
        pooling=Pooling(is_causal=False),
    ),
    "gemma3n": Architecture(
        "Gemma 3n, text only",
        extents=Extents(shares_caches=True),
        embedding=Embedding("width"),
        norms=_AROUND,
        head_norms=HeadNorms(has_values=True),
        attention=Attention(""),
        window=Window(period=5, base=10000.0, is_plain=True),
        feed_forward=FeedForward(activation="gelu", has_cuts=True),
        head=Head(cap=30.0),
        side=Side(),
        streams=Streams(),
        low_rank=LowRank(),
    ),
    "gemma4": Architecture(
        "Gemma 4, dense, text only",
        extents=Extents(has_local=True, shares_caches=True),
        embedding=Embedding("width"),
        norms=_AROUND,
        head_norms=HeadNorms(has_values=True),
        attention=Attention("", keys_may_be_values=True),
        window=Window(period=6, base=10000.0, is_plain=True),
        rope=Rope(factors="any", has_local=True),
        feed_forward=_GELU,
        residual=Residual(has_layer_factors=True),
        head=Head(cap=30.0),
        side=Side(),
    ),
    "glm4": Architecture(
        "GLM-4-0414, GLM-Z1",
        norms=_AROUND,
        rope=Rope("neighbours", has_sections=True),
        feed_forward=FeedForward("fused"),
    ),
    "gpt2": Architecture(
        "GPT-2",
        embedding=Embedding(has_positions=True),
        norms=_LAYER,
        rope=Rope(""),
        feed_forward=FeedForward("", "gelu"),
    ),
    "gptneox": Architecture(
        "Pythia, GPT-NeoX",
        norms=_LAYER,
        feed_forward=FeedForward("", "gelu"),
        residual=Residual(is_choice=True),
    ),
    "granite": Architecture(
        "Granite 3 and 4, dense",
        embedding=Embedding("key"),
        attention=Attention("key"),
        rope=Rope("neighbours", factors="any", may_be_absent=True),
        residual=Residual(scale=True),
        head=Head("over", needs_scale=True),
    ),
    "hunyuan-dense": Architecture("Hunyuan, dense", head_norms=HeadNorms(follow_rotation=True)),
    "internlm2": Architecture("InternLM 2, 2.5 and 3", rope=_NEIGHBOURS),
    "jais2": Architecture("Jais 2", norms=_LAYER, feed_forward=FeedForward("", "relu squared")),
    "jina-bert-v2": Architecture(
        "Jina Embeddings 2",
        embedding=Embedding(has_types=True, norm="layer"),
        norms=_BERT,
        head_norms=HeadNorms("row", "layer", are_optional=True),
        attention=Attention(bias="slopes"),
        rope=Rope(""),
        feed_forward=FeedForward("found", "gelu"),
        pooling=Pooling(is_causal=False),
    ),
    "llama": Architecture("SmolLM2, Llama 2 and 3, Mistral", rope=_LLAMA),
    "llama-embed": Architecture(
        "Llama-Embed-Nemotron", rope=_LLAMA, pooling=Pooling(is_causal=False)
    ),
    "maincoder": Architecture(
        "Maincoder", head_norms=HeadNorms(follow_rotation=True), rope=_NEIGHBOURS
    ),
    "minicpm": Architecture(
        "MiniCPM, MiniCPM4",
        embedding=Embedding("key", 12.0),
        rope=_LLAMA,
        residual=Residual(scale=True, scaled_depth=1.4),
        head=Head("over", needs_scale=True),
    ),
    "mistral3": Architecture(
        "Mistral Small 3, Ministral 3",
        attention=Attention(has_temperature=True),
        rope=Rope("neighbours", factors="any", has_ramp=True),
    ),
    "modern-bert": Architecture(
        "ModernBERT, Granite Embedding R2",
        embedding=Embedding(norm="layer"),
        norms=Norms("layer", first_is_plain=True),
        window=Window(period=3, base=10000.0, is_plain=True, begins_global=True),
        feed_forward=FeedForward("fused", "gelu", is_choice=True),
        pooling=Pooling(is_causal=False),
    ),
    "nanbeige": Architecture("Nanbeige 4", extents=Extents(has_loops=True), rope=_LLAMA),
    "nemotron": Architecture(
        "Minitron, Nemotron 4", norms=_LAYER, feed_forward=FeedForward("", "relu squared")
    ),
    "nomic-bert": Architecture(
        "Nomic Embed 1 and 1.5",
        embedding=Embedding(has_types=True, norm="layer"),
        norms=_BERT,
        pooling=Pooling(is_causal=False),
    ),
    "olmo": Architecture(
        "OLMo",
        norms=Norms("layer", has_weights=False),
        attention=Attention(clamps=True),
        rope=_NEIGHBOURS,
    ),
    "olmo2": Architecture(
        "OLMo 2 and 3",
        norms=_BEHIND,
        head_norms=HeadNorms("row"),
        window=Window(period=4, is_plain=True),
    ),
    "openelm": Architecture("OpenELM", head_norms=HeadNorms()),
    "orion": Architecture("Orion", norms=_LAYER),
    "pangu-embedded": Architecture("openPangu Embedded", rope=Rope(factors="any")),
    "phi2": Architecture(
        "Phi-1, Phi-1.5 and Phi-2",
        norms=_LAYER_SHARED,
        feed_forward=FeedForward("", "gelu"),
        residual=Residual(is_parallel=True),
    ),
    "phi3": Architecture(
        "Phi-3, Phi-3.5 and Phi-4 mini",
        window=Window(),
        rope=Rope(factors="long"),
        feed_forward=FeedForward("fused"),
    ),
    "plamo": Architecture(
        "PLaMo", norms=Norms(feed_forward=""), residual=Residual(is_parallel=True)
    ),
    "qwen": Architecture("Qwen 1", extents=Extents(are_halved=True)),
    "qwen2": Architecture("Qwen 2 and 2.5"),
    "qwen2vl": Architecture("Qwen 2 VL and 2.5 VL, text only", rope=Rope(has_sections=True)),
    "qwen3": Architecture("Qwen 3", head_norms=HeadNorms()),
    "qwen3vl": Architecture(
        "Qwen 3 VL, text only",
        head_norms=HeadNorms(),
        rope=Rope(has_sections=True),
        unused={"n_deepstack_layers": "of images"},
    ),
    "seed_oss": Architecture("Seed-OSS", norms=Norms(feed_forward="post_attention_norm")),
    "smollm3": Architecture("SmolLM3", rope=Rope("neighbours", skips=4)),
    "stablelm": Architecture(
        "Stable LM 3B and 2 1.6B",
        norms=_LAYER,
        head_norms=HeadNorms("heads", "layer", are_optional=True),
        unused={"use_parallel_residual": "of models without ffn_norm"},
    ),
    "starcoder": Architecture(
        "StarCoder, SantaCoder",
        embedding=Embedding(has_positions=True),
        norms=_LAYER,
        rope=Rope(""),
        feed_forward=FeedForward("", "gelu"),
    ),
    "starcoder2": Architecture("StarCoder 2", norms=_LAYER, feed_forward=FeedForward("", "gelu")),
    "t5encoder": Architecture(
        "the encoder of T5 and Flan-T5",
        extents=Extents(prefix="enc."),
        norms=Norms(last="enc.output_norm"),
        attention=Attention("", bias="buckets", output="attn_o"),
        rope=Rope(""),
        feed_forward=FeedForward("found", "gelu", plain_activation="relu"),
        pooling=Pooling(is_causal=False),
    ),
    "xverse": Architecture("XVERSE", rope=_NEIGHBOURS),
}
"""By the name that a file has in general.architecture."""
