"""Merges modules into one with all their entry points; equal code, shaders and constants are kept
once.

Needs the notes that linking left in each module. Owns what may be merged, and the message that says
what may not. Decides no names: those are the caller's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from aot.base.records import dataclass
from aot.errors import CompileError, InternalError, advice
from aot.link.addresses import move_constants
from aot.link.code_image import CodeImage, ImageParts, merge_images
from aot.link.finish import finish_module
from aot.link.image import (
    Device,
    EntryPointImage,
    ExecutableImage,
    ModuleImage,
    ProgramImage,
    VariantImage,
)
from aot.link.notes import Notes, decode_notes
from aot.link.program import Operand, decode
from aot.link.rodata import RodataBytes, RodataPool
from aot.link.vocabulary import read_vocabulary
from aot.options import check_entry_names

_Key = tuple[str, str | None]  # of a variant: its target, and that of its host


@dataclass(frozen=True)
class MergeInput:
    """A module to merge.

    Attributes:
        label: what messages call it, such as its path.
        names: new names of entry points, by their own; others keep theirs.
    """

    label: str
    image: ModuleImage
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """The module that merging gives, and its statistics.

    Attributes:
        image: the module.
        counts: what was met and kept, as the ledger has it under `merges`.
    """

    image: ModuleImage
    counts: dict[str, Any]


def merge_modules(inputs: Sequence[MergeInput], *, shares_rodata: bool = True) -> Merged:
    """One module with the entry points of `inputs`, in their order.

    It has the targets that all inputs have, in the first one's order.

    Raises:
        CompileError: targets or their features are unlike, entry points have one name, a module
            has no notes, or there is no input; the message says which and what to do.
    """
    if not inputs:
        raise CompileError("there is no module to merge")
    notes = [_notes(given) for given in inputs]
    keys = _keys(inputs)
    _check_targets(inputs, keys)
    _check_names(inputs)
    pool = RodataPool(shares=shares_rodata)
    moves = [_constants_move(given, pool) for given in inputs]
    variants: list[VariantImage] = []
    parts: list[ImageParts | None] = []
    sections: list[dict[str, Any]] = []
    for key in keys:
        pieces = [
            _Piece.of(given, note, key, move)
            for given, note, move in zip(inputs, notes, moves, strict=True)
        ]
        variant, part, section = _merge_variant(pieces)
        variants.append(variant)
        parts.append(part)
        sections.append(section)
    counts: dict[str, Any] = {"modules": len(inputs), "variants": sections}

    def ledger(rodata: RodataBytes) -> dict[str, Any]:
        counts["rodata"] = rodata.stats
        with advice("the ledger of deduplication"):
            known = [_renamed(n.ledger, i.names) for n, i in zip(notes, inputs, strict=True)]
            return {
                "models": [model for found in known for model in found.get("models", ())],
                "merges": [*(m for found in known for m in found.get("merges", ())), counts],
            }
        return {}

    producers = dict.fromkeys(given.image.producer for given in inputs)
    vocabulary = _vocabulary(inputs)
    image, _ = finish_module(
        *(variants, parts, pool, ", ".join(producers), ledger, vocabulary), _metadata(inputs)
    )
    return Merged(image, counts)


def _metadata(inputs: Sequence[MergeInput]) -> dict[str, str]:
    """The metadata of all inputs. Where one has another value for a key than those before it, its
    own stands behind the name of its first entry point: "det:author"."""
    found: dict[str, str] = {}
    for given in inputs:
        first = given.image.variants[0].entry_points[0].name
        owner = given.names.get(first, first)
        for key, value in given.image.metadata.items():
            is_same = found.get(key, value) == value
            found[key if is_same else f"{owner}:{key}"] = value
    return found


def _vocabulary(inputs: Sequence[MergeInput]) -> bytes:
    """The vocabulary of the inputs that have one; they must agree. Empty if none has one."""
    having = [given for given in inputs if given.image.vocabulary]
    for given in having:
        if given.image.vocabulary != having[0].image.vocabulary:
            raise CompileError(
                f"{having[0].label} and {given.label} have different vocabularies, and a module "
                "has one; keep them in files of their own"
            )
    if not having:
        return b""
    if len(inputs) > 1 and read_vocabulary(having[0].image.vocabulary).prefixTokens:
        raise CompileError(
            f"{having[0].label} has a prefix, which is of a module with one entry point; keep it "
            "in a file of its own"
        )
    return having[0].image.vocabulary


def _notes(given: MergeInput) -> Notes:
    if not given.image.notes:
        raise CompileError(
            f"{given.label}: it has no notes on its parts, which merging needs; compile it "
            "without --strip"
        )
    try:
        notes = decode_notes(given.image.notes)
    except ValueError as error:
        raise CompileError(f"{given.label}: {error}; compile it again") from error
    noted = [(len(v.address_words), v.parts is not None) for v in notes.variants]
    variants = given.image.variants
    if noted != [(len(v.entry_points), has_code(v)) for v in variants]:
        raise CompileError(f"{given.label}: its notes are of another module; compile it again")
    return notes


def _keys(inputs: Sequence[MergeInput]) -> list[_Key]:
    """(target, host) of each variant of the merged module: the targets of the first input. A GPU
    target for which inputs have hosts gets one key for each host.
    """
    hosts: dict[str, dict[str, None]] = {}
    for variant in (v for given in inputs for v in given.image.variants):
        if variant.host is not None:
            hosts.setdefault(variant.target, {})[variant.host.target] = None
    targets = dict.fromkeys(v.target for v in inputs[0].image.variants)
    return [(target, host) for target in targets for host in hosts.get(target, {None: None})]


def _number(given: MergeInput, key: _Key) -> int | None:
    """The number of an input's variant for a key. A variant without a host serves all keys of its
    target."""
    found = {
        (v.target, None if v.host is None else v.host.target): number
        for number, v in enumerate(given.image.variants)
    }
    return found.get(key, found.get((key[0], None)))


def _check_targets(inputs: Sequence[MergeInput], keys: Sequence[_Key]) -> None:
    first = inputs[0]
    wanted = {v.label: v for v in first.image.variants}
    facts: dict[tuple[_Key, bool], tuple[MergeInput, VariantImage]] = {}
    for given in inputs:
        variants = given.image.variants
        found = {v.label: v for v in variants}
        if len(found) != len(variants):
            raise CompileError(f"{given.label}: two of its variants are for one target")
        numbers = [_number(given, key) for key in keys]
        if None in numbers or len(set(numbers)) != len(variants):
            raise CompileError(
                f"{first.label} is for {', '.join(wanted)}, {given.label} for "
                f"{', '.join(found)}: the modules of one file need the same targets; compile "
                "them with the same --target options"
            )
        for key, variant in ((k, variants[n]) for k, n in zip(keys, numbers) if n is not None):
            other, known = facts.setdefault((key, variant.host is None), (given, variant))
            if _facts(variant) != _facts(known):
                raise CompileError(
                    f"{other.label} and {given.label} mean different machines by the target "
                    f"{variant.label}: {_described(known)}, and {_described(variant)}; compile "
                    "them with the same target file"
                )


def _facts(variant: VariantImage) -> tuple[object, ...]:
    is_cpu = variant.device is Device.CPU
    machine = (variant.features, variant.page_bytes) if is_cpu else (variant.host,)
    return variant.device, variant.arch, variant.word_bytes, machine


def has_code(variant: VariantImage) -> bool:
    """Whether a variant has an image of machine code."""
    return variant.device is Device.CPU or variant.host is not None


def _described(variant: VariantImage) -> str:
    device = variant.arch if variant.device is Device.CPU else variant.device
    words = [device.name.lower(), *variant.features, f"words of {variant.word_bytes} bytes"]
    if variant.device is Device.CPU:
        words.append(f"pages of {variant.page_bytes} bytes")
    return " ".join(words)


def _check_names(inputs: Sequence[MergeInput]) -> None:
    for given in inputs:
        own = {e.name for e in given.image.variants[0].entry_points}
        for name in given.names:
            if name not in own:
                raise CompileError(f"{given.label} has no entry point {name!r} to rename")
    check_entry_names(
        (given.label, given.names.get(entry.name, entry.name))
        for given in inputs
        for entry in given.image.variants[0].entry_points
    )


def _constants_move(given: MergeInput, pool: RodataPool) -> Callable[[int], int]:
    """Adds a module's constants to the pool; returns a function from old offsets to new
    addresses."""
    image = given.image
    segments = sorted(image.rodata_segments, key=lambda s: s.offset)
    starts = [s.offset for s in segments]
    addresses = [
        pool.add(image.rodata[s.offset : s.offset + s.length], s.alignment) for s in segments
    ]
    empty = pool.add(b"")

    def moved(offset: int) -> int:
        number = bisect_right(starts, offset) - 1
        if number < 0 or offset > starts[number] + segments[number].length:
            if offset == 0:
                return empty  # of a constant without elements
            raise CompileError(f"{given.label}: no constant is at {offset}; compile it again")
        return addresses[number] + offset - starts[number]

    return moved


@dataclass(frozen=True)
class _Piece:
    """One input's part of a merged variant; its entry points are renamed, and its constants have
    symbolic addresses.
    """

    label: str
    variant: VariantImage
    parts: ImageParts | None
    entries: tuple[EntryPointImage, ...]

    @staticmethod
    def of(given: MergeInput, notes: Notes, key: _Key, move: Callable[[int], int]) -> _Piece:
        number = _number(given, key)
        assert number is not None  # _check_targets
        variant, known = given.image.variants[number], notes.variants[number]
        entries = []
        noted = known.launches or ((),) * len(variant.entry_points)
        for entry, words, launches in zip(
            variant.entry_points, known.address_words, noted, strict=True
        ):
            try:
                program = move_constants(entry.program, words, move)
            except ValueError as error:
                message = f"{given.label}: its notes are of another module: {error}"
                raise CompileError(message) from error
            name = given.names.get(entry.name, entry.name)
            entries.append(replace(entry, name=name, program=program, launches=launches))
        if known.why_on_cpu:
            reasons = zip(variant.executables, known.why_on_cpu, strict=False)
            executables = tuple(replace(e, why_on_cpu=why) for e, why in reasons)
            variant = replace(variant, executables=executables)
        return _Piece(given.label, variant, known.parts, tuple(entries))


def _merge_variant(
    pieces: Sequence[_Piece],
) -> tuple[VariantImage, ImageParts | None, dict[str, Any]]:
    """(merged variant, parts of its code image, code sizes for the ledger) of all pieces."""
    first = _lead(pieces)
    image, places = _merge_code(pieces)
    kept: dict[ExecutableImage, int] = {}
    entries: list[EntryPointImage] = []
    for piece, place in zip(pieces, places, strict=True):
        numbers = []
        for executable in piece.variant.executables:
            moved = replace(executable, name="")
            if executable.spirv is None:
                moved = replace(moved, code_offset=place(executable.code_offset))
            numbers.append(kept.setdefault(moved, len(kept)))
        for entry in piece.entries:
            entries.append(replace(entry, program=_renumbered(entry.program, numbers)))
    made = replace(
        first,
        executables=tuple(replace(e, name=f"e{n}") for e, n in kept.items()),
        entry_points=tuple(entries),
        # a GPU's say what the shaders ask for
        features=tuple(dict.fromkeys(f for p in pieces for f in p.variant.features)),
        limits=_limits(pieces),
        code=b"" if image is None else image.data,
    )
    met = sum(len(p.variant.executables) for p in pieces)
    section = {
        "target": first.target,
        "executables": {"met": met, "kept": len(kept)},
        **_code_counts(pieces, image),
    }
    return made, None if image is None else image.parts, section


def _lead(pieces: Sequence[_Piece]) -> VariantImage:
    """The variant whose target and host describe the merged one: the first with a host, else the
    first."""
    return next((p.variant for p in pieces if p.variant.host is not None), pieces[0].variant)


def _limits(pieces: Sequence[_Piece]) -> tuple[tuple[str, int], ...]:
    most: dict[str, int] = {}
    for piece in pieces:
        for name, value in piece.variant.limits:
            most[name] = max(value, most.get(name, value))
    return tuple(most.items())


def _merge_code(
    pieces: Sequence[_Piece],
) -> tuple[CodeImage | None, list[Callable[[int], int]]]:
    """The merged code image, and for each piece a function from old to new offsets of functions."""
    first = _lead(pieces)
    if not has_code(first):
        return None, [lambda offset: offset] * len(pieces)
    known = [(p.variant.code, p.parts) for p in pieces if p.parts is not None]
    arch = first.arch if first.host is None else first.host.arch
    try:
        image = merge_images(known, arch.name.lower(), first.page_bytes)
    except (ValueError, InternalError) as error:  # references that lead nowhere, or too far
        labels = ", ".join(p.label for p in pieces)
        raise CompileError(f"the notes of {labels} are of other modules: {error}") from error
    offsets = iter(image.offsets)
    places: list[Callable[[int], int]] = []
    for piece in pieces:
        parts = piece.parts.functions if piece.parts is not None else ()
        moved = {part.offset: next(offsets) for part in parts}
        places.append(_place_of(piece, moved))
    return image, places


def _place_of(piece: _Piece, moved: Mapping[int, int]) -> Callable[[int], int]:
    def place(offset: int) -> int:
        if offset not in moved:
            raise CompileError(
                f"{piece.label}: its notes are of another module: no function is at {offset}"
            )
        return moved[offset]

    return place


def _renumbered(program: ProgramImage, numbers: Sequence[int]) -> ProgramImage:
    """The program with the new numbers of its executables."""
    code = list(program.code)
    for instruction in decode(program.code):
        for word, kind in enumerate(instruction.kinds, instruction.at + 1):
            if kind is Operand.EXECUTABLE:
                code[word] = numbers[code[word]]
    return replace(program, code=tuple(code))


def _code_counts(pieces: Sequence[_Piece], image: CodeImage | None) -> dict[str, Any]:
    """Bytes of code before and after merging; `functions`, `constants` and `padding` add up to
    `code`."""
    if image is None:
        own = [{s for e in p.variant.executables for s in e.shaders} for p in pieces]
        met, kept = [w for words in own for w in words], set[bytes]().union(*own)
        shaders = {"met": sum(map(len, met)), "kept": sum(map(len, kept))}
        counts = {"count_met": len(met), "count_kept": len(kept)}
        return {"code": shaders, "functions": {**shaders, **counts}}
    code = {"met": sum(len(p.variant.code) for p in pieces), "kept": len(image.data)}
    functions = {"met": image.function_bytes_met, "kept": image.function_bytes_kept}
    constants = {
        "met": sum(_covered(p.parts.constants) for p in pieces if p.parts is not None),
        "kept": image.constant_bytes_kept,
    }
    padding = {k: code[k] - functions[k] - constants[k] for k in code}
    return {
        "code": code,
        "functions": {
            **functions,
            "count_met": image.functions_met,
            "count_kept": image.functions_kept,
        },
        "constants": constants,
        "padding": padding,
    }


def _covered(parts: Sequence[Any]) -> int:
    """The number of bytes that parts cover together; bytes of nested parts count once."""
    total = end = 0
    for part in sorted(parts, key=lambda p: (p.offset, -p.length)):
        total += max(0, part.offset + part.length - max(end, part.offset))
        end = max(end, part.offset + part.length)
    return total


def _renamed(ledger: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A ledger with the new names of its entry points."""
    models = [
        {**model, "entry_points": [names.get(n, n) for n in model.get("entry_points", ())]}
        for model in ledger.get("models", ())
    ]
    return {**ledger, "models": models}
