"""PP-OCR's three models in one compile: each computes what it does alone, in less code for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.target import selection as targets
from tests.support.cross import run_module
from tests.support.models import feeds, model_path

pytestmark = [pytest.mark.models, pytest.mark.slow]

NAMES = ("ppocr_det", "ppocr_cls", "ppocr_rec")


def test_together_they_share_more_than_merged() -> None:
    given = {name: feeds(name) for name in NAMES}
    shapes = {name: {k: a.shape for k, a in given[name].items()} for name in NAMES}
    options = {"targets": ["x86-64-v3"]}
    alone = {
        name: aot.compile(model_path(name), input_shapes=shapes[name], **options) for name in NAMES
    }
    together = aot.compile(
        {name: model_path(name) for name in NAMES},
        input_shapes={f"{n}:{key}": dims for n in NAMES for key, dims in shapes[n].items()},
        **options,
    )
    (merged,), (variant,) = aot.merge(alone).image.variants, together.image.variants
    assert len(variant.executables) < len(merged.executables)
    assert len(variant.code) < 0.95 * len(merged.code)
    for entry in variant.entry_points:
        (own,) = alone[entry.name].image.variants[0].entry_points
        assert entry.program.arena_bytes <= own.program.arena_bytes
        with aot.load(alone[entry.name]) as one, aot.load(together, entry=entry.name) as other:
            expected, found = one(given[entry.name]), other(given[entry.name])
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array)


@pytest.mark.qemu
@pytest.mark.parametrize(
    "target",
    [
        "aarch64-generic",
        pytest.param("armv7-neon", marks=pytest.mark.sweep),
        pytest.param("riscv64-v", marks=pytest.mark.sweep),
    ],
)
def test_shared_kernels_change_no_bit(target: str, tmp_path: Path) -> None:
    names, arch = NAMES[:2], targets.load(target).arch
    given = {name: feeds(name) for name in names}
    shapes = {name: {k: a.shape for k, a in given[name].items()} for name in names}
    together = aot.compile(
        {name: model_path(name) for name in names},
        input_shapes={f"{n}:{key}": dims for n in names for key, dims in shapes[n].items()},
        targets=[target],
    ).to_bytes()
    for name in names:
        alone = aot.compile(model_path(name), input_shapes=shapes[name], targets=[target])
        (tmp_path / name).mkdir()
        expected, _ = run_module(arch, tmp_path / name, alone.to_bytes(), given[name])
        found, _ = run_module(arch, tmp_path / name, together, given[name], "--entry", name)
        assert expected.keys() == found.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array)
