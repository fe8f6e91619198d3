"""Reads target files: TOML in, a checked record out.

Owns the files' schema and every message about a wrong one, LLVM's opinion of names included.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir import input_files
from aot.ir.types import DType
from aot.target.implied_features import FEATURES, PROBE
from aot.target.model import GpuGeometry, MatrixShape, Target, VulkanLimits

DEVICES = ("cpu", "vulkan")
SUBGROUP_OPERATIONS = ("basic", "arithmetic")
STORAGE_BITS = (8, 16)
ANY_SYSTEM = "any"
HOST_SYSTEMS = (ANY_SYSTEM, "linux", "darwin")  # as `sys.platform` calls them
# What shaders may compute in; wider types are the host's.
_COMPUTED = tuple(d for d in DType if d.is_stored and not d.is_storage_only)
_VULKAN_DTYPES = tuple(d for d in _COMPUTED if d.bits <= 32)
CPU_ARCHS = ("x86_64", "aarch64", "arm", "thumb", "riscv64", "riscv32", "wasm32")
# how triples of an architecture begin that don't begin with its name
_TRIPLE_PREFIXES = {"aarch64": ("aarch64", "arm64"), "arm": ("armv", "arm-")}


def parse(text: str, file: str, name: str) -> Target:
    """The target that the TOML `text` of `file` describes.

    Raises:
        CompileError: naming file, line, key and what is allowed.
    """
    return _Reader(text, file).target(table_of(text, file), name)


def table_of(text: str, file: str) -> dict[str, Any]:
    """The parsed TOML of a target file.

    Raises:
        CompileError: it is no TOML.
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also of numbers and dates beyond what Python has
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deeply"
    raise CompileError(f"{file}: not valid toml: {reason[:1].lower()}{reason[1:]}")


def load_file(path: Path) -> Target:
    try:
        text = input_files.text(path)
    except OSError as error:
        raise CompileError(f"cannot read target file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CompileError(f"{path}: a target file must be utf-8") from None
    return parse(text, str(path), path.stem)


# Run in a process of its own: LLVM warns of unknown names on stderr at best, and ends the process
# at worst.
_ASK_LLVM = """
import sys
import llvmlite.binding as llvm
probe = sys.stdin.read()
triple, features, abi, unlisted, *cpus = sys.argv[1:]
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
try:
    found = llvm.Target.from_triple(triple)
except RuntimeError:
    sys.exit(f"'{triple}' is not a triple of an instruction set in this llvm")
for cpu in cpus:
    machine = found.create_target_machine(cpu=cpu, features=features, abiname=abi)
    machine.emit_assembly(llvm.parse_assembly(f'target triple = "{triple}"'))


def has(cpu, feature):
    made = []
    for enabled in (features, f"{features},-{feature}".strip(",")):
        machine = found.create_target_machine(cpu=cpu, features=enabled, abiname=abi)
        module = llvm.parse_assembly(f'target triple = "{triple}"\\n{probe}')
        made.append(machine.emit_assembly(module))
    return made[0] != made[1]


# what listed features imply is not the CPU's
print(*(f for f in unlisted.split() if has(cpus[0], f) and not has("", f)))
"""


def check_names(target: Target) -> None:
    """Checks with LLVM that it knows a target's triple, CPUs and features, and that code for the
    CPU uses no unlisted features, for which the loader would not check.

    Raises:
        CompileError: naming file, line and key of the first that it does not, or the features that
            the CPU has beside.
    """
    if not target.is_cpu:
        return
    features = ",".join([*(f"+{f}" for f in target.features), *target.options])
    cpus = dict.fromkeys((target.cpu, target.tune or target.cpu))
    switched = {option[1:] for option in target.options}
    unlisted = [f for f in FEATURES[target.arch] if f not in switched.union(target.features)]
    asked = target.triple, features, target.abi, " ".join(unlisted), *cpus
    result = subprocess.run(
        [sys.executable, "-c", _ASK_LLVM, *asked],
        input=PROBE,
        capture_output=True,
        text=True,
        check=False,
    )
    unknown = re.search(r"'([^']*)' is not a .*", result.stderr)
    if unknown:
        reason = (
            unknown.group(0)
            .removesuffix(" (ignoring feature)")
            .removesuffix(" (ignoring processor)")
        )
        key = _key_of_name(target, unknown.group(1))
        raise _reader_of(target).fail(key, f"{key}: llvm says: {reason}")
    if result.returncode or result.stderr:
        last = (result.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise CompileError(
            f"{target.file or target.name}: llvm refuses this combination of triple, cpu and "
            f"features: {last}"
        )
    if implied := result.stdout.split():
        raise _reader_of(target).fail(
            "cpu",
            f"cpu: '{target.cpu}' has features that are not in `features`, which the loader would "
            f"not look for: {', '.join(implied)}; list them, or name a cpu without them",
        )


def _key_of_name(target: Target, name: str) -> str:
    """The key of a target file whose value contains a name that LLVM does not know."""
    for key in ("triple", "cpu", "tune"):
        if getattr(target, key) == name:
            return key
    return "options" if name in target.options else "features"


def _reader_of(target: Target) -> _Reader:
    try:
        text = input_files.text(target.file) if target.file else ""
    except (OSError, ValueError):
        text = ""
    return _Reader(text, target.file or target.name)


# What each device's file must give, and may; the rest of Target's fields are fixed for it.
_COMMON = ("summary", "device", "vector_registers", "word_bytes", "dtypes")
_CPU = (
    *_COMMON,
    "arch",
    "triple",
    "cpu",
    "features",
    "vector_bytes",
    "l1_bytes",
    "l2_bytes",
    "page_bytes",
)
_CPU_OPTIONAL = (
    *("aliases", "host", "tune", "options", "abi", "panel", "max_stack_bytes", "scratch_bytes"),
)
_VULKAN = (*_COMMON, "gpu", "vulkan")
_VULKAN_OPTIONAL = ("aliases", "features", "l1_bytes", "l2_bytes", "panel")
_VULKAN_FIXED: dict[str, Any] = {
    "arch": "none",
    "triple": "",
    "cpu": "",
    "features": (),
    "vector_bytes": 4,
    "page_bytes": 4,
    "l1_bytes": 16384,
    "l2_bytes": 262144,
}


@dataclass(frozen=True)
class _Rule:
    """The constraints on a numeric key."""

    low: int
    high: int
    is_power_of_two: bool = False
    choices: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return " or ".join(map(str, self.choices))
        kind = "a power of two" if self.is_power_of_two else "an integer"
        return f"{kind} from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        if type(value) is not int or not self.low <= value <= self.high:
            return False
        if self.choices and value not in self.choices:
            return False
        return not self.is_power_of_two or value & (value - 1) == 0


_NUMBERS = {
    "vector_bytes": _Rule(1, 256, is_power_of_two=True),
    "vector_registers": _Rule(1, 1024),
    "l1_bytes": _Rule(1024, 1 << 30),
    "l2_bytes": _Rule(1024, 1 << 34),
    "page_bytes": _Rule(64, 65536, is_power_of_two=True),
    "word_bytes": _Rule(4, 8, choices=(4, 8)),
    "panel": _Rule(1, 256, is_power_of_two=True),
    "max_stack_bytes": _Rule(0, 1 << 20),
    "scratch_bytes": _Rule(0, 1 << 30),
    "max_storage_buffers": _Rule(4, 1 << 20),
    "max_push_constant_bytes": _Rule(16, 65536),
    "max_workgroup_invocations": _Rule(1, 65536),
    "max_shared_bytes": _Rule(0, 1 << 20),
    "max_storage_buffer_bytes": _Rule(65536, 1 << 40),
    "min_storage_alignment_bytes": _Rule(1, 4096, is_power_of_two=True),
    "max_lane_iterations": _Rule(1024, 1 << 30),
    "lanes": _Rule(1, 1024, is_power_of_two=True),
    "busy_lanes": _Rule(0, 1 << 20),
    "subgroup_lanes": _Rule(1, 128, is_power_of_two=True),
    "staged_terms": _Rule(0, 64, choices=(0, 8, 16, 32, 64)),
    "launch_ns": _Rule(0, 1 << 24),
    "block_ns": _Rule(0, 1 << 20),
    "products_per_us": _Rule(0, 1 << 30),
    "bytes_per_us": _Rule(0, 1 << 30),
}
_TRIPLES = ("max_workgroup_size", "max_workgroup_count")
_TABLES: dict[str, type[GpuGeometry | VulkanLimits]] = {"gpu": GpuGeometry, "vulkan": VulkanLimits}
_TEXTS = ("summary", "triple", "cpu", "tune", "abi")
_TEXT_LISTS = ("aliases", "features", "options")


class _Reader:
    """Converts a parsed table to a Target; messages name lines of the text.

    Attributes:
        table: the table inside the file whose keys are read; "" for the file's own.
    """

    def __init__(self, text: str, file: str, table: str = "") -> None:
        self.text = text
        self.file = file
        self.table = table

    def inside(self, table: str) -> _Reader:
        """A reader of one of the file's tables."""
        return _Reader(self.text, self.file, table)

    def fail(self, key: str, message: str) -> CompileError:
        line = self.line_of(key)
        place = self.file if line is None else f"{self.file}:{line}"
        return CompileError(f"{place}: {message}")

    def line_of(self, key: str) -> int | None:
        """The line number of a key in this table, or of a sub-table's header; None if it has
        neither.
        """
        pattern = re.compile(rf"^\s*(\[{{0,2}}\s*)?[\"']?{re.escape(key)}[\"']?\s*[\]=.]")
        table = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*\[+\s*[\"']?([\w-]+)", line)
            table = header.group(1) if header else table
            if pattern.match(line) and self.table == ("" if header else table):
                return number
        return None

    def target(self, table: Mapping[str, Any], name: str) -> Target:
        device = table.get("device")
        if device not in DEVICES:
            raise self.fail(
                "device",
                f"device is {device!r}, expected one of {', '.join(DEVICES)}"
                if "device" in table
                else f"device is missing: expected one of {', '.join(DEVICES)}",
            )
        required, optional = (
            (_CPU, _CPU_OPTIONAL) if device == "cpu" else (_VULKAN, _VULKAN_OPTIONAL)
        )
        self.check_keys(table, required, optional, f"a {device} target")
        values = dict(_VULKAN_FIXED) if device == "vulkan" else {}
        values.update({key: self.value(key, value) for key, value in table.items()})
        target = Target(name=name, **values)
        self.check_whole(target)
        return target

    def check_keys(
        self,
        table: Mapping[str, Any],
        required: tuple[str, ...],
        optional: tuple[str, ...],
        what: str,
    ) -> None:
        allowed = (*required, *optional)
        for key in table:
            if key not in allowed:
                raise self.fail(key, f"unknown key {key!r}: {what} has {', '.join(allowed)}")
        for key in required:
            if key not in table:
                raise self.fail(key, f"key {key!r} is missing: {what} needs {', '.join(required)}")

    def value(self, key: str, value: Any) -> Any:
        if key in _NUMBERS:
            if not _NUMBERS[key].accepts(value):
                raise self.fail(key, f"{key} is {value!r}, expected {_NUMBERS[key]}")
            return value
        if key in _TRIPLES:
            if not (
                isinstance(value, list)
                and len(value) == 3
                and all(type(v) is int and v >= 1 for v in value)
            ):
                raise self.fail(key, f"{key} is {value!r}, expected three integers above 0")
            return tuple(value)
        if key in _TEXTS:
            if not isinstance(value, str) or "\n" in value or (key == "summary" and not value):
                raise self.fail(key, f"{key} is {value!r}, expected one line of text")
            return value
        if key in _TEXT_LISTS:
            return self.words(key, value)
        return {
            "device": self.keep,
            "arch": self.arch,
            "host": self.host,
            "dtypes": self.dtypes,
            "gpu": self.inner,
            "vulkan": self.inner,
            "subgroup_operations": self.subgroup_operations,
            "storage_bits": self.storage_bits,
            "texel_buffers": self.flag,
            "integer_dot_product": self.flag,
            "matrices": self.matrices,
        }[key](key, value)

    def keep(self, key: str, value: Any) -> Any:
        return value

    def words(self, key: str, value: Any) -> tuple[str, ...]:
        pattern = re.compile(r"[+-][\w.-]+" if key == "options" else r"[a-zA-Z0-9][\w.-]*")
        if not isinstance(value, list) or not all(
            isinstance(v, str) and pattern.fullmatch(v) for v in value
        ):
            shape = "switches such as '+name' or '-name'" if key == "options" else "names"
            raise self.fail(key, f"{key} is {value!r}, expected a list of {shape}")
        if len(set(value)) != len(value):
            raise self.fail(key, f"{key} names something twice")
        return tuple(value)

    def arch(self, key: str, value: Any) -> str:
        if value not in CPU_ARCHS:
            raise self.fail(key, f"arch is {value!r}, expected one of {', '.join(CPU_ARCHS)}")
        return str(value)

    def host(self, key: str, value: Any) -> str:
        if value not in HOST_SYSTEMS:
            raise self.fail(key, f"host is {value!r}, expected one of {', '.join(HOST_SYSTEMS)}")
        return str(value)

    def dtypes(self, key: str, value: Any) -> tuple[DType, ...]:
        known = {str(d): d for d in _COMPUTED}
        if not isinstance(value, list) or not all(isinstance(v, str) and v in known for v in value):
            raise self.fail(key, f"dtypes is {value!r}, expected a list of {', '.join(known)}")
        if len(set(value)) != len(value):
            raise self.fail(key, "dtypes names something twice")
        return tuple(known[v] for v in value)

    def inner(self, key: str, value: Any) -> GpuGeometry | VulkanLimits:
        if not isinstance(value, dict):
            raise self.fail(key, f"{key} is {value!r}, expected a table")
        record, reader = _TABLES[key], self.inside(key)
        needed = tuple(f.name for f in fields(record) if f.default is MISSING)
        optional = tuple(f.name for f in fields(record) if f.default is not MISSING)
        reader.check_keys(value, needed, optional, f"the table [{key}]")
        return record(**{k: reader.value(k, v) for k, v in value.items()})

    def subgroup_operations(self, key: str, value: Any) -> tuple[str, ...]:
        known = ", ".join(SUBGROUP_OPERATIONS)
        if not isinstance(value, list) or not set(map(str, value)) <= set(SUBGROUP_OPERATIONS):
            raise self.fail(key, f"{key} is {value!r}, expected a list of {known}")
        return tuple(value)

    def flag(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.fail(key, f"{key} is {value!r}, expected true or false")
        return value

    def storage_bits(self, key: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(
            type(v) is int and v in STORAGE_BITS for v in value
        ):
            known = ", ".join(map(str, STORAGE_BITS))
            raise self.fail(key, f"{key} is {value!r}, expected a list of {known}")
        return tuple(value)

    def matrices(self, key: str, value: Any) -> tuple[MatrixShape, ...]:
        texts = value if isinstance(value, list) and all(isinstance(v, str) for v in value) else []
        shapes = [MatrixShape.parse(text) for text in texts]
        found = tuple(shape for shape in shapes if shape is not None)
        if not found or len(found) != len(shapes):
            form = "'ROWSxCOLUMNSxTERMS TYPE*TYPE+TYPE'"
            raise self.fail(key, f"{key} is {value!r}, expected a list of texts {form}")
        return found

    def check_whole(self, target: Target) -> None:
        """Checks conditions that involve several keys."""
        prefixes = _TRIPLE_PREFIXES.get(target.arch, (target.arch,))
        if target.is_cpu and not target.triple.startswith(prefixes):
            raise self.fail(
                "triple",
                f"triple is {target.triple!r}, but arch is {target.arch}: expected one that "
                f"begins with {' or '.join(prefixes)}",
            )
        if target.arch in ("arm", "thumb", "riscv32", "wasm32") and target.word_bytes != 4:
            raise self.fail(
                "word_bytes",
                f"word_bytes is {target.word_bytes}, but arch {target.arch} has words of 4 bytes",
            )
        if target.arch in ("x86_64", "aarch64", "riscv64") and target.word_bytes != 8:
            raise self.fail(
                "word_bytes",
                f"word_bytes is {target.word_bytes}, but arch {target.arch} has words of 8 bytes",
            )
        for needed in (DType.F32, DType.I32, DType.U32, DType.BOOL):
            if needed not in target.dtypes:
                raise self.fail("dtypes", f"dtypes lacks {needed}, which every target computes")
        wide = [str(d) for d in target.dtypes if not (target.is_cpu or d in _VULKAN_DTYPES)]
        if wide:
            known = ", ".join(map(str, _VULKAN_DTYPES))
            raise self.fail("dtypes", f"dtypes has {wide[0]}, expected of {known} on vulkan")
        gpu = target.gpu
        if gpu is not None and gpu.matrices and not gpu.subgroup_lanes:
            raise self.inside("gpu").fail("matrices", "matrices needs subgroup_lanes")
        used = [d for s in (gpu.matrices if gpu else ()) for d in (s.left, s.right, s.sums)]
        lacking = [str(d) for d in used if d not in target.dtypes]
        if lacking:
            raise self.inside("gpu").fail(
                "matrices", f"matrices has {lacking[0]}, which dtypes lacks"
            )
        if gpu is not None and (gpu.products_per_us == 0) != (gpu.bytes_per_us == 0):
            raise self.inside("gpu").fail(
                "products_per_us" if gpu.products_per_us else "bytes_per_us",
                "products_per_us and bytes_per_us are given together",
            )
        if gpu is not None and gpu.subgroup_lanes > gpu.lanes:
            raise self.inside("gpu").fail(
                "subgroup_lanes",
                f"subgroup_lanes is {gpu.subgroup_lanes}, above lanes ({gpu.lanes})",
            )
        if gpu is not None and gpu.lanes > gpu.max_workgroup_invocations:
            raise self.inside("gpu").fail(
                "lanes",
                f"lanes is {gpu.lanes}, above max_workgroup_invocations "
                f"({gpu.max_workgroup_invocations})",
            )
