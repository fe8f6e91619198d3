"""Notes of a module file for tools: the parts of linked images, and the ledger of deduplication.

JSON in a segment of its own, which no runtime reads and `aotc compile --strip` leaves out. The
parts are what `aotc merge` needs to link images and constants again; the ledger is what
`aotc inspect --dedup` and `aotc explain-dedup` print. Owns the form; what the ledger says is
`aot.driver.ledger`'s. Holds nothing that depends on the machine or the time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from aot.analysis.launches import Launch
from aot.base.records import dataclass
from aot.ir.dim_parser import parse
from aot.link.code_image import ImageParts, Part, Reference

FORMAT = 1


@dataclass(frozen=True)
class VariantNotes:
    """Facts about a variant that only the linker knows.

    Attributes:
        parts: of its code image; None where it has none.
        address_words: by entry point, the words of its program where instructions begin that hold
            offsets of constants.
        launches: by entry point, what its dispatches do, in the order of their instructions.
        why_on_cpu: of each executable, why a GPU's host runs it; "" where it doesn't. None at all
            where there is no host.
    """

    parts: ImageParts | None
    address_words: tuple[tuple[int, ...], ...]
    launches: tuple[tuple[Launch, ...], ...] = ()
    why_on_cpu: tuple[str, ...] = ()


@dataclass(frozen=True)
class Notes:
    """A module's notes.

    Attributes:
        variants: in the module's order.
        ledger: plain data, see `aot.driver.ledger`.
    """

    variants: tuple[VariantNotes, ...]
    ledger: dict[str, Any] = field(default_factory=dict)


def encode_notes(notes: Notes) -> bytes:
    """The bytes of the notes segment."""
    data = {
        "format": FORMAT,
        "variants": [_variant_data(v) for v in notes.variants],
        "ledger": notes.ledger,
    }
    return json.dumps(data, separators=(",", ":"), sort_keys=True).encode()


def decode_notes(data: bytes) -> Notes:
    """The notes in a segment's bytes.

    Raises:
        ValueError: they are none, or of another format.
    """
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("its notes are nested too deeply") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"its notes are not of format {FORMAT}")
    try:
        variants = tuple(_variant(v) for v in found["variants"])
        ledger = dict(found["ledger"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"its notes are malformed: {error}") from error
    return Notes(variants, ledger)


def _variant_data(variant: VariantNotes) -> dict[str, Any]:
    data: dict[str, Any] = {"addresses": [list(words) for words in variant.address_words]}
    data["launches"] = [[_launch_data(n) for n in launches] for launches in variant.launches]
    if variant.why_on_cpu:
        data["why_on_cpu"] = list(variant.why_on_cpu)
    if variant.parts is not None:
        data["functions"] = [
            [p.offset, p.length, p.alignment, [_reference_data(r) for r in p.references]]
            for p in variant.parts.functions
        ]
        data["constants"] = [[p.offset, p.length, p.alignment] for p in variant.parts.constants]
    return data


def _reference_data(reference: Reference) -> list[int]:
    known = [reference.place, reference.type, reference.target, reference.offset]
    return known if reference.pair is None else [*known, reference.pair]


def _variant(data: dict[str, Any]) -> VariantNotes:
    parts = None
    if "functions" in data:
        parts = ImageParts(
            tuple(_part(part[:3], part[3]) for part in data["functions"]),
            tuple(_part(part, ()) for part in data["constants"]),
        )
    words = tuple(_integers(words, len(words)) for words in data["addresses"])
    launches = tuple(tuple(map(_launch, found)) for found in data.get("launches", ()))
    return VariantNotes(parts, words, launches, tuple(map(str, data.get("why_on_cpu", ()))))


def _launch_data(launch: Launch) -> list[int | str]:
    amounts = [n if isinstance(n, int) else str(n) for n in (launch.flops, launch.bytes)]
    return [launch.origin, *amounts, launch.dtype]


def _launch(data: Sequence[Any]) -> Launch:
    origin, flops, size, *rest = data
    dtype = rest[0] if rest else ""  # notes of earlier versions have none
    if type(origin) is not str or type(dtype) is not str or len(rest) > 1:
        raise TypeError(f"{data!r} is no launch")
    flops, size = (parse(n) if isinstance(n, str) else n for n in (flops, size))
    return Launch(origin, flops, size, dtype)


def _part(place: Sequence[Any], references: Sequence[Any]) -> Part:
    offset, length, alignment = _integers(place, 3)
    return Part(offset, length, alignment, tuple(map(_reference, references)))


def _reference(data: Sequence[Any]) -> Reference:
    return Reference(*_integers(data, len(data)))


def _integers(values: Sequence[Any], count: int) -> tuple[int, ...]:
    if len(values) != count or not all(type(v) is int for v in values):
        raise TypeError(f"{values!r} is not {count} integers")
    return tuple(values)
