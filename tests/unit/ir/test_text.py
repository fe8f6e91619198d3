"""The text form: what is written, that it reads back, and every message about what is wrong."""

from __future__ import annotations

import base64
import hashlib
import re

import numpy as np
import pytest

from aot.builder import Builder
from aot.errors import CompileError
from aot.ir.compare import modules_equal
from aot.ir.dims import symbol
from aot.ir.graph import ConstantData, Module
from aot.ir.schedule import Schedule, StageSchedule
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import float_text, print_module, print_op, quote
from aot.ir.types import DType, Layout, TensorType
from aot.ir.verifier import verify

N = symbol("N")


def round_trip(module: Module) -> str:
    """The module's text, after checking that it reads back."""
    verify(module)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert modules_equal(module, again)
    assert print_module(again) == text
    return text


def test_names_origins_and_assumptions() -> None:
    b = Builder()
    x = b.input("x", "f32[N, 3]")
    odd = b.input('odd "name"\n', "f32[M, 3]")
    same = b.input("", "f32[]")
    total = b.op("add", x, odd, origin="/model/Add", hint="x")
    again = b.op("mul", total, same, hint="x")
    b.output("out é", again)
    b.output("", total)
    assert round_trip(b.module()) == (
        'func @main(%x: f32[N, 3], %0 "odd \\"name\\"\\n": f32[M, 3], %1: f32[]) '
        '-> ("out é", "") assume [\n'
        '  N == M "add: operands broadcast",\n'
        "] {\n"
        '  %x_1 = add(%x, %0) : f32[N, 3] @"/model/Add"\n'
        "  %x_2 = mul(%x_1, %1) : f32[N, 3]\n"
        "  return(%x_2, %x_1)\n"
        "}\n"
    )


def test_names_that_look_made_unique_stay_apart() -> None:
    b = Builder()
    x = b.input("x_1", "f32[3]")
    b.op("neg", x, hint="x")
    b.op("neg", x, hint="x")
    b.op("neg", x, hint="x_2")
    assert [line.split()[0] for line in round_trip(b.module()).splitlines()[1:-2]] == [
        "%x",
        "%x_2",
        "%x_2_1",
    ]


def test_absent_operands_defaults_and_attributes() -> None:
    b = Builder()
    x = b.input("x", "f32[N, 3, 8, 8]")
    w = b.constant(np.zeros((4, 3, 3, 3), np.float32))
    y = b.op("conv", x, w, None, strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0))
    r = b.op("range", size="N", start=2)
    b.output("y", y)
    b.output("r", r)
    text = round_trip(b.module())
    assert "conv(%x, %0, _)" in text
    assert "%2 = range {size = N, start = 2} : i64[N]" in text


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array(1.5, np.float32), "f32[] <1.5>"),
        (np.array([0.1, 1e-5, 3.4028235e38], np.float32), "f32[3] <0.1, 1e-05, 3.4028235e+38>"),
        (np.array([0.1, np.nan, -np.inf, -0.0]), "f64[4] <0.1, nan, -inf, -0.0>"),
        (np.array([0.1, 65504], np.float16), "f16[2] <0.1, 65500.0>"),
        (np.array([True, False]), "bool[2] <true, false>"),
        (np.array([-128, 127], np.int8), "i8[2] <-128, 127>"),
        (np.array([0, 2**64 - 1], np.uint64), "u64[2] <0, 18446744073709551615>"),
        (np.array([-(2**63)], np.int64), "i64[1] <-9223372036854775808>"),
        (np.full((100, 2), 7, np.int32), "i32[100, 2] <splat 7>"),
        (np.zeros((0, 3), np.float32), "f32[0, 3] <>"),
    ],
)
def test_small_constants(array: np.ndarray, text: str) -> None:
    b = Builder()
    b.output("c", b.constant(array))
    assert f"value = {text}" in round_trip(b.module())


def test_constants_that_need_their_bytes() -> None:
    nan_with_payload = np.array([0x7FC00001], np.uint32).view(np.float32)
    large = np.arange(17, dtype=np.int64)
    b = Builder()
    b.output("nan", b.constant(nan_with_payload))
    b.output("large", b.constant(large))
    b.output("same bytes", b.constant(large.reshape(1, 17)))
    module = b.module()
    text = round_trip(module)
    assert text.count("\nblob ") == 2
    assert base64.b64encode(large.tobytes()).decode() in text
    found = parse_module(text).main.results[0].op
    assert found is not None and isinstance(found.attrs["value"], ConstantData)
    assert found.attrs["value"].bytes == nan_with_payload.tobytes()
    elided = print_module(module, elide_blobs=True)
    assert elided.endswith("elided 136 bytes\n")
    with pytest.raises(
        CompileError,
        match=r"^line 2, column 39: blob '[0-9a-f]{32}' is elided: "
        "text printed without its blobs is for reading only",
    ):
        parse_module(elided)


def test_layouts() -> None:
    layout = Layout(splits=((0, 4),), order=(0, 1, 2))
    b = Builder()
    type = TensorType(DType.F32, (3, 2), layout)
    x = b.input("x", TensorType(DType.F32, (N, 2), Layout(strides=(N + 1, 1))))
    b.output("x", x)
    b.output("p", b.op("pack", b.constant(np.ones((3, 2), np.float32)), layout=layout))
    b.output("c", b.op("constant", value=ConstantData.of(np.eye(3, 2, dtype=np.float32), type)))
    text = round_trip(b.module())
    assert "%x: f32[N, 2]{strides=N + 1:1}" in text
    assert "{layout = {splits=0/4 order=0:1:2}} : f32[3, 2]{splits=0/4 order=0:1:2}" in text
    assert "<1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0>" in text


def test_executables_and_dispatches() -> None:
    body = Builder("body 0", kind="executable", dim_names=("d0", "d1"))
    x = body.input("", "f32[d0, d1]")
    body.output("", body.op("relu", x))
    module = body.module()
    module.functions["body 0"].bindings = (1, 3)
    main = Builder(into=module)
    y = main.op(
        "dispatch",
        main.input("x", "f32[N, 2*W]"),
        executable="body 0",
        dims=("N", "2*W"),
        ties=(-1,),
        result_types=["f32[N, 2*W]"],
    )
    main.output("y", y)
    assert round_trip(main.module()) == (
        'executable @"body 0"[d0, d1](%0: f32[d0, d1]) -> ("") bindings [1, 3] {\n'
        "  %1 = relu(%0) : f32[d0, d1]\n"
        "  return(%1)\n"
        "}\n\n"
        'func @main(%x: f32[N, 2*W]) -> ("y") {\n'
        '  %0 = dispatch(%x) {executable = @"body 0", dims = [N, 2*W], ties = [-1]} '
        ": f32[N, 2*W]\n"
        "  return(%0)\n"
        "}\n"
    )


@pytest.mark.parametrize("values", ["0.5, -3.0, 1e-40, inf", "splat 0.1", "nan, 1.0, 2.0, 3.0"])
def test_constants_of_bf16_round_trip(values: str) -> None:
    text = (
        'func @main() -> ("y") {\n'
        f"  %0 = constant {{value = bf16[4] <{values}>}} : bf16[4]\n"
        "  return(%0)\n}\n"
    )
    module = parse_module(text)
    assert modules_equal(parse_module(print_module(module)), module)


SCHEDULED = """\
executable @e0(%0: f32[4, 8]) -> ("r0", "r1") bindings [2, 3, 3] schedule [STAGES] {
  %1 = neg(%0) : f32[4, 8]
  %2 = relu(%1) : f32[4, 8]
  return(%1, %2)
}
"""


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("tile", [(1, 1), (1, 4096), (12, 16)])
def test_schedules_round_trip(schedule: Schedule, tile: tuple[int, int]) -> None:
    stages = (StageSchedule(schedule, 65536, *tile), StageSchedule(Schedule.ELEMENTWISE, 1))
    module = parse_module(SCHEDULED.replace("STAGES", ", ".join(map(str, stages))))
    assert module.functions["e0"].schedule == stages
    assert modules_equal(parse_module(print_module(module)), module)
    module.functions["e0"].schedule = stages[::-1]
    assert parse_module(print_module(module)).functions["e0"].schedule == stages[::-1]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            "tiled lanes=8",
            "line 1, column 76: there is no schedule class tiled: expected one of elementwise, "
            "reduction, contraction, planes, inner, winograd, transform, recurrence, lines, "
            "attention",
        ),
        ("lines lanes=0", "line 1, column 88: lanes are from 1 to 65536, not 0"),
        (
            "contraction lanes=8 tile=4097:1",
            "line 1, column 101: rows of a tile are from 1 to 4096, not 4097",
        ),
        (
            "contraction lanes=8 tile=1:0",
            "line 1, column 103: columns of a tile are from 1 to 4096, not 0",
        ),
        ("lines", "line 1, column 81: expected 'lanes', found ']'"),
    ],
)
def test_a_wrong_schedule(stages: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_module(SCHEDULED.replace("STAGES", stages))
    assert str(caught.value) == message


def test_print_op_uses_the_functions_names() -> None:
    b = Builder()
    x = b.input("x", "f32[3]")
    b.op("neg", b.op("relu", x), origin="node")
    b.output("y", x)
    neg = list(b.module().main.walk())[1]
    assert print_op(neg) == '%1 = neg(%0) : f32[3] @"node"'


def test_missing_assumptions_are_added() -> None:
    module = parse_module(
        'func @f(%a: f32[N], %b: f32[M]) -> ("c") {\n  %c = add(%a, %b) : f32[M]\n  return(%c)\n}'
    )
    (assumption,) = module.functions["f"].assumptions
    assert (str(assumption.left), str(assumption.right)) == ("N", "M")
    verify(module)


def test_comments_and_spaces_mean_nothing() -> None:
    a = parse_module("func @f(%a:f32[N]){%c=neg(%a):f32[N] return}")
    b = parse_module(
        "# hello\nfunc @f ( %a : f32 [ N ] ) {\n\n %c = neg ( %a ) # neg\n"
        " : f32 [ N ]\n return\n}\n# end"
    )
    assert modules_equal(a, b)


def _with_blob(contents: bytes, type: str) -> tuple[str, str]:
    """A text with a constant of a blob, and the blob's digest."""
    digest = hashlib.blake2b(contents, digest_size=16).hexdigest()
    blob = f'blob "{digest}" = "{base64.b64encode(contents).decode()}"\n'
    return blob + OP.format(f'%y = constant {{value = {type} <blob "{digest}">}} : {type}'), digest


OP = "func @f(%x: f32[N, 3]) {{\n  {}\n  return\n}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fun @f() {}", "line 1, column 1: expected 'func' or 'executable' or 'blob', found 'fun'"),
        ("func f() {}", "line 1, column 6: expected '@', found 'f'"),
        ("func @f(%x f32[3]) {}", "line 1, column 12: expected ':', found 'f32'"),
        (
            "func @f(%x: g32[3]) {}",
            "line 1, column 13: expected a type such as 'f32[N, 3]', found 'g32'",
        ),
        ("func @f(%x: f32[3, ]) {}", "line 1, column 20: expected a dim, found ']'"),
        ("func @f(%x: f32[(3]) {}", "line 1, column 19: expected ')', found ']'"),
        ("func @f(%x: f32[3//0]) {}", "line 1, column 17: division by zero in dim '3//0'"),
        (
            "func @f(%x: f32[-1]) {}",
            "line 1, column 13: type f32[-1] is wrong: an extent is negative",
        ),
        (
            "func @f(%x: f32[3]{order=1}) {}",
            "line 1, column 13: type f32[3]{order=1} is wrong: order is not a permutation of 1 "
            "physical "
            "dims",
        ),
        (
            "func @f(%x: f32[3]{colour=1}) {}",
            "line 1, column 19: layout '{colour=1}': expected "
            "splits=, order= or strides=, each once",
        ),
        ("func @f(%x: f32[3], %x: f32[3]) {}", "line 1, column 21: value %x is defined twice"),
        ("func @f() {} func @f() {}", "line 1, column 14: there are two functions named 'f'"),
        ('func @f() -> ("a" {}', "line 1, column 19: expected ',', found '{'"),
        ("func @f() assume [N = 3] {}", "line 1, column 21: expected '==', found '='"),
        ("func @f() bindings [7] {}", "line 1, column 21: there is no buffer class 7"),
        ("func @f() {", "line 1, column 12: expected an op or '}', found the end of the text"),
        (
            'func @f() -> ("a) {}',
            "line 1, column 15: expected a closing quote on the same line, found none",
        ),
        ('func @f() -> ("\\q") {}', 'line 1, column 15: string "\\q" has a wrong escape'),
        (
            'func @f() -> ("\\udc00y") {}',
            'line 1, column 15: string "\\udc00y" has half of a surrogate pair',
        ),
        ("func @f() { $ }", "line 1, column 13: expected a token, found '$'"),
        (
            OP.format("%y = relux(%x) : f32[N, 3]"),
            "line 2, column 8: there is no op 'relux'; docs/internals/ops.md lists them",
        ),
        (
            OP.format("%y = relu(%z) : f32[N, 3]"),
            "line 2, column 13: value %z is not defined before its use",
        ),
        (
            OP.format("%y = relu(%x) : f32[N, 4]"),
            "line 2, column 19: expected type f32[N, 3] for result of relu, found f32[N, 4]",
        ),
        (
            OP.format("%y, %z = relu(%x) : f32[N, 3], f32[3]"),
            "line 2, column 12: relu has 1 results, the text names 2",
        ),
        (
            OP.format("%y, %z = relu(%x) : f32[N, 3]"),
            "line 2, column 23: expected 2 result types, found 1",
        ),
        (OP.format("%y = relu() : f32[N, 3]"), "line 2, column 8: relu: operand 0 (x) is missing"),
        (
            OP.format("%y = cast(%x) : f32[N, 3]"),
            "line 2, column 8: cast: attribute 'to' is missing",
        ),
        (
            OP.format("%y = cast(%x) {to = 3} : f32[N, 3]"),
            "line 2, column 8: cast: attribute to is 3, expected dtype",
        ),
        (
            OP.format("%y = cast(%x) {to = f32, to = i32} : f32[N, 3]"),
            "line 2, column 28: attribute to is given twice",
        ),
        (
            OP.format("%y = cast(%x) {to = ,} : f32[N, 3]"),
            "line 2, column 23: expected an attribute's value, found ','",
        ),
        (
            OP.format("%y = reshape(%x) {shape = [N, 3, 1]} : f32[N, 3, 1] @node"),
            "line 2, column 56: expected the name of the model's node in quotes, found 'node'",
        ),
        (
            OP.format("%y = constant {value = f32[N] <splat 1.0>} : f32[N]"),
            "line 2, column 26: a constant cannot have type f32[N]: it needs numbers as dims and "
            "no "
            "strides",
        ),
        (
            OP.format("%y = constant {value = f32[3] <1.0, 2.0>} : f32[3]"),
            "line 2, column 26: expected 3 elements, found 2",
        ),
        (
            OP.format("%y = constant {value = f32[1] <1e39>} : f32[1]"),
            "line 2, column 34: 1e39 does not fit f32",
        ),
        (
            OP.format("%y = constant {value = i8[1] <-129>} : i8[1]"),
            "line 2, column 33: -129 does not fit i8",
        ),
        (
            OP.format("%y = constant {value = i8[1] <1.0>} : i8[1]"),
            "line 2, column 33: expected a number of i8, found '1.0'",
        ),
        (
            OP.format("%y = constant {value = bool[1] <1>} : bool[1]"),
            "line 2, column 35: expected 'true' or 'false', found '1'",
        ),
        (
            OP.format('%y = constant {value = i8[1] <blob "00">} : i8[1]'),
            "line 2, column 38: there is no blob '00'",
        ),
        (
            OP.format("%y = constant {value = f32[1000000, 1000000] <splat 0.0>} : f32[1]"),
            "line 2, column 26: constants with 'splat' take more than 1073741824 bytes",
        ),
        ('blob "00" = "!"', "line 1, column 13: blob is not base64"),
        (
            f"func @f(%x: f32[{', '.join('1' * 65)}]) {{}}",
            "line 1, column 13: type has 65 dims, at most 64 are allowed",
        ),
        (
            "func @f(%x: f32[3]{order=0",
            "line 1, column 27: expected '}', found the end of the text",
        ),
        (
            OP.format("%y = attention(%x, %x, %x) {scale = 1e999} : f32[N, 3]"),
            "line 2, column 39: 1e999 does not fit a float",
        ),
        (
            'blob "6f" elided 3 bytes\n'
            + OP.format('%y = constant {value = f32[1] <blob "6f">} : f32[1]'),
            "line 3, column 39: blob '6f' is elided: text printed without its blobs is for reading "
            "only; print it with them",
        ),
        ("executable @g[N, N](%x: f32[N]) {}", "line 1, column 18: dim parameter N is named twice"),
        (
            'blob "00" = "AA=="',
            "line 1, column 13: blob has not the digest '00' that it is named by",
        ),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_module(text)
    assert str(caught.value) == message


def test_blobs_that_are_no_such_constant() -> None:
    for contents, type, message in (
        (b"\0" * 3, "f32[1]", "has 3 bytes, a constant of type f32[1] has 4"),
        (b"\2", "bool[1]", "holds bytes that are no bool"),
    ):
        text, digest = _with_blob(contents, type)
        with pytest.raises(CompileError, match=re.escape(f"blob '{digest}' {message}")):
            parse_module(text)


def test_floats_of_any_precision_read_back() -> None:
    for value, text in ((np.float64(0.1) + np.float64(0.2), "0.30000000000000004"), (0.1, "0.1")):
        assert float_text(value) == text
    assert float_text(np.float32(0.1)) == "0.1"


def test_text_that_is_no_unicode_is_escaped() -> None:
    assert quote("a\ud800ü") == '"a\\ud800\\u00fc"'


def test_source_is_named() -> None:
    with pytest.raises(CompileError, match="^model.ir: line 1, column 1: expected 'func'"):
        parse_module("x", "model.ir")


def nested_blocks(depth: int) -> str:
    text = "yield(%v0)"
    for level in reversed(range(depth)):
        text = (
            f"%w{level} = region(%v{level}) : f32[] ^(%v{level + 1}: f32[]) {{ {text} }} "
            f"yield(%w{level})"
        ).replace("yield(%v0)", f"yield(%v{depth})")
    return f"func @f(%v0: f32[]) {{ {text.replace('yield(%w0)', 'return')} }}"


def test_nesting_is_bounded() -> None:
    verify(parse_module(nested_blocks(20)))
    with pytest.raises(CompileError, match="blocks are nested deeper than 32$"):
        parse_module(nested_blocks(200))
    with pytest.raises(CompileError, match="lists are nested deeper than 32$"):
        parse_module("func @f() { range {size = " + "[" * 5000 + " }")
    with pytest.raises(CompileError, match="is nested too deeply$"):
        parse_module("func @f(%x: f32[" + "(" * 2000 + "N" + ")" * 2000 + "]) {}")
    with pytest.raises(CompileError, match="is longer than 4096 characters$"):
        parse_module("func @f(%x: f32[" + "-" * 100000 + "N]) {}")


def test_every_truncation_is_one_clear_line() -> None:
    b = Builder()
    x = b.input("x", "f32[N, 3]")
    y = b.op("add", x, np.arange(51, dtype=np.float32).reshape(17, 1, 3), origin="a")
    b.output("y", b.op("region", y, blocks=[b.block([y.type], lambda v: b.op("relu", v))]))
    text = print_module(b.module())
    whole = 0
    for length in range(len(text)):
        try:
            parse_module(text[:length])
            whole += 1
        except CompileError as error:
            assert str(error).startswith("line ") and "\n" not in str(error)
    assert whole == 2  # the empty text, and all but the last line's end


def test_random_damage_never_crashes() -> None:
    b = Builder()
    x = b.input("x", "f32[N, 3]")
    b.output("y", b.op("add", x, np.array([1, 2.5, np.inf], np.float32), origin="a"))
    text = print_module(b.module())
    rng = np.random.default_rng(0)
    alphabet = '%@{}[]()<>,:=^"\\/*-+ \n0129.eNfx#\x00é'
    for _ in range(2000):
        at = int(rng.integers(len(text)))
        damaged = text[:at] + alphabet[int(rng.integers(len(alphabet)))] + text[at + 1 :]
        try:
            parse_module(damaged)
        except CompileError as error:
            assert str(error).startswith("line ")
