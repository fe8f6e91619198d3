"""PP-OCR's three models in one compile: each computes what it does alone, in less code for all."""

from __future__ import annotations

import numpy as np
import pytest

import aot
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
