"""Decoders of GGUF files: llama.cpp's logits for small models of every architecture, in pieces."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind

import aot
from aot.errors import CompileError, UnsupportedError
from aot.frontends.gguf import import_gguf, read_gguf, weights
from aot.frontends.gguf.architectures import ARCHITECTURES
from aot.frontends.gguf.caches import hadamard
from aot.ir import large_arrays
from aot.ir.dims import Dim
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.verifier import verify
from aot.link import rodata
from aot.link.program_steps import Steps
from tests.support.gguf_files import Shape, data
from tests.support.gguf_models import JUDGED, MODELS, PIECES, TOKENS, gemma3n
from tests.support.paths import ROOT

SAID = json.loads((ROOT / "tests/support/gguf_logits.json").read_text())
TOLERANCE = 1e-3  # of the logits' range; keys and values are in f16

Array = np.ndarray[Any, Any]


def interpreted(module: Module, tokens: list[int], pieces: tuple[int, ...]) -> Array:
    """Logits of all runs below each other; states are handed on."""
    function = module.main
    held = {
        v.name: np.zeros(
            [0 if str(n) in ("past", "held") else n for n in v.type.dims], v.type.dtype.numpy
        )
        for v in function.inputs[1:]
    }
    found, first = [], 0
    for count in pieces:
        feeds = {"tokens": np.asarray(tokens[first : first + count], np.int32), **held}
        results = dict(zip(function.result_names, run(function, feeds), strict=True))
        held = {name: results[f"{name}.next"] for name in held}
        found.append(results["logits"])
        first += count
    return np.concatenate(found)


def compiled(model: bytes, tokens: list[int], pieces: tuple[int, ...], **options: Any) -> Array:
    program = aot.load(aot.compile(model, jobs=1, **options))
    found, first = [], 0
    for count in pieces:
        piece = np.asarray(tokens[first : first + count], np.int32)
        found.append(np.array(program(piece)["logits"]))
        first += count
    return np.concatenate(found)


def divergence(wanted: Array, found: Array) -> float:
    """The largest KL divergence of a row's distribution of tokens from the wanted one."""
    wanted, found = (x.astype(np.float64) - x.max(-1, keepdims=True) for x in (wanted, found))
    wanted, found = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (wanted, found))
    return float((np.exp(wanted) * (wanted - found)).sum(-1).max())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_llama_cpp(name: str) -> None:
    module = import_gguf(data(MODELS[name]), all_logits=True)
    verify(module, error=CompileError, is_ruled=True)
    found = interpreted(module, TOKENS, PIECES)[list(JUDGED)]
    said = SAID[name]
    wanted = np.asarray(said["logits"])
    assert np.abs(found - wanted).max() <= TOLERANCE * said["range"]
    assert divergence(wanted, found) <= 1e-5


def test_every_architecture_has_a_model() -> None:
    archs = {name for name, row in ARCHITECTURES.items() if row.pooling.is_causal}
    assert {shape.arch for shape in MODELS.values()} == archs


@pytest.mark.parametrize("name", ["deci", "cohere2", "gemma3n", "gemma4"])
def test_only_the_last_tokens_of_other_parts(name: str) -> None:
    """Layers without attention, and branches side by side."""
    found = interpreted(import_gguf(data(MODELS[name])), TOKENS, PIECES)[-1]
    said = SAID[name]
    error = np.abs(found - np.asarray(said["logits"][-1])).max()
    assert error <= TOLERANCE * said["range"]


def test_rows_of_positions_are_as_many_as_the_model_has() -> None:
    assert import_gguf(data(MODELS["gpt2"])).states["keys.0"] == ("keys.0.next", 64, 0)
    with pytest.raises(CompileError, match="--context is 65, expected 64 at most, the positions"):
        import_gguf(data(MODELS["gpt2"]), context=65)


def test_layers_that_read_the_caches_of_others_have_none() -> None:
    states = import_gguf(data(MODELS["gemma4"])).states
    assert [name for name in states if name.startswith("keys")] == [f"keys.{n}" for n in range(4)]
    for shared, message in (
        (5, "is 5, expected at most 4 of 6 layers"),
        (1, "is 1, expected a layer 4 of the same kind of window"),
    ):
        extra = {**MODELS["gemma4"].extra, "attention.shared_kv_layers": shared}
        with pytest.raises(CompileError) as caught:
            import_gguf(data(replace(MODELS["gemma4"], extra=extra)))
        assert str(caught.value) == f"model: key 'gemma4.attention.shared_kv_layers' {message}"


def test_streams_of_several_sequences_are_compiled() -> None:
    """The interpreter's products of the same codes; matrices that lie in one tensor are in
    blocks."""
    model = data(replace(gemma3n(4), kind=Kind.Q8_0))
    wanted = interpreted(import_gguf(model), TOKENS, (len(TOKENS),))
    program = aot.load(aot.compile(model, sequences=2, activations="f32", jobs=1))
    tokens = np.asarray([[0] * 5 + TOKENS[:-5], TOKENS], np.int32)
    found = np.array(program(tokens, np.asarray([5, 0], np.int32))["logits"])
    short = interpreted(import_gguf(model), TOKENS, (len(TOKENS) - 5,))
    wanted = np.concatenate([short, wanted])
    assert np.abs(found - wanted).max() <= TOLERANCE * np.ptp(wanted)


def test_what_gemma3n_says_of_its_streams_and_cuts_is_checked() -> None:
    key = "key 'gemma3n."
    for change, message in (
        ({"altup.active_idx": 1}, f"{key}altup.active_idx' is 1, expected 0: layers work on the f"),
        ({"altup.num_inputs": 1}, f"{key}altup.num_inputs' is 1, expected a whole number, 2 or mo"),
        ({"altup.num_inputs": 1 << 20}, f"{key}altup.num_inputs' is 1048576, expected at most"),
        ({"altup.num_inputs": 3}, "tensor 'altup_proj.weight' has dims [3, 32, 32], expected [2, "),
        (
            {"activation_sparsity_scale": [0.5]},
            f"{key}activation_sparsity_scale' is [0.5], expected a number, or 22 of them, one for",
        ),
        (
            {"activation_sparsity_scale": float("nan")},
            f"{key}activation_sparsity_scale' is nan, expected numbers",
        ),
    ):
        extra = {**MODELS["gemma3n"].extra, **change}
        with pytest.raises((CompileError, UnsupportedError)) as caught:
            import_gguf(data(replace(MODELS["gemma3n"], extra=extra)))
        assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mistral3", "gpt2"])
def test_positions_are_those_of_sequences(name: str) -> None:
    """Of a text, without the padding before it: temperatures, and rows of positions."""
    program = aot.load(aot.compile(data(MODELS[name]), sequences=2, jobs=1))
    tokens = np.asarray([[0] * 15 + TOKENS[:9], TOKENS], np.int32)
    found = np.array(program(tokens, np.asarray([15, 0], np.int32))["logits"])
    said = SAID[name]
    assert np.abs(found - np.asarray(said["logits"][1:])).max() <= TOLERANCE * said["range"]


@pytest.mark.parametrize("name", ["llama_odd", "gemma3", "phi3_long", "cohere2", "gemma4"])
def test_compiled_decoders_agree(name: str) -> None:
    found = compiled(data(MODELS[name]), TOKENS, PIECES, all_logits=True)
    said = SAID[name]
    error = np.abs(found[list(JUDGED)] - np.asarray(said["logits"])).max()
    assert error <= TOLERANCE * said["range"]


@pytest.mark.parametrize(("cache", "most"), [("int8", 1e-2), ("int4", 1e-1)])
@pytest.mark.parametrize("name", ["llama_odd", "gemma3"])
def test_keys_and_values_in_few_bits(name: str, cache: str, most: float) -> None:
    """They round more than f16 does, by a scale for each row; a zero row is no division by zero."""
    model = data(MODELS[name])
    module = import_gguf(model, all_logits=True, cache_type=cache)
    verify(module, error=CompileError, is_ruled=True)
    wanted = interpreted(module, TOKENS, PIECES)
    said = SAID[name]
    error = np.abs(wanted[list(JUDGED)] - np.asarray(said["logits"])).max()
    assert TOLERANCE * said["range"] < error <= most * said["range"]
    found = compiled(model, TOKENS, PIECES, all_logits=True, cache_type=cache)
    assert np.abs(found - wanted).max() <= 2e-3 * said["range"]


@pytest.mark.parametrize("depth", [32, 48])
def test_values_in_4_bits_are_turned_back(depth: int) -> None:
    """A Hadamard matrix is its own inverse: what is kept is far from the values in their own axes,
    and an element that is much larger than others leaves them their digits."""
    matrix = hadamard(depth & -depth).astype(np.float64)
    np.testing.assert_allclose(matrix @ matrix, np.eye(len(matrix)), atol=1e-6)
    large = np.zeros(len(matrix))
    large[3] = 1
    assert np.abs(large @ matrix).max() == pytest.approx(len(matrix) ** -0.5)
    shape = replace(MODELS["llama"], depth=depth, layers=1)
    module = import_gguf(data(shape), all_logits=True, cache_type="int4")
    kept = {name: tie for name, tie in module.states.items() if name.startswith("values")}
    assert set(kept) == {"values.0", "values.0.scale", "values.0.minimum"}
    wanted = interpreted(import_gguf(data(shape), all_logits=True), TOKENS, PIECES)
    error = np.abs(interpreted(module, TOKENS, PIECES) - wanted).max()
    assert 0 < error <= 1e-1 * np.ptp(wanted)


def test_the_ends_of_deep_models_round_nothing() -> None:
    """But for what `--activations int8` asks for."""
    shape = replace(MODELS["llama"], width=32, hidden=32, kind=Kind.Q8_0)
    for layers, exact in ((15, set()), (16, {0, 15})):
        module = import_gguf(data(replace(shape, layers=layers)))
        rounding: dict[int, set[bool]] = {}
        for op in module.entry_points[0].walk():
            place = re.match(r"blk\.(\d+)\.(?!attn_v)", op.origin)
            if op.name == "matmul_blocked" and place:
                rounding.setdefault(int(place[1]), set()).add(bool(op.attrs["may_quantize"]))
        assert rounding == {n: {n not in exact} for n in range(layers)}


def test_copies_of_windows_are_tried_in_their_own_buffers_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed proof takes half a second, and layers and sequences have many buffers."""
    answers: list[bool] = []
    ask = Steps.is_nonnegative

    def counted(steps: Steps, *wanted: Dim) -> bool:
        answers.append(ask(steps, *wanted))
        return answers[-1]

    monkeypatch.setattr(Steps, "is_nonnegative", counted)
    model = data(replace(MODELS["gemma3"], layers=1))
    aot.compile(model, sequences=3, context=900, jobs=1)
    assert answers.count(True) > 20
    assert answers.count(False) == 0


_LONG = [int(n) for n in np.random.default_rng(3).integers(0, 42, 700)]
_LOCAL = {"attention.sliding_window": 20}


@pytest.mark.parametrize("cache", ["f16", "int8"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(MODELS["gemma3"], id="some layers"),
        pytest.param(replace(MODELS["phi3"], extra=_LOCAL), id="all layers"),
    ],
)
def test_a_window_needs_no_earlier_rows(shape: Shape, cache: str) -> None:
    """Over thirty windows, by prompts longer than one and by single tokens, the logits are those
    of the interpreter, whose keys and values stay whole and are masked."""
    model = data(replace(shape, context=1000))
    options: dict[str, Any] = {"all_logits": True, "cache_type": cache}
    module = import_gguf(model, **options)
    window = int(shape.extra["attention.sliding_window"]) - 1
    assert module.states["keys.0"] == ("keys.0.next", window + 64 + 127 + 512, window)
    has_global = shape.arch == "gemma3"
    last = ("keys.5", ("keys.5.next", 1000, 0)) if has_global else ("tokens.past", ANY)
    assert module.states[last[0]] == last[1]
    pieces = (300, 1, 90, *[1] * 140, 2, 160)
    wanted = interpreted(module, _LONG, pieces)
    found = compiled(model, _LONG, pieces, **options)
    assert np.abs(found - wanted).max() <= 2 * TOLERANCE * np.ptp(wanted)


@pytest.mark.parametrize(
    ("shape", "cache"),
    [
        pytest.param(MODELS["gemma3"], "f16", id="windows"),
        pytest.param(replace(MODELS["phi3"], extra=_LOCAL), "int8", id="windows only"),
        pytest.param(MODELS["llama_odd"], "f16", id="whole"),
    ],
)
def test_sequences_are_those_of_runs_alone(shape: Shape, cache: str) -> None:
    """Prompts of several lengths, in pieces, then token by token."""
    model = data(replace(shape, context=900))
    many = aot.load(aot.compile(model, sequences=3, cache_type=cache, jobs=1))
    lengths, more = (300, 17, 120), 30
    texts = [np.asarray(_LONG[n : n + n + more], np.int32) for n in lengths]
    wanted = []
    for text, count in zip(texts, lengths, strict=True):
        pieces = (count, *[1] * more)
        wanted.append(compiled(model, list(text), pieces, context=900, cache_type=cache))
    width = max(lengths)
    starts = np.asarray([width - n for n in lengths], np.int32)
    tokens = np.zeros((3, width + more), np.int32)
    for row, text in enumerate(texts):
        tokens[row, starts[row] :] = text
    assert many.inputs[0].bounds == ((3, 3), (1, 170))
    ends = [*range(0, width, 100), *range(width, width + more + 1)]
    found = []
    for begin, end in pairwise(ends):
        piece = np.ascontiguousarray(tokens[:, begin:end])
        found.append(np.array(many(piece, starts)["logits"]))
    for row in range(3):
        ours = np.stack([x[row] for x in found[-more - 1 :]])
        assert np.abs(ours - wanted[row]).max() <= TOLERANCE * np.ptp(wanted[row])


def test_too_many_sequences_are_refused() -> None:
    with pytest.raises(CompileError) as caught:
        aot.compile(data(MODELS["llama"]), sequences=513)
    assert str(caught.value) == "sequences is 513, expected 512 at most"


def test_what_windows_have_is_saved_and_taken_back(tmp_path: Path) -> None:
    shape = replace(MODELS["phi3"], groups=2, context=2000, extra=_LOCAL)
    program = aot.load(aot.compile(data(shape), jobs=1))

    def run(first: int, count: int) -> Array:
        piece = np.asarray(_LONG[first : first + count], np.int32)
        return np.array(program(piece)["logits"])

    run(0, 500)
    run(500, 60)
    wanted = [run(n, 1) for n in range(560, 600)]
    assert (program.state_length, program.state_capacity) == (600, 2000)
    program.rewind(570)
    program.save_state(tmp_path / "s")
    np.testing.assert_array_equal(run(570, 1), wanted[10])
    program.reset()
    run(0, 3)
    program.load_state(tmp_path / "s")
    assert (tmp_path / "s").stat().st_size < 16 * 1024  # of 2 layers: 64 bytes a row of each
    for n in range(570, 575):
        np.testing.assert_array_equal(run(n, 1), wanted[n - 560])
    with pytest.raises(aot.AotError) as caught:
        program.rewind(400)
    assert str(caught.value) == (
        "cannot rewind to 400: of 575 rows the state's windows keep what the last 44 need; reset "
        "the program"  # 63 are held, and a token looks at 19 before it
    )
    np.testing.assert_array_equal(run(575, 1), wanted[15])  # as it was
    program.rewind(0)
    run(0, 500)
    run(500, 60)
    np.testing.assert_array_equal(run(560, 1), wanted[0])


def test_as_many_as_64_tokens_can_be_taken_back_anywhere() -> None:
    """Wherever a window's rows have moved just now."""
    shape = replace(MODELS["phi3"], groups=2, context=2000, extra=_LOCAL)
    program = aot.load(aot.compile(data(shape), jobs=1))
    tokens = np.asarray(_LONG, np.int32)
    program(tokens[:80])
    for end in range(88, 700, 7):
        program(tokens[program.state_length : end - 1])
        held = np.array(program(tokens[end - 1 : end])["logits"])
        program.rewind(end - 64)
        program(tokens[end - 64 : end - 1])
        again = program(tokens[end - 1 : end])
        np.testing.assert_allclose(again["logits"], held, rtol=0, atol=1e-4 * np.ptp(held))


def test_scaled_keys_and_values_are_read_where_they_are(tmp_path: Path) -> None:
    """No row of an earlier token is stored anew."""
    aot.compile(data(MODELS["llama"]), cache_type="int8", jobs=1, dump_ir=tmp_path)
    (last,) = tmp_path.glob("*-outline.ir")
    (head,) = re.findall(r"executable (@\w+.*)\n(?:  %.*\n)*.* = attention\(", last.read_text())
    assert head.count("i8[") == 2


def test_only_the_last_tokens_logits_are_given() -> None:
    model = data(MODELS["qwen2"])
    every = interpreted(import_gguf(model, all_logits=True), TOKENS, PIECES)
    last = interpreted(import_gguf(model), TOKENS, PIECES)
    ends = np.cumsum(PIECES) - 1
    assert last.shape == (len(PIECES), MODELS["qwen2"].vocabulary)
    np.testing.assert_allclose(last, every[ends], rtol=0, atol=1e-4)


QUANTISED = (
    *(Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.Q2_K),
    *(Kind.Q3_K, Kind.IQ4_NL, Kind.IQ4_XS, Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4, Kind.NVFP4),
    *(Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S, Kind.IQ1_S, Kind.IQ1_M),  # IQ2_XS has IQ2_S' codes
)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q4_0, *QUANTISED], ids=lambda k: k.name)
def test_quantised_decoders_run_on_their_codes(kind: Kind) -> None:
    """The interpreter's products of the weights as they are; the embedding is the head."""
    width = max(64, GGML_QUANT_SIZES[kind][0])
    shape = Shape("llama", 1, width=width, hidden=width, kind=kind, depth=width // 4, groups=4)
    model = data(replace(shape, has_head=kind is Kind.Q6_K, spread=0.1))
    pieces = (11, 1, 3)
    wanted = interpreted(import_gguf(model, all_logits=True), TOKENS, pieces)
    found = compiled(model, TOKENS, pieces, all_logits=True, activations="f32")
    assert np.abs(found - wanted).max() <= TOLERANCE * np.ptp(wanted)
    if kind in (Kind.Q5_1, Kind.Q4_K, Kind.Q6_K, Kind.Q2_K, Kind.MXFP4):
        rounded = compiled(model, TOKENS, pieces, all_logits=True)
        assert 0 < np.abs(rounded - wanted).max() <= 0.1 * np.ptp(wanted)


@pytest.mark.parametrize(
    ("kind", "bits"), [(Kind.Q4_0, 4), (Kind.F16, 16), (Kind.BF16, 16), (Kind.F32, 32)]
)
def test_a_tied_embedding_is_stored_once(kind: Kind, bits: int) -> None:
    shape = Shape("llama", 1, kind=kind, width=64, depth=16, hidden=64, vocabulary=4090)
    sizes = [len(aot.compile(data(replace(shape, has_head=h))).to_bytes()) for h in (False, True)]
    assert sizes[1] - sizes[0] > 4000 * 64 * bits // 8  # the head's own


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q6_K])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_models_that_are_packed_in_parts_and_kept_in_files_are_the_same(
    name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(MODELS[name], kind=kind, width=256, hidden=256, depth=64, extra={})
    model = data(replace(shape, vocabulary=72))
    whole = aot.compile(model, jobs=1).to_bytes()
    monkeypatch.setattr(weights, "PACKED_ELEMENTS", 32 * 256)
    monkeypatch.setattr(large_arrays, "LARGE_BYTES", 1)
    monkeypatch.setattr(large_arrays, "KEPT_BYTES", 0)
    monkeypatch.setattr(large_arrays, "PART_BYTES", 1000)
    monkeypatch.setattr(rodata, "JOINED_BYTES", 0)
    made = aot.compile(model, jobs=1)
    assert isinstance(made.image.rodata, rodata.Pieces)
    assert made.to_bytes() == whole


def test_scales_of_some_rows_that_f16_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are packed some at a time: all have the dtype that some need."""
    shape = replace(MODELS["llama"], kind=Kind.MXFP4, width=64, hidden=64, vocabulary=72)
    model = bytearray(data(shape))
    wanted = interpreted(import_gguf(bytes(model)), TOKENS, (5,))
    tensor = read_gguf(bytes(model)).tensors["blk.0.ffn_up.weight"]
    at = model.index(tensor.data.tobytes()) + 48 * 34
    assert model[at] > 100
    model[at] = 20
    found = []
    for elements in (1 << 24, 16 * 64):
        monkeypatch.setattr(weights, "PACKED_ELEMENTS", elements)
        module = import_gguf(bytes(model))
        found.append(interpreted(module, TOKENS, (5,)))
    assert np.array_equal(*found)
    assert not np.array_equal(found[0], wanted)


def test_products_of_unlike_widths_share_a_kernel_with_their_own_tile(tmp_path: Path) -> None:
    """Rows and columns whose sums are in registers beside the weights' words, for all of them."""
    shape = replace(MODELS["llama"], kind=Kind.Q4_0, width=576, hidden=1536, depth=64, heads=9)
    model = data(replace(shape, groups=3, layers=1, vocabulary=64))
    aot.compile(model, targets=["x86-64-v3"], activations="int8", jobs=1, dump_ir=tmp_path)
    (last,) = tmp_path.glob("*-despecialise.ir")
    found = re.findall(
        r"executable @\w+\[d0.*schedule \[contraction \S+ (tile=\S+)\].*\n.*matmul_blocked",
        last.read_text(),
    )
    assert found
    assert set(found) == {"tile=4:16"}


def test_progress_counts_tensors() -> None:
    model = data(MODELS["llama"])
    seen: list[tuple[int, int]] = []
    import_gguf(model, progress=lambda stage, done, total: seen.append((done, total)))
    count = len(read_gguf(model).tensors)
    assert seen[-1] == (count, count)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_states_hold_the_context_that_is_asked_for() -> None:
    model = data(MODELS["llama"])
    assert import_gguf(model).states["keys.1"] == ("keys.1.next", 64, 0)
    assert import_gguf(model, context=16).states["values.0"] == ("values.0.next", 16, 0)
    long = data(replace(MODELS["llama"], context=8192))
    assert import_gguf(long).states["keys.0"] == ("keys.0.next", 2048, 0)
    program = aot.load(aot.compile(model, context=16, jobs=1))
    program(np.zeros(12, np.int32))
    with pytest.raises(aot.AotError, match='state "keys.0" holds at most 16 of 17 along dim 1'):
        program(np.zeros(5, np.int32))
    with pytest.raises(aot.AotError, match="T, must be at least 1 and at most 16"):
        program(np.zeros(17, np.int32))


def test_options_of_language_models_are_refused_elsewhere() -> None:
    text = b"func main(%x: f32[4]) -> (y: f32[4]) {\n  %0 = relu(%x) : f32[4]\n  return %0\n}\n"
    with pytest.raises(CompileError) as caught:
        aot.compile(text, context=16)
    assert str(caught.value) == "--context is for a GGUF file, not text IR"
