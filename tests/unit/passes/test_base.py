"""How passes run: contracts, statistics, switches, dumps, and the file that a failure leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot import switches
from aot.builder import Builder
from aot.errors import CompileError, InternalError, UnsupportedError
from aot.ir.compare import modules_equal
from aot.ir.graph import Module
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_module
from aot.ops.elementwise import RELU
from aot.options import CompileOptions
from aot.passes.base import Pass, PassContext, run_passes
from aot.passes.simplify.cse import CSE
from aot.passes.simplify.dce import DCE
from aot.switches import Switches

CONTRACT = "Requires: nothing. Ensures: nothing. Never: anything."


def make_module() -> Module:
    b = Builder()
    x = b.input("x", "f32[3]")
    b.op("neg", x)
    b.output("y", b.op("relu", x))
    return b.module()


def quiet(**settings: object) -> PassContext:
    return PassContext(switches=Switches(**settings))  # type: ignore[arg-type]


def nothing(module: Module, context: PassContext) -> None:
    pass


def add_relu(module: Module, context: PassContext) -> None:
    from aot.ir.rewriter import Rewriter

    function = module.main
    Rewriter(function).at(function.block.terminator).create(RELU, [function.inputs[0]])


def break_types(module: Module, context: PassContext) -> None:
    from aot.ir.rewriter import Rewriter
    from aot.ir.types import DType, TensorType

    op = module.main.block.first
    assert op is not None
    Rewriter(module.main).set_type(op.result, TensorType(DType.F32, (4,)))


def crash(module: Module, context: PassContext) -> None:
    module.functions.clear()
    raise KeyError("lost")


def test_contract_is_required() -> None:
    with pytest.raises(InternalError, match="^pass p: its docstring lacks Ensures: and Never:$"):
        Pass("p", nothing, "Requires: much.")


def test_runs_are_counted() -> None:
    context = quiet()
    module = make_module()
    run_passes(module, [Pass("add-relu", add_relu, CONTRACT), CSE, DCE], context)
    assert [(r.name, r.shape_rule_calls, r.ops_before, r.ops_after) for r in context.runs] == [
        ("add-relu", 1, 3, 4),
        ("cse", 0, 4, 3),
        ("dce", 0, 3, 2),
    ]
    assert all(r.seconds >= 0 for r in context.runs)
    assert context.statistics == {"cse": {"merged": 1}, "dce": {"removed": 1}}
    assert context.shape_rule_calls == 1


def test_verifying_is_not_counted() -> None:
    context = quiet(is_verifying_each=True)
    run_passes(make_module(), [DCE], context)
    assert context.shape_rule_calls == 0


def test_verify_each_names_pass_and_op(tmp_path: Path) -> None:
    context = PassContext(
        CompileOptions(dump_ir=tmp_path), switches=Switches(is_verifying_each=True)
    )
    with pytest.raises(InternalError) as caught:
        run_passes(make_module(), [Pass("break-types", break_types, CONTRACT), DCE], context)
    assert str(caught.value) == (
        "pass break-types failed: after pass break-types: function 'main': result 0 has type "
        "f32[4], the shape rule gives f32[3]\n  %0 = neg(%x) : f32[4]\n"
        f"this is a bug of aotc; please report it with {tmp_path / 'break-types.repro'}"
    )


def test_repro_holds_ir_before_and_passes_left(tmp_path: Path) -> None:
    context = PassContext(CompileOptions(dump_ir=tmp_path, optimize="size"), switches=Switches())
    before = make_module()
    with pytest.raises(InternalError, match="^pass crash failed: KeyError: 'lost'\n"):
        run_passes(make_module(), [Pass("crash", crash, CONTRACT), DCE], context)
    text = (tmp_path / "crash.repro").read_text(encoding="utf-8")
    assert text.splitlines()[:4] == [
        "# aotc repro: pass crash failed: KeyError: 'lost'",
        "# passes left: crash, dce",
        "# target: none",
        "# optimize: size",
    ]
    assert modules_equal(parse_module(text), before)


def test_repro_without_a_dump_folder() -> None:
    with pytest.raises(InternalError, match=r"crash\.repro$") as caught:
        run_passes(make_module(), [Pass("crash", crash, CONTRACT)], quiet())
    path = Path(str(caught.value).rsplit(" ", 1)[1])
    assert modules_equal(parse_module(path.read_text(encoding="utf-8")), make_module())
    path.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize("error", [CompileError("wrong"), UnsupportedError("lacks", ["a", "b"])])
def test_users_errors_pass_through(error: Exception, tmp_path: Path) -> None:
    def refuse(module: Module, context: PassContext) -> None:
        raise error

    context = PassContext(CompileOptions(dump_ir=tmp_path), switches=Switches())
    with pytest.raises(type(error)) as caught:
        run_passes(make_module(), [Pass("refuse", refuse, CONTRACT)], context)
    assert caught.value is error
    assert [p.name for p in tmp_path.iterdir()] == ["00-input.ir"]


def test_dumps_are_numbered_over_several_lists(tmp_path: Path) -> None:
    context = PassContext(CompileOptions(dump_ir=tmp_path / "new"), switches=Switches())
    module = make_module()
    run_passes(module, [CSE], context)
    run_passes(module, [DCE], context)
    found = {p.name: p.read_text(encoding="utf-8") for p in sorted((tmp_path / "new").iterdir())}
    assert list(found) == ["00-input.ir", "01-cse.ir", "02-dce.ir"]
    assert found["00-input.ir"] == print_module(make_module())
    assert found["02-dce.ir"] == print_module(module)


def test_dump_to_a_file_is_the_users_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    context = PassContext(CompileOptions(dump_ir=path), switches=Switches())
    with pytest.raises(CompileError, match=f"^cannot write {path}/00-input.ir: "):
        run_passes(make_module(), [CSE], context)


def test_stop_after_ends_this_and_later_lists() -> None:
    context = quiet(stop_after="cse")
    module = make_module()
    run_passes(module, [CSE, DCE], context)
    run_passes(module, [DCE], context)
    assert context.is_stopped
    assert [r.name for r in context.runs] == ["cse"]


def test_print_after_and_changed() -> None:
    printed: list[str] = []
    context = PassContext(switches=Switches(print_after=frozenset({"cse"})), print=printed.append)
    module = make_module()
    run_passes(module, [CSE, DCE], context)
    assert printed == [f"# IR after cse\n{print_module(make_module())}\n"]
    printed.clear()
    context.switches = Switches(is_printing_changes=True)
    module = make_module()
    run_passes(module, [CSE, DCE], context)
    assert printed == ["# cse: no change\n", f"# IR after dce\n{print_module(module)}\n"]


def test_switches_from_environment() -> None:
    assert switches.from_environment({}) == Switches()
    assert switches.from_environment(
        {"AOT_PRINT": "after:cse,changed,after:dce", "AOT_VERIFY": "each", "AOT_STOP_AFTER": "dce"}
    ) == Switches(frozenset({"cse", "dce"}), True, True, "dce")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "AOT_PRINT",
            "before:cse",
            "AOT_PRINT is 'before:cse', expected 'after:NAME' or 'changed'",
        ),
        ("AOT_PRINT", "after:", "AOT_PRINT is 'after:', expected 'after:NAME' or 'changed'"),
        ("AOT_VERIFY", "1", "AOT_VERIFY is '1', expected 'each'"),
    ],
)
def test_wrong_switches(name: str, value: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        switches.from_environment({name: value})
    assert str(caught.value) == message


def test_repro_comes_after_the_passes_that_ran(tmp_path: Path) -> None:
    context = PassContext(CompileOptions(dump_ir=tmp_path), switches=Switches())
    expected = make_module()
    run_passes(expected, [DCE], quiet())
    with pytest.raises(InternalError):
        run_passes(make_module(), [DCE, Pass("crash", crash, CONTRACT)], context)
    text = (tmp_path / "crash.repro").read_text(encoding="utf-8")
    assert "# passes left: crash\n" in text
    assert modules_equal(parse_module(text), expected)
