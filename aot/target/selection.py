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
from aot.target.files import HOST, directory, names
from aot.target.model import Target
from aot.target.toml import ANY_SYSTEM, load_file, parse


def load(name_or_path: str | Path) -> Target:
    """The target with a name or alias, the one in the file at a path, or for "host" this machine's.

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
    if path.is_file():
        return load_file(path)
    for target in _mentioning(f'"{text}"'):
        if text in target.aliases:
            return target
    raise CompileError(f"unknown target {text!r}: {_advice(text)}")


def _advice(name: str) -> str:
    """What to give in place of a name of no target: similar names, or how to see all."""
    import difflib

    aliases = {alias: t.name for t in _mentioning("aliases") for alias in t.aliases}
    known = (HOST, *names(), *aliases)
    parts = [n for n in known if len(name) > 2 and name.lower() in n]
    similar = list(dict.fromkeys([*difflib.get_close_matches(name.lower(), known, 3, 0.6), *parts]))
    listed = f"'aotc targets' lists all {len(names())}; a path to a .toml file is one, too"
    if not similar:
        return listed
    return f"did you mean {' or '.join(similar[:3])}? {listed}"


def _mentioning(*texts: str) -> Iterator[Target]:
    """The shipped targets whose files contain all of `texts`; only these files are parsed."""
    for path in sorted(directory().glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        if all(part in text for part in texts):
            yield parse(text, str(path), path.stem)


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
    """Orders targets so that each comes before those that it is better than; otherwise the order is
    kept."""
    left = list(wanted)
    while left:
        first = next(t for t in left if not any(_is_better(other, t) for other in left))
        left.remove(first)
        yield first


def _is_better(a: Target, b: Target) -> bool:
    """Whether a CPU target `a` has all features of `b` and more, so that a CPU that can run both
    should run `a`'s code."""
    return a.is_cpu and a.arch == b.arch and set(a.features) > set(b.features)


def host_choices(machine: str, system: str) -> list[Target]:
    """The targets that `host` may mean on an architecture and system, those with most features
    first.

    Args:
        machine: an `arch` of target files.
        system: as `sys.platform` calls it.
    """
    found = _mentioning("\nhost = ", f'"{machine}"')
    fits = [t for t in found if t.arch == machine and t.host in (ANY_SYSTEM, system)]
    return sorted(fits, key=lambda t: (-len(t.features), t.name))


def host() -> Target:
    """The target that `--target host` means: the first of `host_choices` that this machine can run.

    A module depends on this choice and on nothing else of the machine: compiling for the target by
    its name gives the same bytes.

    Raises:
        CompileError: this machine is of an architecture without choices, or below the least.
    """
    machine = host_cpu.machine()
    choices = host_choices(machine, sys.platform)
    if not choices:
        raise CompileError(
            f"no target is known for this machine ({machine}): name one with "
            f"--target; targets are {', '.join(names())}"
        )
    found = host_cpu.features()
    for target in choices:
        if found.issuperset(target.features):
            return target
    missing = [f for f in choices[-1].features if f not in found]
    raise CompileError(
        f"this machine is below target {choices[-1].name}, the least for {machine}: "
        f"it lacks {', '.join(missing)}"
    )
