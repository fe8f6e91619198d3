"""Describes module files as text for people, and as JSON with stable keys for scripts.

Reads files only; never runs or changes anything.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from aot.errors import CompileError, one_line
from aot.link.image import (
    EntryPointImage,
    ExecutableImage,
    ProgramImage,
    TensorInfo,
    VariantImage,
    code_sizes,
)
from aot.link.notes import decode_notes
from aot.link.program import Instruction, Operand, constant_value, decode
from aot.link.reader import DTYPES, FILE_VERSION, ModuleFile, Source, read_module_file
from aot.link.vocabulary import describe_vocabulary

MOST_SHOWN = 200  # characters of a fact of the metadata
_CLASSES = ("constants", "arena", "inputs", "outputs")


def inspect(
    source: Source, *, verify: bool = False, program: bool = False, dedup: bool = False
) -> dict[str, Any]:
    """Facts about a module file as plain data, ready for JSON.

    Args:
        source: the file's path or its bytes.
        verify: also check the constants' checksums; all others are always checked.
        program: include each entry point's instructions as text.
        dedup: include the ledger of deduplication: what each level met, kept and saved, and which
            executables almost became one.

    Raises:
        CompileError: the file is no module, or damaged, or has no ledger.
    """
    file = read_module_file(source, verify_rodata=verify)
    image = file.image
    whys = _whys(file)
    name = None if isinstance(source, bytes) else os.fspath(source)
    facts: dict[str, Any] = {
        "file": name,
        "file_bytes": file.file_bytes,
        "version": FILE_VERSION,
        "producer": image.producer,
        "metadata": dict(sorted(image.metadata.items())),
        "is_rodata_verified": verify,
        "structure_bytes": file.structure_bytes,
        "rodata": {"bytes": len(image.rodata), "segments": len(image.rodata_segments)},
        "segments": _segments(file),
        "variants": [
            _variant(v, why, program) for v, why in zip(image.variants, whys, strict=True)
        ],
    }
    if image.vocabulary:
        facts["vocabulary"] = describe_vocabulary(image.vocabulary)
    return {**facts, "dedup": _ledger(file, name or "module")} if dedup else facts


def _whys(file: ModuleFile) -> list[tuple[str, ...]]:
    """For each variant the reasons why executables run on the host; empty if the notes do not
    tell."""
    variants = file.image.variants
    if file.image.notes:
        with suppress(ValueError):
            noted = decode_notes(file.image.notes).variants
            if len(noted) == len(variants):
                return [v.why_on_cpu for v in noted]
    return [()] * len(variants)


def _ledger(file: ModuleFile, name: str) -> dict[str, Any]:
    if not file.image.notes:
        raise CompileError(
            f"{name} has no notes on deduplication; compile its model without --strip"
        )
    try:
        ledger = decode_notes(file.image.notes).ledger
    except ValueError as error:
        raise CompileError(f"{name}: {error}; compile its model again") from error
    if not ledger:
        raise CompileError(
            f"{name} has no ledger of deduplication: the compile that wrote it warned that it "
            "could not be made"
        )
    return ledger


def _segments(file: ModuleFile) -> list[dict[str, Any]]:
    return [
        {"what": s.what, "offset": s.offset, "bytes": s.length, "alignment": s.alignment}
        for s in file.segments
        if not s.what.startswith("rodata segment")
    ]


def _variant(variant: VariantImage, why: Sequence[str], program: bool) -> dict[str, Any]:
    sizes = code_sizes(variant)
    host = variant.host
    shaders = sum(len(s) for e in set(variant.executables) for s in e.shaders)
    facts: dict[str, Any] = {
        "target": variant.target,
        "device": variant.device.name.lower(),
        "arch": variant.arch.name.lower(),
        "word_bytes": variant.word_bytes,
        "features": list(variant.features),
        "limits": dict(variant.limits),
        "code_bytes": len(variant.code) or sum(sizes),
        "executables": [
            _executable(e, size) for e, size in zip(variant.executables, sizes, strict=True)
        ],
        "entry_points": [_entry_point(e, variant, program) for e in variant.entry_points],
    }
    if host is None:
        return facts
    pairs = zip(facts["executables"], variant.executables, strict=True)
    for number, (executable, image) in enumerate(pairs):
        if variant.is_cpu_fallback(image):
            executable["why_on_cpu"] = why[number] if number < len(why) else ""
    facts["host"] = {
        "target": host.target,
        "arch": host.arch.name.lower(),
        "word_bytes": host.word_bytes,
        "features": list(host.features),
        "code_bytes": len(variant.code),
    }
    return {**facts, "code_bytes": len(variant.code) + shaders}


def _executable(executable: ExecutableImage, size: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": executable.name,
        "code_bytes": size,
        "param_words": executable.param_words,
    }
    if executable.spirv is None:
        return {**facts, "scratch_bytes": executable.scratch_bytes}
    return {**facts, "workgroup_size": list(executable.workgroup_size)}


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    dims: list[Any] = []
    for dim in tensor.dims:
        if dim.extent is not None:
            dims.append(dim.extent)
        else:
            dims.append({"text": dim.text, "min": dim.minimum, "max": dim.maximum})
    found = {"name": tensor.name, "dtype": str(tensor.dtype), "dims": dims}
    return found if tensor.strings is None else {**found, "strings": list(tensor.strings)}


def _updates(entry: EntryPointImage) -> dict[str, str]:
    """(name of an output: name of the input that the run updates in place) of each such output."""
    numbers = zip(entry.outputs, entry.program.updates, strict=False)
    return {output.name: entry.inputs[n - 1].name for output, n in numbers if n}


def _entry_point(entry: EntryPointImage, variant: VariantImage, program: bool) -> dict[str, Any]:
    names = Counter(i.name for i in decode(entry.program.code))
    facts: dict[str, Any] = {
        "name": entry.name,
        "inputs": [_tensor(t) for t in entry.inputs],
        "outputs": [_tensor(t) for t in entry.outputs],
        "states": [_tensor(t) for t in entry.states],
        "updates": _updates(entry),
        "state_bytes": entry.program.state_bytes,
        "arena_bytes": entry.program.arena_bytes,
        "arena_bound_bytes": _arena_bound(entry.program),
        "symbolic_buffers": len(entry.program.buffers),
        "registers": entry.program.register_count,
        "blocks": len(entry.program.blocks),
        "instructions": dict(sorted(names.items())),
    }
    if variant.host is not None:
        facts["cpu_fallback_dispatches"] = sum(
            i.name == "DISPATCH" and variant.is_cpu_fallback(variant.executables[i.operands[0]])
            for i in decode(entry.program.code)
        )
    if program:
        facts["program"] = list(disassemble(entry, variant))
    return facts


def _arena_bound(program: ProgramImage) -> int | None:
    """An upper bound of the arena's size over all shapes; None if there is none."""
    return program.arena_bound_bytes if program.buffers else program.arena_bytes


def disassemble(entry: EntryPointImage, variant: VariantImage) -> Iterator[str]:
    """The disassembly of an entry point's program, with the word numbers that messages of the
    runtime use.
    """
    program = entry.program
    blocks = {start: number for number, start in enumerate(program.blocks)}
    for instruction in decode(program.code):
        number = blocks.get(instruction.at)
        if number is not None:
            if number in (0, program.execute_block):
                yield "prepare:" if number == 0 else "execute:"
            yield f"b{number}:"
        yield f"  {instruction.at:6}  {_instruction(instruction, entry, variant)}"
    for index, buffer in enumerate(program.buffers):
        yield (
            f"buffer {index}: alive from {buffer.first} to {buffer.last}, "
            f"offset in r{buffer.offset_register}, aligned to {buffer.alignment}"
        )
    yield from _offset_registers(program, entry)


def _offset_registers(program: ProgramImage, entry: EntryPointImage) -> Iterator[str]:
    for kind, tensors, registers in (
        ("input", entry.inputs, program.input_offset_registers),
        ("output", entry.outputs, program.output_offset_registers),
    ):
        for tensor, register in zip(tensors, registers, strict=False):
            yield f"{kind} {tensor.name}: offset in r{register}"


def _instruction(instruction: Instruction, entry: EntryPointImage, variant: VariantImage) -> str:
    if instruction.name == "CONST":
        register, low, high = instruction.operands
        return f"r{register} = {constant_value(low, high)}"
    target, words = "", []
    for value, kind in zip(instruction.operands, instruction.kinds, strict=True):
        if kind is Operand.TARGET:
            target = f"r{value} = "
        else:
            words.append(_operand(value, kind, entry, variant))
    return " ".join([f"{target}{instruction.name}", *words])


def _operand(value: int, kind: Operand, entry: EntryPointImage, variant: VariantImage) -> str:
    names: dict[Operand, Sequence[str]] = {
        Operand.INPUT: [t.name for t in entry.inputs],
        Operand.OUTPUT: [t.name for t in entry.outputs],
        Operand.EXECUTABLE: [e.name for e in variant.executables],
        Operand.MESSAGE: [f'"{m}"' for m in entry.program.messages],
        Operand.CLASS: _CLASSES,
    }
    prefixes = {Operand.REGISTER: "r", Operand.BLOCK: "b", Operand.BUFFER: "buffer"}
    prefixes |= {Operand.STATE: "s"}
    if kind in names:
        return names[kind][value]
    if kind is Operand.DTYPE:
        return str(DTYPES[value])
    return f"0x{value:08x}" if kind is Operand.BITS else f"{prefixes.get(kind, '')}{value}"


def format_inspection(facts: dict[str, Any]) -> str:
    """The text that `aotc inspect` prints for the facts that `inspect` returns."""
    lines = [
        f"{facts['file'] or 'module'}: {facts['file_bytes']:,} bytes, format version "
        f"{facts['version']}, by {facts['producer'] or 'unknown'}",
        f"rodata: {facts['rodata']['bytes']:,} bytes in {facts['rodata']['segments']} parts"
        + (", verified" if facts["is_rodata_verified"] else ""),
    ]
    lines += [f"metadata {key}: {_cut(value)}" for key, value in facts["metadata"].items()]
    for segment in facts["segments"]:
        lines.append(
            f"  at {segment['offset']:>12,}  {segment['bytes']:>12,} bytes  {segment['what']}"
        )
    if "vocabulary" in facts:
        lines += _format_vocabulary(facts["vocabulary"])
    for variant in facts["variants"]:
        lines += _format_variant(variant)
    return "\n".join(lines)


def _cut(value: str) -> str:
    """A text in one line, of which the end is left out where it is long; JSON has it whole."""
    line = one_line(value)
    return (
        line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]}... ({len(value):,} characters)"
    )


def _format_vocabulary(facts: dict[str, Any]) -> Iterator[str]:
    named = [(n, facts[n]) for n in ("bos", "eos", "unknown") if facts[n] is not None]
    ends = ", ".join(map(str, facts["end_tokens"]))
    chat = f"a chat template of {len(facts['chat_template']):,} characters"
    parts = [f"vocabulary: {facts['tokens']:,} tokens", facts["scheme"].replace("_", " ")]
    if facts["patterns"]:
        parts.append(f"cut by {facts['patterns']} pattern" + "s" * (facts["patterns"] > 1))
    parts += [f"{name} {token}" for name, token in named]
    yield ", ".join(parts)
    yield ", ".join(
        [
            f"  {facts['merges']:,} merges",
            f"end tokens {ends or 'none'}",
            *facts["flags"],
            *([chat] if facts["chat_template"] else []),
        ]
    )
    if facts["chat_refusal"]:
        yield f"  which the module does not keep: {facts['chat_refusal']}"
    if "prefix" in facts:
        yield from _format_prefix(facts["prefix"])


def _format_prefix(facts: dict[str, Any]) -> Iterator[str]:
    kind = "text to continue" if facts["is_raw"] else "the system message"
    yield f"prefix: {facts['tokens']:,} tokens, {kind}: {_cut(facts['text'])}"
    for target, size in facts["state_bytes"].items():
        yield f"  {size:,} bytes of state for target {target}"


def _format_variant(variant: dict[str, Any]) -> Iterator[str]:
    limits = (f"{name} of {value:,}" for name, value in variant["limits"].items())
    needs = ", ".join(filter(None, [" ".join(variant["features"]), *limits])) or "nothing more"
    yield ""
    yield f"variant {variant['target']} ({variant['device']}, {variant['arch']})"
    yield f"  needs: {needs}"
    if "host" in variant:
        host = variant["host"]
        yield f"  host: {host['target']} ({host['arch']}), {host['code_bytes']:,} bytes of code"
        yield f"    needs: {' '.join(host['features']) or 'none'}"
    for entry in variant["entry_points"]:
        yield f"  entry point {entry['name']}"
        for kind in ("inputs", "outputs", "states"):
            for tensor in entry[kind]:
                written = entry["updates"].get(tensor["name"]) if kind == "outputs" else None
                after = f", written to input {written}" if written else ""
                yield f"    {kind[:-1]:6} {_format_tensor(tensor)}{after}"
        counts = entry["instructions"]
        yield (
            f"    {counts.get('DISPATCH', 0)} dispatches, {counts.get('COPY', 0)} copies, "
            f"{counts.get('FILL', 0)} fills; {_format_arena(entry)}"
        )
        if entry.get("cpu_fallback_dispatches"):
            yield (
                f"    {entry['cpu_fallback_dispatches']} of the dispatches on the host, with "
                f"{counts.get('TO_HOST', 0)} copies to it and {counts.get('TO_DEVICE', 0)} back"
            )
        for line in entry.get("program", ()):
            yield f"    {line}"
    yield f"  {len(variant['executables'])} executables, {variant['code_bytes']:,} bytes of code"
    for executable in variant["executables"]:
        extra = (
            f"scratch {executable['scratch_bytes']:,}"
            if "scratch_bytes" in executable
            else "workgroup " + "x".join(map(str, executable["workgroup_size"]))
        )
        yield (
            f"    {executable['code_bytes']:>8,} bytes  {executable['param_words']:>3} params  "
            f"{extra:<16} {executable['name']}" + _format_cpu_fallback(executable)
        )


def _format_cpu_fallback(executable: dict[str, Any]) -> str:
    why = executable.get("why_on_cpu")
    return "" if why is None else " on the host" + (f": {why}" if why else "")


def _format_arena(entry: dict[str, Any]) -> str:
    buffers, bound = entry["symbolic_buffers"], entry["arena_bound_bytes"]
    kept = f", {entry['state_bytes']:,} of them kept" if entry["state_bytes"] else ""
    if not buffers:
        return f"arena {entry['arena_bytes']:,} bytes{kept}"
    limit = "" if bound is None else f"at most {bound:,} bytes "
    kept = f" and {entry['state_bytes']:,} bytes that are kept" if kept else ""
    return f"arena {limit}for {buffers} buffers{kept}"


def _format_tensor(tensor: dict[str, Any]) -> str:
    return f"{tensor['name']}: {tensor['dtype']}[{', '.join(map(_format_dim, tensor['dims']))}]"


def _format_dim(dim: int | dict[str, Any]) -> str:
    """The text of a dim, in the syntax that `aot.ir.bounds.parse_wanted` reads."""
    if isinstance(dim, int):
        return str(dim)
    low = f"{dim['min']}<=" if dim["min"] else ""
    high = "" if dim["max"] is None else f"<={dim['max']}"
    return f"{low}{dim['text'] or '?'}{high}"
