"""The shipped targets, their lookup by name, and the order of several targets in a module.

Owns the choice for this machine and the order of a module's variants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from aot.errors import CompileError
from aot.target import host_cpu
from aot.target.model import Target
from aot.target.toml import load_file

HOST = "host"

# Best first. What `host` picks is one of these, so a file depends on the choice and never on the
# rest of the machine: `aotc` prints the name, and giving it by hand yields the same bytes.
HOST_CHOICES = {
    "x86_64": (
        "x86-64-v4-bf16",
        "x86-64-v4-vnni",
        "x86-64-v4",
        "x86-64-v3-vnni",
        "x86-64-v3",
        "x86-64-v2",
    ),
    "aarch64": ("aarch64-linux-i8mm", "aarch64-linux-dotprod", "aarch64-generic"),
    "arm": ("armv7-neon",),
    "riscv64": ("riscv64-v", "riscv64"),
}
_APPLE_CHOICES = ("aarch64-apple", "aarch64-generic")


def directory() -> Path:
    """The folder of target files: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_targets"
    return installed if installed.is_dir() else package.parent / "targets"


def names() -> tuple[str, ...]:
    """Names of the targets that come with the compiler, sorted."""
    return tuple(sorted(path.stem for path in directory().glob("*.toml")))


def load(name_or_path: str | Path) -> Target:
    """The target called `name_or_path`, the file at that path, or this machine for "host".

    LLVM is not asked whether it knows a file's names: `check_names` does that before code is made.

    Raises:
        CompileError: there is none, or its file is wrong.
    """
    text = str(name_or_path)
    if text == HOST:
        return host()
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        return replace(load_file(Path(name_or_path)), file=text)
    path = directory() / f"{text}.toml"
    if not path.is_file():
        raise CompileError(
            f"unknown target {text!r}: targets are {', '.join((HOST, *names()))}, "
            "or a path to a .toml file"
        )
    return load_file(path)


def load_together(names_or_paths: Sequence[str | Path]) -> tuple[Target, ...]:
    """The targets of one module, in the order in which a device tries their variants.

    As they are given, but that a CPU target comes before those whose features are part of its own:
    what runs first is the best that a CPU can, however they were typed. One that is given twice in
    other words, such as "host" and its name, counts once.

    Raises:
        CompileError: one is wrong, two that differ have one name, or their panels are unlike.
    """
    found: dict[str, tuple[str | Path, Target]] = {}
    for given in names_or_paths:
        target = load(given)
        other, known = found.setdefault(target.name, (given, target))
        if replace(known, file="") != replace(target, file=""):
            raise CompileError(
                f"targets {other} and {given} are both called {target.name} and are not the same: "
                "rename one's file"
            )
    wanted = [target for _, target in found.values()]
    panels = {t.panel for t in wanted}
    if len(panels) > 1:
        raise CompileError(
            f"targets {', '.join(t.name for t in wanted)} have panels of "
            f"{sorted(panels)}; the targets of one module need one panel width"
        )
    return tuple(_better_first(wanted))


def _better_first(wanted: Sequence[Target]) -> Iterator[Target]:
    """The first that no other one must come before, again and again."""
    left = list(wanted)
    while left:
        first = next(t for t in left if not any(_is_better(other, t) for other in left))
        left.remove(first)
        yield first


def _is_better(a: Target, b: Target) -> bool:
    """Whether every CPU that runs `b`'s code and has what `a` needs besides should run `a`'s."""
    return a.is_cpu and a.arch == b.arch and set(a.features) > set(b.features)


def host() -> Target:
    """The best target of `HOST_CHOICES` whose features this machine has.

    Raises:
        CompileError: this machine is of an architecture without choices, or below the least.
    """
    machine = host_cpu.machine()
    choices = HOST_CHOICES.get(machine)
    if machine == "aarch64" and sys.platform == "darwin":
        choices = _APPLE_CHOICES
    if choices is None:
        raise CompileError(
            f"no target is known for this machine ({machine}): name one with "
            f"--target; targets are {', '.join(names())}"
        )
    found = host_cpu.features()
    targets = [load(choice) for choice in choices]
    for target in targets:
        if found.issuperset(target.features):
            return target
    missing = [f for f in targets[-1].features if f not in found]
    raise CompileError(
        f"this machine is below target {targets[-1].name}, the least for {machine}: "
        f"it lacks {', '.join(missing)}"
    )
