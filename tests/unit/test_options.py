"""The options of a compile: each of them wherever one is set or described, and values refused."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest

import aot
from aot import switches
from aot.api import GROUPS, GroupedOptions
from aot.cli.compile import compile_options
from aot.errors import CompileError, InternalError
from aot.options import OPTIONS, CompileOptions
from aot.tools.batch.file import KEYS, parse_batch
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import generate_tables

OF_THE_MODEL = {"model", "args", "kwargs", "dynamic_shapes"}
NOT_OF_THE_COMPILE = {*OF_THE_MODEL, "details", "progress", "options"}


# ---- where options are ----


def test_the_api_takes_every_option() -> None:
    """Each has a parameter, or is a field of one group and a keyword with the same default."""
    found = inspect.signature(aot.compile).parameters
    own = {name: p for name, p in found.items() if name not in NOT_OF_THE_COMPILE}
    groups = [own.pop(name) for name in GROUPS]
    assert [p.default for p in groups] == [None] * len(groups)
    grouped = [name for group in GROUPS.values() for name in group().options()]
    assert [name for name in OPTIONS if name not in grouped] == list(own)
    assert sorted([*own, *grouped]) == sorted(OPTIONS)
    assert list(GroupedOptions.__annotations__) == grouped
    for name, parameter in own.items():
        assert OPTIONS[name].read(parameter.default) == getattr(CompileOptions(), name)
    for group in GROUPS.values():
        types = {f.name: f.type for f in fields(group)}
        for name, option in group.names().items():
            assert types[name] == GroupedOptions.__annotations__[option].__forward_arg__
            assert getattr(group(), name) == getattr(CompileOptions(), option)


class _SeenError(Exception):
    pass


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompileOptions]:
    """The options that keywords of `aot.compile` become."""

    def fake(model: Any, options: CompileOptions, *_: Any) -> None:
        raise _SeenError(options)

    def read(**keywords: Any) -> CompileOptions:
        with pytest.raises(_SeenError) as seen:
            aot.compile(b"func", **keywords)
        options: CompileOptions = seen.value.args[0]
        return options

    monkeypatch.setattr("aot.driver.pipeline.compile_module", fake)
    return read


def _others() -> dict[str, Any]:
    """A value of each option that is not its default."""
    found: dict[str, Any] = {name: OTHERS.get(o.kind.name) for name, o in OPTIONS.items()}
    found |= {"optimize": "size", "storage": "fp16", "arithmetic": "fp16", "activations": "int8"}
    return found | {"strip": True, "all_logits": True, "cache_type": "int8", "sequences": 4}


def test_every_option_is_handed_on(read: Callable[..., CompileOptions]) -> None:
    given = _others()
    seen = read(**given)
    for name, option in OPTIONS.items():
        assert getattr(seen, name) == option.read(given[name]) != option.default, name


@pytest.mark.parametrize(
    ("keyword", "field", "option"),
    [(k, own, option) for k, group in GROUPS.items() for own, option in group.names().items()],
)
def test_an_option_of_a_group_is_a_keyword_too(
    keyword: str, field: str, option: str, read: Callable[..., CompileOptions]
) -> None:
    value = _others()[option]
    group = GROUPS[keyword](**{field: value})
    more = {"tune": 1.0} if option == "tune_runner" else {}  # which goes with seconds
    if more:
        grouped = read(tuning=replace(group, seconds=1.0))  # type: ignore[call-arg]
    else:
        grouped = read(**{keyword: group})
    assert grouped == read(**{option: value}, **more) != CompileOptions()
    with pytest.raises(CompileError) as twice:
        aot.compile(b"func", **{keyword: group, option: value})  # type: ignore[arg-type]
    assert str(twice.value) == f"{option} is given twice: by itself, and in {keyword}"


def test_a_group_checks_what_it_is_given() -> None:
    with pytest.raises(CompileError, match=r"^Tuning\.seconds is -1, expected seconds, 0 or more$"):
        aot.Tuning(seconds=-1)
    with pytest.raises(CompileError, match=r"^Precision\.storage is 'f8', expected one of fp32"):
        aot.Precision(storage="f8")
    with pytest.raises(CompileError, match=r"^tuning is 3, expected aot\.Tuning\(\.\.\.\)$"):
        aot.compile(b"func", tuning=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        aot.compile(b"func", speed=1)  # type: ignore[call-arg]


def test_commands_take_groups_as_compile_does() -> None:
    from aot.tools.explain_fusion import explain_fusion

    model = b'func @main(%x: f32[4]) -> ("y") {\n  %y = relu(%x) : f32[4]\n  return(%y)\n}\n'
    apart = explain_fusion(model, resources=aot.Resources(cache=False))
    assert apart == explain_fusion(model, cache=False)


def test_the_command_line_takes_every_option() -> None:
    command = click.command()(compile_options(lambda **_: None))
    found = {p.name: p for p in command.params if isinstance(p, click.Option)}
    assert list(found) == list(OPTIONS)
    for name, option in OPTIONS.items():
        spelt = [*found[name].opts, *found[name].secondary_opts]
        assert spelt == option.flags.split("/") and found[name].help == option.help


def test_documentation_is_generated() -> None:
    source = generate_tables.API.read_text(encoding="utf-8")
    assert generate_tables.docstrings_of_api(source) == source
    described = {
        aot.compile: {n for n in inspect.signature(aot.compile).parameters if n in OPTIONS}
    }
    for group in GROUPS.values():
        described[group] = set(group.names())
    for which, names in described.items():
        text = inspect.getdoc(which) or ""
        assert all(f"\n    {name}: " in text for name in names), which


def test_a_section_without_markers_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match=r"page\.md: the markers '<!-- generated: x -->' are mis"):
        generate_tables.generate(page, {"x": lambda: ""})


def test_options_are_cheap_to_import() -> None:
    script = "import sys, aot.options; print(*(m for m in sys.modules if m.startswith('aot')))"
    shown = subprocess.run(
        [sys.executable, "-c", f"{script}; assert 'numpy' not in sys.modules"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    names = ("base", "base.records", "errors", "options", "switches", "version")
    assert set(shown.stdout.split()) == {"aot", *(f"aot.{name}" for name in names)}


# ---- values ----

# A value of each kind that is no option's default, as Python has it.
OTHERS: dict[str, Any] = {
    "targets": ["x86-64-v2"],
    "passes": "cse",
    "shapes": {"x": [1, "H", None]},
    "values": {"sr": 16000},
    "states": {"past": "present"},
    "metadata": {"author": "me"},
    "extents": {"a node": 9},
    "switch": False,
    "text": "name",
    "file": "f.jsonl",
    "folder": "folder",
    "count": 3,
    "seconds": 2.5,
}


def test_every_kind_has_a_value_here() -> None:
    assert {o.kind.name for o in OPTIONS.values()} - {"choice"} == set(OTHERS)


def test_what_was_read_stays_as_it_is() -> None:
    options = CompileOptions(states={"a": "b", "c": ["d", 9]}, disable="cse", cache_dir="x")  # type: ignore
    assert (options.states, options.disable) == ({"a": ("b", 0), "c": ("d", 9)}, ("cse",))
    assert options.cache_dir == Path("x")
    for name, option in OPTIONS.items():
        assert option.read(getattr(options, name)) == getattr(options, name)


EXPECTED = {
    "targets": "names or paths",
    "passes": "names of passes",
    "shapes": "a mapping by name",
    "values": "a mapping by name",
    "states": "a mapping by name",
    "metadata": "a mapping by name",
    "extents": "a mapping by name",
    "choice": "a text",
    "switch": "true or false",
    "text": "a text",
    "file": "a path",
    "folder": "a path",
    "count": "a whole number",
    "seconds": "a number",
}
TAKEN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("targets", "passes"), (str, list)),
    **dict.fromkeys(("shapes", "values", "states", "metadata", "extents"), (dict,)),
    **dict.fromkeys(("choice", "text", "file", "folder"), (str,)),
    "switch": (bool,),
    "count": (int,),
    "seconds": (int, float),
}
VALUES: tuple[Any, ...] = ("no", 3, 1.5, True, [1], {"a": 1})


def of_other_types() -> Iterator[tuple[str, Any]]:
    for name, option in OPTIONS.items():
        for value in VALUES:
            if type(value) not in TAKEN[option.kind.name] or value == [1]:
                yield name, value


@pytest.mark.parametrize(("name", "value"), list(of_other_types()))
def test_an_argument_of_another_type(name: str, value: Any) -> None:
    with pytest.raises(CompileError) as caught:
        aot.compile("a.ir", **{name: value})
    assert str(caught.value) == f"{name} is {value!r}, expected {EXPECTED[OPTIONS[name].kind.name]}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": -1}, "jobs is -1, expected 0 or more"),
        ({"tune": -1}, "tune is -1, expected seconds, 0 or more"),
        ({"tune": float("inf")}, "tune is inf, expected seconds, 0 or more"),
        ({"optimize": "most"}, "optimize is 'most', expected one of speed, balanced, size"),
        ({"storage": "fp8"}, "storage is 'fp8', expected one of fp32, fp16"),
        ({"targets": []}, "no target is given"),
        ({"targets": ["host", "host"]}, "a target is given twice: host, host"),
        (
            {"disable": ["cse", "dce"]},
            "disable: 'dce' is not a pass or feature that can be left out, expected some of "
            f"{', '.join(switches.DISABLEABLE)}",
        ),
        ({"input_shapes": {"x": 3}}, "input_shapes: x is 3, expected a sequence of dims"),
        (
            {"states": {"x": ("y", True)}},
            "states: x is ('y', True), expected an output's name, or that and a capacity",
        ),
        ({"states": {"x": ("y", -1)}}, "state 'x': max is -1, expected a positive number"),
        ({"max_extents": {"n": -1}}, "max_extents: n is -1, expected a number, 0 or more"),
        ({"max_extents": {"n": True}}, "max_extents: n is True, expected a number, 0 or more"),
        ({"tune_runner": "x"}, "a tune runner is given, but no seconds to tune in"),
        (
            {"input_values": {"x": 1}, "states": {"x": "y"}},
            "input 'x' is given both a state and a value",
        ),
        (
            {"input_values": {"x": 1}, "input_shapes": {"x": (1,)}},
            "input 'x' is given both a shape and a value",
        ),
    ],
)
def test_an_argument_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        aot.compile("a.ir", **options)
    assert str(caught.value) == message


# ---- in a batch file ----


def test_a_batch_file_says_what_a_module_is_and_not_how_it_is_made() -> None:
    assert (
        *(
            "input_shapes",
            "input_values",
            "states",
            "context",
            "all_logits",
            "cache_type",
            "sequences",
            "random_seed",
            "max_extents",
            "max_default",
        ),
        *("optimize", "storage", "arithmetic"),
        *("activations", "winograd", "disable", "entry_name", "metadata", "strip"),
    ) == KEYS


TOML = {str: "'no'", int: "3", float: "1.5", bool: "true", list: "[1]", dict: "{ a = 1 }"}


@pytest.mark.parametrize("table", ["[[options]]\nname = 'x'", "[defaults]", "[[models]]\npath='a'"])
@pytest.mark.parametrize(("key", "value"), [(n, v) for n, v in of_other_types() if n in KEYS])
def test_a_key_of_another_type(key: str, value: Any, table: str) -> None:
    text = TOML[type(value)]
    assert tomllib.loads(f"value = {text}")["value"] == value
    head = 'targets = ["host"]\n' + ("" if "models" in table else 'models = ["a"]\n')
    whole = f"{head}{table}\n{key} = {text}"
    kind = OPTIONS[key].kind
    expected = "a table by name" if kind.is_table else EXPECTED[kind.name]
    with pytest.raises(CompileError) as caught:
        parse_batch(whole, Path("m.toml"))
    message = f"{key} is {value!r}, expected {expected}"
    assert str(caught.value) == f"m.toml:{len(whole.splitlines())}: {message}"


# ---- what can be disabled ----


def test_only_what_is_listed_can_be_asked_for() -> None:
    options = CompileOptions(disable=("cse", "fusion"))
    off = [name for name in switches.DISABLEABLE if not options.is_enabled(name)]
    assert tuple(off) == options.disable == ("fusion", "cse")
    with pytest.raises(InternalError, match="'winograd' is nothing that can be disabled"):
        options.is_enabled("winograd")


def test_the_command_line_says_what_can_be_disabled(capsys: pytest.CaptureFixture[str]) -> None:
    from aot.cli import main as cli

    assert cli.main(["compile", "a.ir", "-o", "o", "--disable", "dce"]) == 2
    shown = capsys.readouterr().err
    names = ", ".join(f"'{name}'" for name in switches.DISABLEABLE)
    assert f"'--disable': 'dce' is not one of {names}" in shown
