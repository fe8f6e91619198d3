"""Writes the C header of a static library: sizes and shapes as macros, typed structs and
functions."""

from __future__ import annotations

from collections.abc import Sequence

from aot.base.records import dataclass
from aot.ir.record import INTEGERS
from aot.ir.types import DType
from aot.link.image import EntryPointImage, TensorInfo
from aot.packaging.names import identifiers
from aot.packaging.static_program import ALIGNMENT, StaticProgram, element_count

_C_TYPES = {
    DType.F32: "float",
    DType.F64: "double",
    DType.F16: "uint16_t",  # the bits: C has no type that all compilers know
    DType.BF16: "uint16_t",
    DType.BOOL: "uint8_t",
    **{d: f"{'' if d.is_signed else 'u'}int{d.bits}_t" for d in INTEGERS},
}


@dataclass(frozen=True)
class HeaderEntry:
    """An entry point as the header declares it.

    Attributes:
        prefix: of its macros and functions.
        program_symbol: offset of its program.
    """

    prefix: str
    program_symbol: str
    entry: EntryPointImage
    program: StaticProgram


def header_text(name: str, target: str, entries: Sequence[HeaderEntry]) -> str:
    """The header of a library with a name."""
    guard = f"AOT_PACKAGE_{name.upper()}_H_"
    lines = [
        f"// {name}, compiled for {target}.  Written by aotc package; goes with lib{name}.a and",
        "// aot_static.c.",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        '#include "aot_static.h"',
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"extern const uint8_t {name}_code[];",
        f"extern const uint8_t {name}_weights[];",
    ]
    for entry in entries:
        lines += ["", *_entry_lines(name, entry)]
    closing = ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif  // {guard}", ""]
    return "\n".join([*lines, *closing])


def _entry_lines(name: str, entry: HeaderEntry) -> list[str]:
    prefix, upper = entry.prefix, entry.prefix.upper()
    inputs = list(zip(identifiers(t.name for t in entry.entry.inputs), entry.entry.inputs))
    outputs = list(zip(identifiers(t.name for t in entry.entry.outputs), entry.entry.outputs))
    program = entry.program
    lines = [
        f"// ---- entry point {_comment(entry.entry.name)} ----",
        "",
        f"extern const uint32_t {entry.program_symbol}[];",
        "",
        f"// What a run needs: {program.arena_bytes} bytes of tensors, {program.scratch_bytes} of "
        f"scratch, {program.loader_bytes} of",
        f"// the loader.  Aligned to {ALIGNMENT} bytes.",
        f"#define {upper}_ARENA_BYTES {program.memory_bytes}u",
    ]
    for kind, tensors in (("INPUT", inputs), ("OUTPUT", outputs)):
        for field, tensor in tensors:
            lines += _tensor_macros(f"{upper}_{kind}_{field.upper()}", tensor)
    updated = entry.entry.program.updates
    written = [inputs[number - 1][0] for number in updated if number > 0]
    lines += ["", *_struct(f"{prefix}_inputs_t", inputs, is_input=True, written=written)]
    lines += ["", *_struct(f"{prefix}_outputs_t", outputs, is_input=False)]
    lines += ["", *_functions(name, entry, inputs, outputs)]
    return lines


def _tensor_macros(name: str, tensor: TensorInfo) -> list[str]:
    lines = ["", f"// {_comment(str(tensor))}", f"#define {name}_RANK {len(tensor.dims)}"]
    if not _is_open(tensor) and tensor.dims:
        lines.append(f"#define {name}_SHAPE {', '.join(str(d.extent) for d in tensor.dims)}")
    # Of the largest shape, where shapes vary.
    return [*lines, f"#define {name}_ELEMENTS {element_count(tensor)}"]


def _struct(
    name: str,
    tensors: Sequence[tuple[str, TensorInfo]],
    *,
    is_input: bool,
    written: Sequence[str] = (),
) -> list[str]:
    lines = [f"typedef struct {name} {{"]
    for field, tensor in tensors:
        const = "const " if is_input and field not in written else ""
        note = "  // written by a run" if field in written else ""
        lines.append(f"  {const}{_C_TYPES[tensor.dtype]} *{field};{note}")
        if _is_open(tensor):
            told = "" if is_input else "  // set by a run"
            lines.append(f"  int64_t {field}_dims[{len(tensor.dims)}];{told}")
    if not tensors:
        lines.append("  char unused;")
    return [*lines, f"}} {name};"]


def _functions(
    name: str,
    entry: HeaderEntry,
    inputs: Sequence[tuple[str, TensorInfo]],
    outputs: Sequence[tuple[str, TensorInfo]],
) -> list[str]:
    prefix = entry.prefix
    has_open = any(_is_open(t) for _, t in outputs)
    const = "" if has_open else "const "
    record = f"{{{name}_code, {name}_weights, {entry.program_symbol}}}"
    lines = [
        f"// Runs once.  `arena` has {prefix.upper()}_ARENA_BYTES; nothing else is needed.",
        f"static inline aot_static_status_t {prefix}_run(const {prefix}_inputs_t *inputs,",
        f"    {const}{prefix}_outputs_t *outputs, void *arena) {{",
        f"  const aot_static_entry_t entry = {record};",
        "  (void)inputs;",
        "  (void)outputs;",
    ]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        lines += _bindings(kind, tensors)
    lines.append("  const aot_static_status_t status =")
    lines.append("      aot_static_run(&entry, input_tensors, output_tensors, arena);")
    for number, (field, tensor) in enumerate(outputs):
        if _is_open(tensor):
            lines.append(f"  for (int i = 0; i < {len(tensor.dims)}; ++i)")
            lines.append(f"    outputs->{field}_dims[i] = output_dims_{number}[i];")
    for number, (field, _) in zip(entry.entry.program.updates, outputs, strict=False):
        if number > 0:
            lines += _update(inputs[number - 1], field)
    lines += ["  return status;", "}"]
    if entry.entry.program.state_count or entry.entry.program.state_bytes:
        lines += [
            "",
            "// The model keeps something between runs: call this before the first, and to start",
            "// anew.",
            f"static inline aot_static_status_t {prefix}_reset(void *arena) {{",
            f"  const aot_static_entry_t entry = {record};",
            "  return aot_static_reset(&entry, arena);",
            "}",
        ]
    return lines


def _update(given: tuple[str, TensorInfo], output: str) -> list[str]:
    """C lines that copy an output to the memory of an input after a successful run."""
    field, tensor = given
    extents = [
        f"inputs->{field}_dims[{axis}]" if _is_open(tensor) else str(dim.extent)
        for axis, dim in enumerate(tensor.dims)
    ]
    count = " * ".join(f"(size_t){extent}" for extent in extents) or "(size_t)1"
    return [
        f"  for (size_t i = 0; status == AOT_STATIC_OK && i < {count}; ++i)",
        f"    inputs->{field}[i] = outputs->{output}[i];",
    ]


def _bindings(kind: str, tensors: Sequence[tuple[str, TensorInfo]]) -> list[str]:
    """C lines that declare arrays of tensors for the loader, from the fields of a struct."""
    lines, rows = [], []
    for number, (field, tensor) in enumerate(tensors):
        dims = f"{kind}_dims_{number}"
        rank = len(tensor.dims)
        if kind == "input" and _is_open(tensor):
            values = [f"inputs->{field}_dims[{axis}]" for axis in range(rank)]
        else:
            values = [str(-1 if d.extent is None else d.extent) for d in tensor.dims]
        lines.append(f"  int64_t {dims}[{max(rank, 1)}] = {{{', '.join(values) or '0'}}};")
        data = f"{kind}s->{field}"
        rows.append(f"{{(void *)(uintptr_t){data}, {dims}}}")
    lines.append(f"  const aot_static_tensor_t {kind}_tensors[{max(len(rows), 1)}] = {{")
    lines += [f"      {row}," for row in rows or ["{NULL, NULL}"]]
    return [*lines, "  };"]


def _is_open(tensor: TensorInfo) -> bool:
    return any(dim.extent is None for dim in tensor.dims)


def _comment(text: str) -> str:
    """A name from the model, escaped so that it cannot end a line or a comment in C."""
    return text.encode("ascii", "backslashreplace").decode().translate({10: " ", 13: " ", 92: "/"})
