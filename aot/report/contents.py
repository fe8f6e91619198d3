"""The contents of a report on a module, taken from its file, the statistics and the details of its
compile.

Owns the choice and its limits, for models of any size. Computes nothing but sums.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from aot.analysis.launches import Launch
from aot.base.records import dataclass
from aot.driver.ledger import LEVELS
from aot.link.image import Device, DimInfo, EntryPointImage, TensorInfo, VariantImage, code_sizes
from aot.link.notes import Notes, decode_notes
from aot.link.program import decode
from aot.link.reader import ModuleFile, Source, read_module_file
from aot.report.numbers import TIMES, Figure, amount, count, extents, ratio, seconds, size
from aot.report.programs import OpKind, Row, arena_of, graph_of, kinds_of, rows_of

if TYPE_CHECKING:
    from aot.report.details import ConstantDetails, Details, VariantDetails

# A page stays one that a browser opens at once: of more, the first, or those that weigh most.
MOST_ROWS, MOST_EXECUTABLES, MOST_CONSTANTS = 2000, 500, 25


@dataclass(frozen=True)
class Part:
    """A segment of a bar that shows a whole; `colour` is one of the page's eight."""

    name: str
    figure: Figure
    share: Figure
    colour: int


@dataclass(frozen=True)
class Stat:
    """A headline figure at the top of the page."""

    key: str
    name: str
    figure: Figure
    note: str = ""


@dataclass(frozen=True)
class Tensor:
    """An input, an output or a state."""

    kind: str
    name: str
    dtype: str
    dims: str
    bounds: str


@dataclass(frozen=True)
class Executable:
    """An executable in a report."""

    name: str
    size: Figure
    share: Figure
    uses: int
    params: int
    extra: str
    nodes: Sequence[str]


@dataclass(frozen=True)
class Constant:
    """The bytes of a constant in the pool, and the number of its readers."""

    node: str
    type: str
    size: Figure
    share: Figure
    uses: int


@dataclass(frozen=True)
class Entry:
    """An entry point of a variant."""

    name: str
    tensors: Sequence[Tensor]
    rows: Sequence[Row] = ()
    rows_left: int = 0
    kinds: Sequence[OpKind] = ()
    graph: Markup | None = None
    arena: Markup | None = None
    arena_kinds: Sequence[str] = ()
    arena_note: str = ""


@dataclass(frozen=True)
class Variant:
    """A variant of the module.

    Attributes:
        levels: name, met, kept, bytes and seconds saved, where these are known.
        objects: where machine code came from.
        passes: name, runs, seconds and ops after the last one.
    """

    target: str
    device: str
    needs: Sequence[str]
    stats: Sequence[Stat]
    entries: Sequence[Entry]
    executables: Sequence[Executable]
    executables_left: int
    levels: Sequence[tuple[str, Figure, Figure, Figure | None, Figure | None]] = ()
    stages: Sequence[Part] = ()
    objects: str = ""
    passes: Sequence[tuple[str, int, Figure, Figure]] = ()
    missed_merges: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Module:
    """The contents of a page about a module file.

    Attributes:
        parts: what its bytes are.
        rodata: what became of the constants' bytes.
        constants: the largest; `constants_left` are the others, their number and bytes.
    """

    title: str
    producer: str
    file_size: Figure
    parts: Sequence[Part]
    variants: Sequence[Variant]
    rodata: Sequence[Stat] = ()
    constants: Sequence[Constant] = ()
    constants_left: tuple[Figure, Figure] | None = None

    @staticmethod
    def compiled(
        module: bytes, stats: Mapping[str, Any], details: Details, title: str = ""
    ) -> Module:
        """The contents of the page of a module that was just compiled."""
        return _Builder(module, stats, details).module(title)

    @staticmethod
    def of_file(path: str | os.PathLike[str]) -> Module:
        """The contents of the page of a module file, from the file alone.

        Raises:
            CompileError: it cannot be read, or is no module.
        """
        return _Builder(path).module(Path(path).name)


@dataclass
class _Builder:
    source: Source
    stats: Mapping[str, Any] | None = None
    details: Details | None = None
    file: ModuleFile = field(init=False)
    notes: Notes | None = field(init=False)

    def __post_init__(self) -> None:
        self.file = read_module_file(self.source, verify_rodata=False)
        self.notes = _notes(self.file.image.notes)

    def module(self, title: str) -> Module:
        image = self.file.image
        constants, left = self.constants()
        return Module(
            title or image.variants[0].entry_points[0].name,
            image.producer,
            size(self.file.file_bytes),
            list(self.parts()),
            [self.variant(v, n) for n, v in enumerate(image.variants)],
            list(self.rodata()),
            constants,
            left,
        )

    def parts(self) -> Iterator[Part]:
        """The bytes of the file by kind: weights, code by variant, structure, notes and padding."""
        found: dict[str, int] = {"weights": len(self.file.image.rodata)}
        shaders = sum(s.length for s in self.file.segments if "shader" in s.what)
        for variant in self.file.image.variants:
            if variant.code:
                found[f"code for {variant.target}"] = len(variant.code)
        if shaders:
            found["shaders"] = shaders
        found["programs and signatures"] = self.file.structure_bytes
        found["notes for tools"] = len(self.file.image.notes)
        found["padding"] = max(0, self.file.file_bytes - sum(found.values()))
        return parts_of(found, size)

    def rodata(self) -> Iterator[Stat]:
        model = self._only_model() or {}
        counts = (self.stats or model).get("rodata", {})
        names = {"met": "found", "kept": "kept", "equal": "equal to others"}
        names |= {"contained": "inside others", "filled": "written by fills"}
        for key, name in names.items() if counts else ():
            value = counts[f"bytes_{key}"]
            yield Stat(f"rodata.bytes_{key}", name, size(value))

    def _only_model(self) -> Mapping[str, Any] | None:
        """The ledger's section on the model, if the file has exactly one; else None."""
        models = [] if self.notes is None else self.notes.ledger.get("models", [])
        return models[0] if len(models) == 1 else None

    def constants(self) -> tuple[list[Constant], tuple[Figure, Figure] | None]:
        """(largest constants, (number, bytes) of the others); None in place of the pair if there
        are no others."""
        met: dict[str, list[ConstantDetails]] = defaultdict(list)
        for variant in self.details.variants if self.details else ():
            for entry in variant.entries:
                for constant in entry.constants:
                    met[constant.digest].append(constant)
        order = sorted(met.values(), key=lambda same: -same[0].bytes)
        total = sum(same[0].bytes for same in order)
        largest = [
            Constant(
                *(same[0].node, same[0].type, size(same[0].bytes)),
                *(ratio(same[0].bytes, total), len(same)),
            )
            for same in order[:MOST_CONSTANTS]
        ]
        rest = order[MOST_CONSTANTS:]
        left = (count(len(rest)), size(sum(same[0].bytes for same in rest))) if rest else None
        return largest, left

    def variant(self, image: VariantImage, number: int) -> Variant:
        section = self.stats["variants"][number] if self.stats else self._ledger(number)
        details = self.details.variants[number] if self.details else None
        executables = _executables(image, self._origins(number), self._whys(number))
        needs = [*image.features, *(f"{name} ≥ {value:,}" for name, value in image.limits)]
        return Variant(
            image.target,
            _device(image),
            needs,
            list(_stats(image, section, number, self._launches(number))),
            [self.entry(e, image, number, n) for n, e in enumerate(image.entry_points)],
            executables[:MOST_EXECUTABLES],
            max(0, len(executables) - MOST_EXECUTABLES),
            _levels(section),
            list(parts_of(section.get("seconds", {}), seconds)),
            _objects(section),
            _passes(details),
            section.get("missed_merges", ()),
        )

    def _ledger(self, number: int) -> Mapping[str, Any]:
        """The ledger's section on a variant; empty if the file has none."""
        model = self._only_model()
        if model is None or number >= len(model["variants"]):
            return {}
        found: Mapping[str, Any] = model["variants"][number]
        return found

    def _launches(self, number: int) -> tuple[tuple[Launch, ...], ...]:
        """The launches of dispatches, by entry point; empty if the file's notes do not have
        them."""
        if self.details is not None:
            return tuple(e.launches for e in self.details.variants[number].entries)
        known = self.notes.variants if self.notes is not None else ()
        return known[number].launches if number < len(known) else ()

    def _whys(self, number: int) -> Sequence[str]:
        """For each executable of a GPU's variant why the host runs it; empty if the notes do not
        tell."""
        known = self.notes.variants if self.notes is not None else ()
        return known[number].why_on_cpu if number < len(known) else ()

    def _origins(self, number: int) -> dict[int, list[str]]:
        """The model nodes of the dispatches of each executable, in program order."""
        found: dict[int, list[str]] = defaultdict(list)
        image = self.file.image.variants[number]
        launches = self._launches(number)
        for at, entry in enumerate(image.entry_points):
            calls = [i.operands[0] for i in decode(entry.program.code) if i.name == "DISPATCH"]
            known = launches[at] if at < len(launches) else ()
            for n, executable in enumerate(calls):
                found[executable].append(known[n].origin if n < len(known) else "")
        return found

    def entry(self, entry: EntryPointImage, image: VariantImage, number: int, at: int) -> Entry:
        kinds = (("input", entry.inputs), ("output", entry.outputs), ("state", entry.states))
        tensors = [_tensor(kind, t) for kind, found in kinds for t in found]
        if self.details is None:
            return Entry(entry.name, tensors)
        details = self.details.variants[number].entries[at]
        launches = self._launches(number)
        rows = list(rows_of(entry, image, details, launches[at] if at < len(launches) else ()))
        bound = self.stats["variants"][number]["arena_lower_bound_bytes"] if self.stats else 0
        arena, shown, note = arena_of(
            entry, details, [r.node for r in rows if r.kind == "dispatch"], bound
        )
        return Entry(
            name=entry.name,
            tensors=tensors,
            rows=rows[:MOST_ROWS],
            rows_left=max(0, len(rows) - MOST_ROWS),
            kinds=kinds_of(details, launches[at] if at < len(launches) else ()),
            graph=graph_of(rows, details),
            arena=arena,
            arena_kinds=shown,
            arena_note=note,
        )


def parts_of(values: Mapping[str, float], form: Any) -> Iterator[Part]:
    """The values as parts of their sum, without zeros; a name has the same colour in all bars."""
    total = sum(values.values())
    for number, (name, value) in enumerate(values.items()):
        if value > 0:
            yield Part(name, form(value), ratio(value, total), number % 8)


def _notes(data: bytes) -> Notes | None:
    try:
        return decode_notes(data) if data else None
    except ValueError:
        return None  # of another version: a page without them


def _device(image: VariantImage) -> str:
    if image.device is Device.CPU:
        return f"CPU, {image.arch.name.lower()}"
    return "Vulkan" if image.host is None else f"Vulkan, with {image.host.target} on its host"


def _tensor(kind: str, info: TensorInfo) -> Tensor:
    dims = extents(info.dims) or "scalar"
    bounds = ", ".join(dict.fromkeys(filter(None, map(_bound, info.dims))))
    return Tensor(kind, info.name, str(info.dtype), dims, bounds)


def _bound(dim: DimInfo) -> str:
    if dim.extent is not None:
        return ""
    low = f"{dim.minimum:,} ≤ " if dim.minimum else ""
    high = "" if dim.maximum is None else f" ≤ {dim.maximum:,}"
    if low or high:
        return f"{low}{dim}{high}"
    return f"any {dim}" if str(dim).isidentifier() else ""


def _stats(
    image: VariantImage,
    section: Mapping[str, Any],
    number: int,
    launches: Sequence[Sequence[Launch]],
) -> Iterator[Stat]:
    """The headline figures of a variant; a file's report lacks those that only a compile knows."""
    where = f"variants.{number}"
    code = [i for e in image.entry_points for i in decode(e.program.code)]
    names = Counter(i.name for i in code)
    total = section.get("dispatches") or sum(names[n] for n in ("DISPATCH", "COPY", "FILL"))
    plurals = {"COPY": ("copy", "copies"), "FILL": ("fill", "fills")}
    others = [f"{names[n]} {words[names[n] > 1]}" for n, words in plurals.items() if names[n]]
    note = f"of them {' and '.join(others)}" if others else ""
    yield Stat(f"{where}.dispatches", "dispatches", count(total), note)
    if image.host is not None:
        called = [image.executables[i.operands[0]] for i in code if i.name == "DISPATCH"]
        hosted = count(sum(map(image.is_cpu_fallback, called)))
        copies = f"{names['TO_HOST']} copies to it, {names['TO_DEVICE']} back"
        yield Stat(f"{where}.cpu_fallback.dispatches", "run by the host", hosted, copies)
    levels = section.get("executables")
    met = f"of {levels['structural']['met']:,} met" if levels else ""
    kept = len(image.executables)
    yield Stat(f"{where}.executables", "executables", count(kept), met)
    bytes_ = section.get("code_bytes") or sum(code_sizes(image))
    what = "SPIR-V" if image.device is Device.VULKAN else "machine code"
    yield Stat(f"{where}.code_bytes", what + " and machine code" * bool(image.host), size(bytes_))
    yield from _arena_stats(image, section, where)
    saved = section.get("storage", {}).get("constant_bytes_saved")
    if saved is not None:
        where_to = f"{where}.storage.constant_bytes_saved"
        yield Stat(where_to, "saved by storing in 16 bits", size(saved))
    flops = [n.flops for found in launches for n in found]
    if flops and all(isinstance(n, int) for n in flops):
        work = sum(n for n in flops if isinstance(n, int))
        note = f"{amount(work / 2).text} multiply-adds"
        yield Stat(f"{where}.flops", "arithmetic", amount(work, "FLOP"), note)


def _arena_stats(image: VariantImage, section: Mapping[str, Any], where: str) -> Iterator[Stat]:
    programs = [e.program for e in image.entry_points]
    bounds = [p.arena_bound_bytes if p.buffers else p.arena_bytes for p in programs]
    if any(bound is None for bound in bounds):
        yield Stat(f"{where}.arena_bytes", "arena", Figure(0, "open"), "as large as shapes need")
        return
    arena = section.get("arena_bytes") or sum(b for b in bounds if b is not None)
    low = section.get("arena_lower_bound_bytes")
    note = f"{arena / low:.2f} {TIMES} the lower bound" if low else ""
    yield Stat(f"{where}.arena_bytes", "arena", size(arena), note)


def _levels(
    section: Mapping[str, Any],
) -> list[tuple[str, Figure, Figure, Figure | None, Figure | None]]:
    found = section.get("executables")
    if not found:
        return []
    return [
        (
            *(name, count(found[name]["met"]), count(found[name]["kept"])),
            _known(size, found[name]["bytes_saved"]),
            _known(seconds, found[name].get("seconds_saved")),
        )
        for name in LEVELS
    ]


def _known(figure: Callable[[float], Figure], value: float | None) -> Figure | None:
    return None if value is None else figure(value)


def _objects(section: Mapping[str, Any]) -> str:
    calls, hits = section.get("llvm_calls", 0), section.get("cache", {}).get("hits", 0)
    if not calls and not hits:
        return ""
    return f"LLVM compiled {calls:,} of the executables; the cache had {hits:,}."


def _passes(details: VariantDetails | None) -> list[tuple[str, int, Figure, Figure]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for run in details.passes if details else ():
        found[run.name].append(run)
    return [
        (name, len(runs), seconds(sum(r.seconds for r in runs)), count(runs[-1].ops_after))
        for name, runs in found.items()
    ]


def _executables(
    image: VariantImage, origins: Mapping[int, Sequence[str]], whys: Sequence[str]
) -> list[Executable]:
    """The executables of a variant, those with most code first."""
    sizes = code_sizes(image)
    total = sum(sizes)
    found = []
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        executable = image.executables[number]
        figure = size(sizes[number])
        scratch = size(executable.scratch_bytes).text
        extra = [f"{scratch} scratch"] * bool(executable.scratch_bytes)
        if executable.spirv is not None:
            extra = [f"{extents(executable.workgroup_size)} lanes"]
            extra += [f"{scratch} shared"] * bool(executable.scratch_bytes)
            words = len(executable.spirv) // 4
            figure = Figure(words, f"{words:,} words")
        elif image.is_cpu_fallback(executable):
            why = whys[number] if number < len(whys) else ""
            extra.insert(0, f"on the host: {why}" if why else "on the host")
        calls = origins.get(number, ())
        found.append(
            Executable(
                name=executable.name,
                size=figure,
                share=ratio(sizes[number], total),
                uses=len(calls),
                params=executable.param_words,
                extra=", ".join(extra),
                nodes=list(dict.fromkeys(filter(None, calls))),
            )
        )
    return found
