"""Files of torch.export.save: what is read is the program that was saved, and nothing in a file is
run, whatever it says."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aot
from aot.errors import CompileError
from aot.frontends.torch import import_torch
from aot.ir.limits import limited
from aot.ir.text.printer import print_module
from tests.support.torch_archives import (
    MODEL,
    WEIGHTS,
    changed,
    entries_of,
    packed,
    saved,
    saved_before,
    zipped,
)


def programs(t: Any) -> dict[str, Callable[[], Any]]:
    """Programs whose files have each something of their own."""
    open_dim = t.export.Dim.DYNAMIC

    class Held(t.nn.Module):  # type: ignore[name-defined, misc]
        """Parameters that are one, buffers of both sorts, a constant, trees, open dims."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = t.nn.Linear(4, 4)
            self.tied = self.layer.weight
            self.part = t.nn.Parameter(t.arange(32.0).reshape(4, 8)[1:3, ::2])
            self.register_buffer("total", t.ones(4))
            self.register_buffer("late", t.ones(4), persistent=False)
            self.table = t.arange(4.0)

        def forward(self, x: Any, *, pair: Any) -> Any:
            y = t.cat([x, x[: x.shape[0] // 2 * 2]])
            self.total.add_(1)
            held = self.layer(y) + self.total + self.late + self.table
            rows = {"held": held + self.tied[0], "third": x.shape[0] // 3}
            return rows, pair[0].reshape(-1).amax() + self.part.sum(), [*t.topk(y, 2)]

    class Sizes(t.nn.Module):  # type: ignore[name-defined, misc]
        """Sizes with remainders, roundings, minima and maxima, and what is checked of them."""

        def forward(self, x: Any, y: Any) -> Any:
            n, m = x.shape[0], y.shape[0]
            padded = t.nn.functional.pad(x, (0, 0, 0, -n % 8))
            least = x[: min(n, m)] + y[: min(n, m)]
            grown = t.nn.functional.interpolate(x[None, None], scale_factor=1.5)
            joined = t.cat([x, y])
            if joined.shape[0] >= 6:
                joined = joined * 2
            return padded.reshape(-1, 8, 4), least, grown, joined[: max(n // 5, 1)]

    class Branches(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            small = t.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))
            return small, t.split(x, [1, 2]), t.einsum("i,i->", x, x)

    class Data(t.nn.Module):  # type: ignore[name-defined, misc]
        """Extents that data decide."""

        def forward(self, x: Any) -> Any:
            found = t.nonzero(x)
            return found + 1, x.to(t.float64).to(t.bfloat16)

    class Multiple(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return t.nn.functional.pixel_unshuffle(x, 4).to(t.float16)

    def exported(module: Any, args: Any, kwargs: Any = None, shapes: Any = None) -> Any:
        return t.export.export(module, args, kwargs, dynamic_shapes=shapes)

    pair = {"pair": [t.randn(8, 4)]}
    bounded = {"x": {0: open_dim(min=4, max=100)}, "pair": [{0: open_dim}]}
    unit = 4 * t.export.Dim("unit", min=2, max=9)
    two = {"x": {0: open_dim}, "y": {0: open_dim}}
    return {
        "held": lambda: exported(Held(), (t.randn(8, 4),), pair, bounded),
        "sizes": lambda: exported(Sizes(), (t.randn(13, 4), t.randn(9, 4)), None, two),
        "branches": lambda: exported(Branches(), (t.randn(3),)),
        "data": lambda: exported(Data(), (t.randn(3, 2),)),
        "multiple": lambda: exported(Multiple(), (t.randn(1, 2, 8, 8),), None, ({2: unit},)),
    }


NAMES = ("held", "sizes", "branches", "data", "multiple")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_the_program_that_was_saved(t: Any, name: str) -> None:
    program = programs(t)[name]()
    data = saved(program)
    expected = print_module(import_torch(program))
    assert print_module(import_torch(data)) == expected
    if name == "held":
        assert aot.compile(data).to_bytes() == aot.compile(program).to_bytes()
        assert print_module(import_torch(saved_before(program))) == expected
        again = packed(entries_of(data), zipfile.ZIP_DEFLATED)
        assert print_module(import_torch(again)) == expected


@pytest.fixture(scope="module")
def good(t: Any) -> bytes:
    class Module(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = t.nn.Parameter(t.ones(4))

        def forward(self, x: Any, *, bias: Any) -> Any:
            return {"y": (x * self.weight).reshape(-1).sum(0) + bias}

    shapes = {"x": {0: t.export.Dim.DYNAMIC(min=3, max=64)}, "bias": None}
    args = (t.zeros(5, 4),), {"bias": t.zeros(())}
    return saved(t.export.export(Module(), *args, dynamic_shapes=shapes))


def refusal(data: bytes) -> str:
    """The one error that a file ends in."""
    with pytest.raises(CompileError) as failure:
        import_torch(data)
    return str(failure.value)


def graph(model: Any) -> Any:
    return model["graph_module"]["graph"]


def renamed(model: Any, old: str, new: str) -> None:
    """Gives a value another name wherever it stands."""
    whole = json.loads(json.dumps(model).replace(json.dumps(old), json.dumps(new)))
    model.clear()
    model.update(whole)


CODE = "__import__('pathlib').Path('run').write_text('')"


def _expression(model: Any, text: str) -> None:
    graph(model)["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = text


def _target(model: Any, name: str) -> None:
    graph(model)["nodes"][0]["target"] = name


def _in_spec(model: Any, change: Callable[[Any], None]) -> None:
    signature = model["graph_module"]["module_call_graph"][0]["signature"]
    version, spec = json.loads(signature["in_spec"])
    change(spec)
    signature["in_spec"] = json.dumps([version, spec])


def _keyword(model: Any, name: str) -> None:
    _in_spec(model, lambda s: s["children_spec"][1].update(context=json.dumps([name])))


def _default(model: Any, module: str, name: str) -> None:
    context = {"default_factory_module": module, "default_factory_name": name, "dict_context": []}
    tree = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    _in_spec(model, lambda s: s["children_spec"].append(tree))


def _size(model: Any, text: str) -> None:
    graph(model)["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}


X = "Symbol('s77', positive=True, integer=True)"
# Changes of models/model.json that are wrong or would run code, and what is said of each.
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "code for a size": (lambda m: _expression(m, CODE), r"expr_str is no size: .*"),
    "code in a size": (
        lambda m: _expression(m, f"Symbol('s77').func({CODE})"),
        r"expr_str is no size: .*\.func.* is not understood",
    ),
    "a function of sympy": (
        lambda m: _expression(m, "sympify('1')"),
        r"expr_str is no size: there is no function 'sympify'",
    ),
    "a symbol that is code": (
        lambda m: _expression(m, 'Symbol("a")'),
        r"expr_str is no size: .* is not understood",
    ),
    "a tower of powers": (
        lambda m: _size(m, "Pow(" * 40 + X + ", Integer(32))" * 40),
        r"expr_str has an exponent that is no integer up to 32",
    ),
    "a shift": (
        lambda m: _size(m, "LShift(Integer(1), Integer(99999999999))"),
        r"expr_str is no size: there is no function 'LShift'",
    ),
    "a long number": (lambda m: _size(m, f"Integer({'9' * 99})"), r"expr_str has an integer of .*"),
    "a long size": (
        lambda m: _size(m, f"Add({', '.join([X] * 999)})"),
        r"expr_str has \d+ characters, expected at most 16384",
    ),
    "a deep size": (
        lambda m: _size(m, "Not(" * 999 + "true" + ")" * 999),
        r"expr_str is nested more than 64 deep",
    ),
    "a division by zero": (lambda m: _size(m, f"Mod({X}, Integer(0))"), r".*"),
    "a symbol of other assumptions": (
        lambda m: _size(m, f"Add({X}, Symbol('s77'))"),
        r"expr_str has a symbol 's77' of other assumptions than before",
    ),
    "a name that is code": (
        lambda m: renamed(m, "x", f"x={CODE}"),
        r'name is "x=.*, expected a name',
    ),
    "a name of two underscores": (
        lambda m: renamed(m, "x", "__import__"),
        r"name is .__import__., expected a name that does not begin with two underscores",
    ),
    "a word of Python": (lambda m: renamed(m, "x", "lambda"), r"name is .lambda., expected a name"),
    "a parameter's path that is code": (
        lambda m: renamed(m, "weight", f'a"+{CODE}+"'),
        r"parameter_name is .*, expected a path of attributes",
    ),
    "a parameter's path to a class": (
        lambda m: renamed(m, "weight", "a.__class__.b"),
        r"parameter_name is .*, expected a path of attributes",
    ),
    "a keyword that is code": (
        lambda m: _keyword(m, f"b={CODE.replace(chr(39), '')}"),
        r"in_spec\.a keyword is .*, expected a name",
    ),
    "a key that is code": (
        lambda m: _keyword(m, f"b={CODE}"),
        r"in_spec: .*context has a key that is neither a plain text nor a number",
    ),
    "an argument's name that is code": (
        lambda m: m["graph_module"]["module_call_graph"][0]["signature"].update(
            forward_arg_names=[f"x={CODE}", "bias"]
        ),
        r"forward_arg_names\[0\] is .*, expected a name",
    ),
    "a container that is imported": (
        lambda m: _default(m, "pathlib", "Path"),
        r"in_spec: .*context makes pathlib\.Path, expected a container or number of Python",
    ),
    "a container that calls": (
        lambda m: _default(m, "builtins", "eval"),
        r"in_spec: .*context makes builtins\.eval, expected .*",
    ),
    "an enum that is imported": (
        lambda m: _keyword(m, {"__enum__": True, "fqn": "antigravity:x", "name": "y"}),  # type: ignore[arg-type]
        r"in_spec: .*context has a key that is neither a plain text nor a number",
    ),
    "a class that is not registered": (
        lambda m: _in_spec(m, lambda s: s["children_spec"][0].update(type="subprocess.Popen")),
        r"in_spec: .*type is 'subprocess.Popen', a class that is not registered here: .*",
    ),
    "a function of a module": (
        lambda m: _target(m, "torch.hub.load"),
        r"target is .*may not call.*",
    ),
    "an operator that finds attributes": (
        lambda m: _target(m, "_operator.attrgetter"),
        r"target is '_operator.attrgetter', a function that a file may not call: .*",
    ),
    "an op that writes files": (
        lambda m: _target(m, "torch.ops.aten.save.default"),
        r"target is 'torch.ops.aten.save.default', which this PyTorch, .*, does not have",
    ),
    "an op that maps files": (
        lambda m: _target(m, "torch.ops.aten.from_file.default"),
        r"target is .*, a function that a file may not call: .*",
    ),
    "an op of another space": (
        lambda m: _target(m, "torch.ops.image.write_file.default"),
        r"target is .*, a function that a file may not call: .*",
    ),
    "an attribute of an op": (
        lambda m: _target(m, "torch.ops.aten.add.__class__"),
        r"target is .*, which this PyTorch, .*, does not have",
    ),
    "an argument that an op has not": (
        lambda m: graph(m)["nodes"][0]["inputs"].append({"name": CODE, "arg": {"as_int": 1}}),
        r"nodes\[0\] has an argument .*, not one of aten\.mul\.Tensor",
    ),
    "an object": (
        lambda m: graph(m)["nodes"][0]["inputs"][0].update(
            arg={"as_custom_obj": {"name": "a", "class_fqn": "b"}}
        ),
        r"arg\.as_custom_obj is 'as_custom_obj', an argument that is not supported",
    ),
    "a value before it is given": (
        lambda m: graph(m)["nodes"].reverse(),
        r".*, which no node before gives",
    ),
    "a value that nothing describes": (
        lambda m: graph(m)["tensor_values"].pop("x"),
        r".* is 'x', which is no value of the graph",
    ),
    "another layout": (
        lambda m: graph(m)["tensor_values"]["x"].update(layout=2),
        r"layout is that of a sparse or packed tensor, which cannot be read",
    ),
    "a range without a number": (
        lambda m: m["range_constraints"]["s77"].update(min_val=9, max_val=3),
        r"range_constraints\.s77 is a range without a number in it",
    ),
    "a later version": (
        lambda m: m["schema_version"].update(major=9),
        r"schema_version\.major is 9, expected 8: save the program with PyTorch 2\.13",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_error(
    good: bytes, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, pattern = WRONG[name]
    message = refusal(changed(good, change))
    assert re.fullmatch(rf"model: (?:{re.escape(MODEL)}: \S*?)?{pattern}", message), message
    assert len(message) < 1000
    assert not list(tmp_path.iterdir())


def test_guards_are_no_code(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no comparison of dims says nothing."""
    monkeypatch.chdir(tmp_path)
    data = changed(good, lambda m: m.update(guards_code=[CODE, f"{CODE} == 1", "("]))
    assert print_module(import_torch(data)) == print_module(import_torch(good))
    assert not list(tmp_path.iterdir())


class Runs:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return eval, (CODE,)


def test_pickles_are_not_run(
    t: Any, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    t.save(Runs(), file)
    for pickled in (file.getvalue(), pickle.dumps(Runs())):
        data = changed(good, lambda c: c["config"]["weight"].update(use_pickle=True), WEIGHTS)
        entries = entries_of(data) | {"data/weights/weight_0": pickled}
        message = refusal(packed(entries))
        assert message.startswith("model: tensor 'weight'")
        entries = entries_of(good) | {"data/sample_inputs/model.pt": pickled}
        import_torch(packed(entries))  # examples are not read
    before = {
        "serialized_exported_program.json": entries_of(good)[MODEL],
        "serialized_state_dict.pt": file.getvalue(),
        "serialized_constants.pt": b"",
    }
    assert "which could run code and is not read" in refusal(zipped(before))
    assert not list(tmp_path.iterdir())


def test_tensors_that_are_pickled_as_tensors(t: Any, good: bytes) -> None:
    """They are tensors only, which torch makes without running anything."""
    file = io.BytesIO()
    t.save(t.nn.Parameter(t.ones(4)), file)
    data = changed(good, lambda c: c["config"]["weight"].update(use_pickle=True), WEIGHTS)
    pickled = packed(entries_of(data) | {"data/weights/weight_0": file.getvalue()})
    assert print_module(import_torch(pickled)) == print_module(import_torch(good))


def _meta(**given: Any) -> Callable[[Any], None]:
    return lambda c: c["config"]["weight"]["tensor_meta"].update(given)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (
            _meta(sizes=[{"as_int": 10**12}]),
            r"is a tensor up to byte 4000000000000 of a file of 16",
        ),
        (_meta(storage_offset={"as_int": 10**9}), r"is a tensor up to byte 4000000016 of a .*"),
        (_meta(storage_offset={"as_int": -1}), r"storage_offset\.as_int is -1, expected .*"),
        (_meta(strides=[{"as_int": 10**9}]), r"is a tensor up to byte 12000000004 of a file of 16"),
        (_meta(sizes=[{"as_int": 1}] * 65), r"has 65 sizes and 1 strides, expected as many, .*"),
        (
            _meta(sizes=[{"as_int": 1 << 40}], strides=[{"as_int": 0}]),
            r"is a tensor of 4398046511104 bytes in a file of 16: save the program with .*",
        ),
        (
            lambda c: c["config"].update({'a", "b': c["config"]["weight"]}),
            r"config.a tensor's name is .*, expected a path of attributes",
        ),
        (_meta(dtype=99), r"dtype is 99, which is the number of no element type"),
        (
            lambda c: c["config"]["weight"].update(path_name="../../x"),
            r"has no entry 'data/weights/\.\./\.\./x'",
        ),
    ],
)
def test_weights_beyond_their_bytes(
    good: bytes, change: Callable[[Any], None], pattern: str
) -> None:
    message = refusal(changed(good, change, WEIGHTS))
    assert re.fullmatch(rf"model: (?:{WEIGHTS}: \S*? ?)?{pattern}", message), message


def test_sizes_are_bounded_before_they_are_inflated(good: bytes) -> None:
    bomb = entries_of(good) | {"data/weights/weight_0": bytes(64 << 20)}
    message = refusal(packed(bomb, zipfile.ZIP_DEFLATED))
    assert re.fullmatch(
        r"model: its entries have \d+ bytes in a file of \d+, expected at most \d+: save it as "
        r"torch does, without compression, or allow more with --limit-memory MIB \(limit_memory\)",
        message,
    )
    with limited(0, 2048):
        assert import_torch(packed(bomb, zipfile.ZIP_DEFLATED)).main
    deep = packed(entries_of(good) | {MODEL: b"[" * 99_999 + b"]" * 99_999})
    assert refusal(deep) == f"model: {MODEL}: is nested too deep"


def damaged(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    yield data[:-9]
    yield data.replace(b'"nodes"', b'"n\xffdes"', 1)
    yield packed({"archive_format": b"pt2", "archive_version": b"7"})
    yield packed({"archive_format": b"pt2", "archive_version": b"0"})


def test_damaged_files(good: bytes) -> None:
    for data in damaged(good):
        assert refusal(data).startswith("model: ")
