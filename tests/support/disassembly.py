"""Instructions of compiled objects, and which of them are outside of a target's features.

    excess(load("x86-64-v2"), objects)     {"vaddps %ymm0,%ymm1,%ymm2": "`vaddps' is not ..."}

GNU's tools judge: objdump, which knows every instruction, writes them out, and the assembler takes
what the features that it is given have. They share nothing with LLVM. Skips the calling test where
the binutils of an architecture are missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from aot.target.model import Target


@dataclass(frozen=True)
class Binutils:
    """GNU's tools for an architecture.

    Attributes:
        prefix: of the programs' names.
        base: the assembler's options without features, the last one open to `+name`.
        names: what the assembler calls a feature of ours; others have our name.
        implied: features that are in `base`.
        header: lines before the instructions.
        late: instructions that the assembler takes with a later base only, whatever features it is
            given, and that base.
    """

    prefix: str
    base: tuple[str, ...]
    names: dict[str, str]
    implied: frozenset[str] = frozenset()
    header: str = ""
    late: tuple[str, str] | None = None


_THUMB = ("-mthumb", "-mimplicit-it=always")
BINUTILS = {
    "x86_64": Binutils(
        "x86_64-linux-gnu-",
        ("--64", "-march=generic64"),
        {
            "avx512vnni": "avx512_vnni",
            "avx512bf16": "avx512_bf16",
            "avxvnni": "avx_vnni",
        },
    ),
    "aarch64": Binutils(
        "aarch64-linux-gnu-",
        ("-march=armv8-a",),
        {"neon": "simd", "fullfp16": "fp16"},
        late=(r"[su]dot|usdot|sudot|u?smmla|ummla", "-march=armv8.2-a"),
    ),
    "arm": Binutils(
        "arm-linux-gnueabihf-",
        ("-march=armv7-a",),
        {},
        frozenset({"vfp3"}),
        ".syntax unified\n.arm\n",
    ),
    "thumb": Binutils(
        "arm-none-eabi-",
        (*_THUMB, "-march=armv7e-m"),
        {"vfp4d16sp": "fp", "fp-armv8d16sp": "fpv5"},
        frozenset({"dsp", "hwdiv"}),
        ".syntax unified\n.thumb\n",
    ),
    "riscv64": Binutils("riscv64-linux-gnu-", ("-march=rv64i",), {}),
}
"""By a target's architecture."""


# data, padding, and what the assembler adds by itself
_NO_INSTRUCTION = re.compile(r"\.(word|short|byte|\.\.)|nop|data16|cs nop|it[te]* ")


def _tool(target: Target, name: str) -> str:
    program = BINUTILS[target.arch].prefix + name
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    return program


def instructions(target: Target, objects: Iterable[bytes]) -> set[str]:
    """The instructions of objects, as text that an assembler takes; branches go nowhere."""
    found: set[str] = set()
    program = _tool(target, "objdump")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, data in enumerate(objects):
            paths.append(Path(folder, f"{number}.o"))
            paths[-1].write_bytes(data)
        line = [program, "--disassemble", "--no-show-raw-insn", *map(str, paths)]
        text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        match = re.match(r"\s+[0-9a-f]+:\t(.*)", line)
        if match is None:
            continue
        written = re.split(r"\s*(?:#|//|;|@) ", match[1])[0]
        written = re.sub(r"(?:0x)?[0-9a-f]+ <[^>]*>", ".", written)
        # numbers that objdump writes as their bits, and alignments as the assembler does not
        written = re.sub(r"(vmov\.f(?:32|64)\s.*, )#-?\d+$", r"\1#1.0", written)
        if target.arch == "thumb":  # which has no other
            written = written.replace("CPSR_f", "APSR_nzcvq").replace("CPSR", "APSR")
        written = re.sub(r" :\d+\]", "]", " ".join(written.split()))
        if written and not _NO_INSTRUCTION.match(written):
            found.add(written)
    assert found, "objdump found no instructions"
    return found


def excess(
    target: Target, objects: Iterable[bytes], features: Collection[str] | None = None
) -> dict[str, str]:
    """Instructions that `features`, the target's own unless given, do not have, and the
    assembler's words."""
    tools = BINUTILS[target.arch]
    named = target.features if features is None else features
    extensions = [tools.names.get(f, f) for f in named if f not in tools.implied]
    if target.arch == "riscv64":
        letters = [e for e in extensions if len(e) == 1]
        suffix = "".join(sorted(letters, key="imafdcv".index))
    else:
        suffix = "".join(f"+{e}" for e in extensions)
    lines = instructions(target, objects)
    late = {x for x in lines if tools.late is not None and re.match(tools.late[0], x)}
    found = _refused(target, lines - late, tools.base[-1] + suffix)
    if tools.late is not None and late:
        found |= _refused(target, late, tools.late[1] + suffix)
    return found


def _refused(target: Target, lines: Collection[str], last: str) -> dict[str, str]:
    """What the assembler says of instructions, given a last option."""
    tools, order = BINUTILS[target.arch], sorted(lines)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "all.s")
        source.write_text(tools.header + "\n".join(order) + "\n")
        line = [_tool(target, "as"), *tools.base[:-1], last, "-o", "/dev/null", str(source)]
        result = subprocess.run(line, capture_output=True, text=True, check=False)
    first = tools.header.count("\n") + 1
    found = re.findall(r"all\.s:(\d+): Error: (.*)", result.stderr)
    assert found or result.returncode == 0, result.stderr
    return {order[int(number) - first]: message for number, message in found}
