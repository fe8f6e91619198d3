"""Builds the module from emitted variants: places constants, and patches their addresses in
programs.

The last step of linking, of one model as of several. Owns its order; places nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aot.link.addresses import address_words, addresses, fill_from_splats, move_constants
from aot.link.code_image import ImageParts
from aot.link.image import ModuleImage, VariantImage
from aot.link.notes import Notes, VariantNotes, encode_notes
from aot.link.rodata import RodataBytes, RodataPool

Ledger = Callable[[RodataBytes], dict[str, Any]]


def finish_module(
    variants: Sequence[VariantImage],
    parts: Sequence[ImageParts | None],
    rodata: RodataPool,
    producer: str,
    ledger: Ledger | None,
    vocabulary: bytes = b"",
    metadata: Mapping[str, str] | None = None,
) -> tuple[ModuleImage, RodataBytes]:
    """Builds the module of variants whose programs refer to constants in `rodata` by address.

    Args:
        parts: of each variant's code image; None where it has none.
        ledger: what the notes keep, given what became of the constants; None leaves notes out.
        vocabulary: of a language model, what `aot.link.vocabulary` wrote.
        metadata: facts about the model by key.
    """
    filled = [
        [fill_from_splats(e.program, rodata) for e in variant.entry_points] for variant in variants
    ]
    placed = rodata.place(a for programs in filled for p in programs for a in addresses(p))
    finished: list[VariantImage] = []
    notes: list[VariantNotes] = []
    for variant, programs, part in zip(variants, filled, parts, strict=True):
        words = tuple(address_words(p) for p in programs)
        entries = tuple(
            replace(entry, program=move_constants(program, at, placed.offset))
            for entry, program, at in zip(variant.entry_points, programs, words, strict=True)
        )
        finished.append(replace(variant, entry_points=entries))
        launches = tuple(entry.launches for entry in variant.entry_points)
        why = () if variant.host is None else tuple(e.why_on_cpu for e in variant.executables)
        notes.append(VariantNotes(part, words, launches, why))
    data = b""
    if ledger is not None:
        data = encode_notes(Notes(tuple(notes), ledger(placed.bytes)))
    image = ModuleImage(
        *(tuple(finished), placed.data, placed.segments, producer, data, vocabulary),
        metadata=dict(metadata or {}),
    )
    return image, placed.bytes
