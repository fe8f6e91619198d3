"""Finds a C compiler for a device: the one the user names, the Android NDK's, or Zig's from PyPI.

Owns the search and its one line of what is missing. Runs no compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.link.image import Arch

NDK_VARIABLE = "ANDROID_NDK_HOME"
_ANDROID_API = 24

# Static musl programs run on any Linux, and in Android's shell.
_ZIG_TARGETS = {
    Arch.X86_64: "x86_64-linux-musl",
    Arch.AARCH64: "aarch64-linux-musl",
    Arch.ARM: "arm-linux-musleabihf",
    Arch.RISCV64: "riscv64-linux-musl",
}
_NDK_TARGETS = {
    Arch.X86_64: "x86_64-linux-android",
    Arch.AARCH64: "aarch64-linux-android",
    Arch.ARM: "armv7a-linux-androideabi",
    Arch.RISCV64: "riscv64-linux-android",
}


@dataclass(frozen=True)
class Toolchain:
    """A C compiler for one kind of device.

    Attributes:
        command: how to call it, before any option of ours.
        is_static: whether programs are linked to everything they need.
        is_apple: whether its linker is Apple's.
        libraries: what a program is linked to at last.
    """

    command: tuple[str, ...]
    is_static: bool
    is_apple: bool = False
    libraries: tuple[str, ...] = ("-lm", "-pthread")


def find_toolchain(arch: Arch, is_android: bool, named: str | None) -> Toolchain:
    """The compiler for programs on `arch`; a command line in `named` is used unchanged.

    Raises:
        CompileError: there is none, or none that can make such a program.
    """
    if named is not None:
        return _named(named)
    if arch is Arch.WASM32:
        raise CompileError("there are no programs for wasm32: take --format wasm")
    if arch not in _ZIG_TARGETS:
        raise CompileError(
            f"there are no programs for {arch.name.lower()}, which has no operating system: "
            "take --format static-library, or name a C compiler with --cc"
        )
    ndk = os.environ.get(NDK_VARIABLE)
    if ndk and is_android:
        return _ndk(Path(ndk), arch)
    if importlib.util.find_spec("ziglang") is not None:
        command = (sys.executable, "-m", "ziglang", "cc", "-target", _ZIG_TARGETS[arch])
        return Toolchain(command, is_static=True, libraries=())
    raise CompileError(
        f"no C compiler for {arch.name.lower()}: pip install 'aotc[toolchain]', set "
        f"{NDK_VARIABLE} for Android, or name one with --cc"
    )


def find_wasm_toolchain(named: str | None) -> Toolchain:
    """The compiler for WebAssembly modules without an operating system; a command line in `named`
    comes first.

    Raises:
        CompileError: there is none.
    """
    if named is not None:
        return replace(_named(named), is_apple=False, libraries=("-Wl,--stack-first",))
    if importlib.util.find_spec("ziglang") is not None:
        # Its C library is one for WASI, of which a runtime without files needs nothing.
        command = (sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi")
        return Toolchain(command, is_static=True, libraries=())
    raise CompileError(
        "no C compiler for wasm32: pip install 'aotc[toolchain]', or name one with --cc, such as a "
        "WASI SDK's clang"
    )


def _named(text: str) -> Toolchain:
    command = tuple(shlex.split(text))
    if not command or shutil.which(command[0]) is None:
        raise CompileError(f"the C compiler {text!r} of --cc is not there")
    is_static = "-static" in command
    without = tuple(word for word in command if word != "-static")
    is_apple = sys.platform == "darwin" and "-target" not in text
    return Toolchain(without, is_static, is_apple)


def _ndk(root: Path, arch: Arch) -> Toolchain:
    """The NDK's clang for an architecture, for any host system."""
    target = f"--target={_NDK_TARGETS[arch]}{_ANDROID_API}"
    return Toolchain((str(find_ndk(root)), target), is_static=False, libraries=("-lm",))


def find_ndk(root: Path) -> Path:
    """The clang of the Android NDK in a folder.

    Raises:
        CompileError: there is none.
    """
    for found in sorted(root.glob("toolchains/llvm/prebuilt/*/bin/clang")):
        return found
    raise CompileError(
        f"{NDK_VARIABLE} is {root}, which has no toolchains/llvm/prebuilt/*/bin/clang"
    )
