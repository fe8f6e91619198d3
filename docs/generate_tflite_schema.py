"""Generates aot/frontends/tflite/schema.py: the tables, fields and enums of the TFLite format.

    python docs/generate_tflite_schema.py [--check]

What they are is taken from `ai_edge_litert/schema_py_generated.py` of the installed ai-edge-litert
(Apache-2.0), which flatc has made of the format's schema. Only facts of the format are taken:
names, slots, types and defaults. Tables of StableHLO, which no runtime of the format runs, are left
out.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

PYTHON = Path(__file__).resolve().parent.parent / "aot" / "frontends" / "tflite" / "schema.py"
ENUMS = (
    "ActivationFunctionType",
    "BuiltinOperator",
    "BuiltinOptions",
    "BuiltinOptions2",
    "CombinerType",
    "DimensionType",
    "FullyConnectedOptionsWeightsFormat",
    "LSTMKernelType",
    "MirrorPadMode",
    "Padding",
    "QuantizationDetails",
    "ReduceWindowFunction",
    "SparseIndexVector",
    "TensorType",
)
UNIONS = {
    "ArrayIndices": "SparseIndexVector",
    "ArraySegments": "SparseIndexVector",
    "Details": "QuantizationDetails",
}
TYPES = {
    "Bool": "bool",
    "Int8": "i8",
    "Uint8": "u8",
    "Int16": "i16",
    "Uint16": "u16",
    "Int32": "i32",
    "Uint32": "u32",
    "Int64": "i64",
    "Uint64": "u64",
    "Float32": "f32",
    "Float64": "f64",
}
_METHOD = re.compile(
    r"    def (\w+)\(self(, j)?\):\n        o = .*?Offset\((\d+)\)\)\n(.*?)\n\n", re.S
)


def source() -> str:
    """What flatc has made of the schema."""
    found = find_spec("ai_edge_litert")
    if found is None or found.origin is None:
        raise SystemExit("ai-edge-litert is not installed: pip install -e '.[test]'")
    return (Path(found.origin).parent / "schema_py_generated.py").read_text(encoding="utf-8")


def snake(name: str) -> str:
    """A method's name as the field's in the schema: `StrideW` is stride_w."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def field_type(body: str, is_vector: bool, name: str) -> tuple[str, object] | None:
    """The type and the default of a field that a method reads; None of another view of one."""
    if "VectorLen" in body or "AsNumpy" in body or "return o == 0" in body:
        return None
    if "_tab.Union(" in body:
        return f"|{UNIONS.get(name, name)}|", None
    if table := re.search(r"obj = (\w+)\(\)", body):
        return (f"[{table[1]}]" if is_vector else table[1]), None
    if "_tab.String(" in body:
        return ("[string]" if is_vector else "string"), None
    scalar = re.search(r"number_types\.(\w+)Flags, (?:a|o)", body)
    if scalar is None or scalar[1] not in TYPES:
        raise SystemExit(f"field {name} is not understood:\n{body}")
    kind = TYPES[scalar[1]]
    if is_vector:
        return f"[{kind}]", None
    if kind == "bool":
        return kind, "return True" in body
    default = re.findall(r"return (-?[\d.e+-]+)$", body)[0]
    return kind, float(default) if kind.startswith("f") else int(default)


def tables(text: str) -> dict[str, list[tuple[int, str, str, object]]]:
    """Table -> its fields: slot, name, type, default."""
    found: dict[str, list[tuple[int, str, str, object]]] = {}
    for match in re.finditer(
        r"^class (\w+)\(object\):\n    __slots__(.*?)(?=^\w)", text, re.S | re.M
    ):
        name, body = match[1], match[2] + "\n\n"
        if name.startswith("Stablehlo"):
            continue
        fields = {}
        for method, index, offset, inner in _METHOD.findall(body):
            made = field_type(inner, bool(index), method)
            if made is not None and not method.endswith(("AsNumpy", "AsNumPy")):
                fields.setdefault((int(offset) - 4) // 2, (snake(method), *made))
        found[name] = [(slot, *fields[slot]) for slot in sorted(fields)]
    return found


def enums(text: str) -> dict[str, dict[int, str]]:
    """Enum -> value -> name."""
    found = {}
    for name in ENUMS:
        body = re.search(rf"^class {name}\(object\):\n((?:    \w+ = \d+\n)+)", text, re.M)
        if body is None:
            raise SystemExit(f"there is no enum {name}")
        pairs = re.findall(r"(\w+) = (\d+)", body[1])
        found[name] = {int(value): member for member, value in pairs}
    return found


def listed(title: str, items: Iterable[str]) -> list[str]:
    """A line of the text that schema.py parses, continued on indented ones."""
    return textwrap.wrap(
        f"{title}: {', '.join(items)}",
        100,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def generated() -> str:
    """The text of schema.py."""
    text = source()
    lines = HEAD.replace("VERSION", version("ai-edge-litert")).splitlines()
    lines.append('_ENUMS = """')
    for name, members in enums(text).items():
        lines += listed(name, (f"{number} {member}" for number, member in members.items()))
    lines += ['"""', '_TABLES = """']
    for name, fields in tables(text).items():
        lines += listed(
            name,
            (
                f"{slot} {field} {kind}" + ("" if default is None else f" = {default!r}")
                for slot, field, kind, default in fields
            ),
        )
    return "\n".join([*lines, '"""', TAIL])


HEAD = '''"""The tables, fields and enums of the TFLite format.

Generated by `python docs/generate_tflite_schema.py` from ai-edge-litert VERSION.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Field(NamedTuple):
    """A field of a table. Its type is a scalar, `string`, a table, a vector `[...]`, or a union
    `|...|` of an enum's tables, whose number is in the slot before."""

    slot: int
    name: str
    type: str
    default: float | int | bool | None


# An enum a line: numbers and names. A table a line: a field's slot in the vtable, its name, its
# type and its default.
'''
TAIL = """

def _lines(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.replace("\\n  ", " ").strip().splitlines():
        name, _, items = line.partition(":")
        yield name, [item for item in items.strip().split(", ") if item]


def _field(text: str) -> Field:
    described, _, default = text.partition(" = ")
    slot, name, kind = described.split()
    return Field(int(slot), name, kind, ast.literal_eval(default) if default else None)


ENUMS: dict[str, dict[int, str]] = {
    name: {int(number): member for number, member in (item.split() for item in items)}
    for name, items in _lines(_ENUMS)
}
TABLES: dict[str, tuple[Field, ...]] = {
    name: tuple(map(_field, items)) for name, items in _lines(_TABLES)
}
"""


def main() -> int:
    """Writes the file, or with --check says that it is out of date (exit status 1)."""
    parser = argparse.ArgumentParser(description="Generates the tables of the TFLite format.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    made = generated()
    if not parser.parse_args().check:
        PYTHON.write_text(made, encoding="utf-8")
    elif not PYTHON.exists() or PYTHON.read_text(encoding="utf-8") != made:
        sys.stderr.write(f"{PYTHON} is out of date: run python docs/generate_tflite_schema.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
