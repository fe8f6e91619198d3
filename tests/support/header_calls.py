"""A C program that makes each call of the public headers with NULL, from their declarations.

Each call has valid arguments but for one pointer, or none where all of them are numbers. What it
must return follows from its type: AOT_ERROR_ARGUMENT, or 0, false or NULL where there is no status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import RUNTIME

INCLUDE = RUNTIME / "include" / "aot"
_DECLARATION = re.compile(r"^AOT_API\s+([^;(]*?)\b(aot_\w+)\(([^;]*?)\);", re.MULTILINE)

# Pointers whose NULL means something, by function and parameter; "*" is any function.
ALLOWED = {
    ("*", "error"): "nobody asks why",
    ("*", "options"): "the defaults",
    ("*", "allocator"): "the default one",
    ("aot_program_set_output", "data"): "the program's own memory",
    ("aot_cores_find", "root"): "this system",
    ("aot_program_destroy", "program"): "fine",
    ("aot_async_destroy", "async"): "fine",
    ("aot_async_run", "done"): "nobody is told",
    ("aot_async_run", "user"): "what done wants",
}
NUMBERS = {
    *("size_t", "uint64_t", "uint32_t", "int32_t", "int", "bool"),
    *("aot_status_t", "aot_dtype_t"),
}
SIZES = {"bytes", "count", "capacity"}  # of what a pointer beside refers to


@dataclass(frozen=True)
class Parameter:
    """A parameter: its type without spaces, such as `constchar*`, and its name."""

    type: str
    name: str

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")


@dataclass(frozen=True)
class Declaration:
    """A function of a header."""

    name: str
    result: str
    parameters: tuple[Parameter, ...]


def declarations(header: str) -> list[Declaration]:
    """The functions that a text of a header declares."""
    text = re.sub(r"//[^\n]*", "", header)
    found = []
    for result, name, inside in _DECLARATION.findall(text):
        parts = [part.strip() for part in inside.split(",")]
        parameters = tuple(_parameter(part) for part in parts if part != "void")
        found.append(Declaration(name, re.sub(r"\s+", "", result), parameters))
    return found


def _parameter(text: str) -> Parameter:
    match = re.fullmatch(r"(.*?)(\w+)(\[\d+\])?", text, re.DOTALL)
    assert match is not None, text
    kind = re.sub(r"\s+", "", match[1])
    return Parameter(kind + "*" if match[3] else kind, match[2])


def is_allowed(function: str, parameter: str) -> bool:
    """Whether a header says what NULL means there."""
    return ("*", parameter) in ALLOWED or (function, parameter) in ALLOWED


def _argument(parameter: Parameter, values: dict[str, str]) -> str:
    if parameter.type in NUMBERS:
        return "1" if parameter.name in SIZES else "0"
    value = values.get(parameter.type)
    assert value is not None, f"no value of type {parameter.type}"
    return value


def calls(declared: Declaration, values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Calls with one NULL each, and what each must return, as C."""
    results = {"aot_status_t": "AOT_ERROR_ARGUMENT", "void": "", "int32_t": "-1"}
    expected = results.get(declared.result, "0")
    for missing in declared.parameters:
        if not missing.is_pointer or is_allowed(declared.name, missing.name):
            continue
        arguments = [
            "NULL" if each is missing else _argument(each, values) for each in declared.parameters
        ]
        yield f"{declared.name}({', '.join(arguments)})", expected


def source(headers: list[Path], values: dict[str, str], begin: str, end: str) -> tuple[str, int]:
    """The program, and how many calls it makes. `begin` and `end` are statements around them."""
    lines = [f"#include <aot/{path.name}>" for path in headers]
    lines += [
        "#include <stdio.h>",
        "static int failures;",
        "#define CHECK(call, expected) (void)((long long)(call) == (long long)(expected) ||"
        ' (printf("%s\\n", #call), ++failures))',
        "int main(int count, char **arguments) {",
        "  (void)count;",
        begin,
    ]
    made = 0
    for path in headers:
        for declared in declarations(path.read_text()):
            for call, expected in calls(declared, values):
                made += 1
                lines.append(f"  CHECK({call}, {expected});" if expected else f"  {call};")
    lines += [end, "  return failures != 0;", "}"]
    return "\n".join(lines) + "\n", made
