"""What despecialising does to the code of the reference models, and what the ledger says of it."""

from __future__ import annotations

from typing import Any

import pytest

import aot
from tests.support.models import MODELS, feeds, model_path

pytestmark = [pytest.mark.models, pytest.mark.slow]

# one of each fit of bytes; the first here, the others in the sweep
TARGETS = (
    *("x86-64-v3", "x86-64-v4", "x86-64-v2", "aarch64-generic", "armv7-neon", "riscv64-v"),
    *("wasm32", "riscv64", "thumbv7em"),
)
# Their layers are like those of others that stay: convolutions of one family.
ALIKE = (
    *("densenet121_rw", "resnet50_rw", "yolov8n_320"),
    *("ppocr_det", "ppocr_cls", "pplcnet_orient"),
)


def variant(name: str, target: str, **options: Any) -> dict[str, Any]:
    """The statistics of a compile at the shapes of the model's first run."""
    shapes = {key: array.shape for key, array in feeds(name).items()}
    made = aot.compile(
        model_path(name), targets=[target], input_shapes=shapes, strip=True, **options
    )
    found: dict[str, Any] = made.stats["variants"][0]
    return found


# Its depthwise kernels and 1x1 convolutions of 58 and 116 channels take more as one than is
# estimated, where stores of less than a vector are written out lane by lane.
LARGER = {
    ("shufflenet_rw", target)
    for target in ("aarch64-generic", "armv7-neon", "x86-64-v2", "thumbv7em")
}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(m, t, marks=[pytest.mark.sweep] if m in ALIKE or t != TARGETS[0] else [])
        for t in TARGETS
        for m in MODELS
    ],
)
def test_sharing_makes_code_smaller(name: str, target: str) -> None:
    """And what the ledger says that it saved is within a quarter of a compile without."""
    off = variant(name, target, disable=["despecialise"])["code_bytes"]
    balanced, size = variant(name, target), variant(name, target, optimize="size")
    if (name, target) not in LARGER:
        assert size["code_bytes"] <= balanced["code_bytes"] <= off
    for shared in (balanced, size):
        told = shared["executables"]["despecialised"]["bytes_saved"]
        saved = off - shared["code_bytes"]
        assert told is None or 0.75 * saved <= told <= 1.25 * saved
