"""The features of this machine's CPU, by LLVM's names.

Asks the system where it knows, because loading LLVM for it would cost more than the rest of a small
compile, and LLVM elsewhere. Decides nothing.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MACHINES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
# what a process of 32 bits is, whatever the system below it can do besides
_NARROW = {"x86_64": "i386", "aarch64": "arm", "riscv64": "riscv32"}

# Linux's names where they are not LLVM's.
_X86 = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "pclmulqdq": "pclmul",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx_vnni": "avxvnni",
}
_AARCH64 = {
    "asimd": "neon",
    "fp": "fp-armv8",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "asimdrdm": "rdm",
    "asimdfhm": "fp16fml",
    "atomics": "lse",
    "crc32": "crc",
    "lrcpc": "rcpc",
}
_ARM = {
    "asimd": "neon",  # a 64-bit system's words
    "fp": "vfp3",
    "vfpv3": "vfp3",
    "vfpv4": "vfp4",
    "idiva": "hwdiv-arm",
    "idivt": "hwdiv",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
}
# What every Mac with a CPU of Apple's own has.
_APPLE = frozenset({"fp-armv8", "neon", "fullfp16", "dotprod", "lse", "rdm", "crc", "rcpc"})
_NAMES = {"x86_64": _X86, "aarch64": _AARCH64, "arm": _ARM}


def machine() -> str:
    """The architecture of this machine, by the name in target files if they have one."""
    name = platform.machine().lower()
    if re.fullmatch(r"armv[78]l", name):  # a 32-bit system, on a 64-bit CPU or not
        return "arm"
    name = _MACHINES.get(name, name)
    return name if sys.maxsize > 1 << 32 else _NARROW.get(name, name)


def features() -> frozenset[str]:
    """LLVM's names of the features that all cores of this machine have."""
    if sys.platform == "darwin" and machine() == "aarch64":
        return _APPLE
    return _features_of(machine(), read_cpuinfo()) or _features_by_llvm()


def read_cpuinfo() -> str:
    """The text of Linux's /proc/cpuinfo; empty on other systems."""
    try:
        return _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _features_of(arch: str, cpuinfo: str) -> frozenset[str]:
    """The features that all cores have, from Linux's /proc/cpuinfo; empty if the text lists
    none."""
    if arch in ("riscv64", "riscv32"):
        found = re.findall(r"^isa\s*:\s*rv\d\d(\S+)$", cpuinfo, re.MULTILINE)
        return _common(_riscv(isa) for isa in found)
    key = "flags" if arch == "x86_64" else "Features"
    lines = re.findall(rf"^{key}\s*:(.*)$", cpuinfo, re.MULTILINE)
    names = _NAMES.get(arch, {})
    return _common({names.get(word, word) for word in line.split()} for line in lines)


def _riscv(isa: str) -> set[str]:
    """The features named in a RISC-V ISA string such as `imafdcv_zicsr_...`; `g` stands for
    several.
    """
    letters, *rest = isa.split("_")
    found = {*letters.replace("g", "imafd"), *rest}
    return found | ({"zvl128b"} if "v" in letters else set())


def _common(sets: Iterable[set[str]]) -> frozenset[str]:
    """The features in all of the sets, one set for each core; big and little cores may differ."""
    every = list(sets)
    return frozenset(set.intersection(*every)) if every else frozenset()


def _features_by_llvm() -> frozenset[str]:
    import llvmlite.binding as llvm

    return frozenset(name for name, is_there in llvm.get_host_cpu_features().items() if is_there)
