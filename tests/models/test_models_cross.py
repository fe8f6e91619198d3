"""Four reference models on the CPUs that are not this one: ONNX Runtime's results, under QEMU.

And on each level of this machine's own that it has. A convolution network, one with dims left open,
a recurrent one, and one of matrices and means. Under QEMU each runs on one target or two, and
each target one model or two, all pairs with -m sweep; every op runs on each target in
tests/runtime/test_op_samples.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.tools.agreement import compare
from tests.support.cross import require_runtime, run_emulated
from tests.support.models import compiled, feeds, reference
from tests.support.samples_module import CROSS, NATIVE

MODELS = ("ppocr_cls", "squeezenet_rw", "silero_vad_16k", "magika")
AT_OTHER_SHAPES = ("ppocr_cls",)  # the small one
TOLERANCE = 1e-4  # of each output's largest magnitude

pytestmark = pytest.mark.models


def check(name: str, run: str, outputs: dict[str, np.ndarray]) -> None:
    for output, wanted in reference(name, run).items():
        agreement = compare(output, outputs[output], wanted)
        assert agreement.error <= TOLERANCE, (run, agreement)


def runs(name: str) -> list[str]:
    return ["1", "alt"] if name in AT_OTHER_SHAPES else ["1"]


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize("name", MODELS)
def test_on_each_level_of_this_cpu(name: str, target: str) -> None:
    with aot.load(compiled(name, targets=[target])) as program:
        assert program.target == target
        for run in runs(name):
            check(name, run, program(feeds(name, run)))


EMULATED = {
    ("ppocr_cls", "armv7-neon"),
    ("squeezenet_rw", "aarch64-linux-dotprod"),
    ("silero_vad_16k", "riscv64"),
    ("silero_vad_16k", "riscv64-v"),
    ("magika", "aarch64-generic"),
    ("magika", "riscv64-v"),
}


def test_every_target_runs_models() -> None:
    assert {target for _, target in EMULATED} == set(CROSS)
    assert {name for name, _ in EMULATED} == set(MODELS)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(n, t, marks=[] if (n, t) in EMULATED else [pytest.mark.sweep])
        for n in MODELS
        for t in CROSS
    ],
)
def test_under_qemu(name: str, target: str, tmp_path: Path) -> None:
    tool = require_runtime(CROSS[target])
    path = tmp_path / "model.aotm"
    path.write_bytes(compiled(name, targets=[target]).to_bytes())
    names = [t["name"] for t in aot.inspect(path)["variants"][0]["entry_points"][0]["outputs"]]
    for run in runs(name):
        folder = tmp_path / run
        folder.mkdir()
        command: list[str | Path] = [tool, path, "--runs", "0", "--output", folder / "out"]
        for number, (input_name, array) in enumerate(feeds(name, run).items()):
            np.save(folder / f"{number}.npy", array)
            command += ["--input", f"{input_name}={folder}/{number}.npy"]
        result = run_emulated(CROSS[target], command)
        assert result.returncode == 0, result.stderr
        found = folder / "out"
        outputs = {
            name: np.load(path if path.exists() else found / f"{number}.npy")
            for number, name in enumerate(names)
            for path in [found / f"{name}.npy"]
        }
        check(name, run, outputs)
