"""Modules of PyTorch from `aot.compile` to a program: arguments, results, states, messages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.errors import CompileError, RuntimeFailure, UnsupportedError
from aot.ir.types import DType
from aot.tools.torch_engine import open_torch
from tests.support.torch_modules import check, imported, module_of


def loaded(module: Any, args: tuple[Any, ...], **options: Any) -> Any:
    return aot.load(aot.compile(module, args, **options))


def test_a_convolutional_network(t: Any) -> None:
    nn = t.nn
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(8, 5),
    )
    network(t.randn(4, 3, 8, 8))  # statistics that are not those at the start
    statistics = network[1].running_mean.clone()
    image = t.randn(2, 3, 8, 8)
    program = loaded(network, (image,), dynamic_shapes={"input": {0: "batch"}})
    assert network.training and network[1].training  # as it was
    assert t.equal(network[1].running_mean, statistics)
    assert [str(i) for i in program.inputs] == ["input: f32[batch, 3, 8, 8]"]
    assert [str(o) for o in program.outputs] == ["output: f32[batch, 5]"]
    network.eval()
    for given in (image, t.randn(1, 3, 8, 8), t.randn(5, 3, 8, 8)):
        found = program(given)
        assert isinstance(found, t.Tensor)
        t.testing.assert_close(found, network(given), rtol=0, atol=1e-5)
    by_name = program(input=image)
    assert t.equal(by_name, program(image))
    array = program(image.numpy())
    assert isinstance(array, np.ndarray) and np.array_equal(array, by_name.numpy())
    named = program({"input": image.numpy()})
    assert list(named) == ["output"] and np.array_equal(named["output"], array)


def test_open_extents_of_one_in_examples(t: Any) -> None:
    """torch.export makes them constants, so that the examples are repeated to the next extents."""

    class Joined(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return (x.relu() + y).sum(1)

    def dims(shapes: Any, *extents: tuple[int, ...]) -> list[tuple[int | str, ...]]:
        args = tuple(t.randn(e) for e in extents)
        program = loaded(Joined(), args, dynamic_shapes=shapes)
        given = [
            t.randn([5 if d == "n" else 8 if d == "4*h" else d for d in i.dims])
            for i in program.inputs
        ]
        t.testing.assert_close(program(*given), Joined()(*given))
        return [i.dims for i in program.inputs]

    n = t.export.Dim("n")
    both = {"x": {0: "n"}, "y": {0: "n"}}
    assert dims(both, (1, 3), (1, 3)) == [("n", 3), ("n", 3)]
    assert dims(({0: n}, {0: n}), (1, 3), (1, 3)) == [("n", 3), ("n", 3)]
    assert dims({"x": {0: "n"}, "y": None}, (1, 3), (1, 3)) == [("n", 3), (1, 3)]
    assert dims({"x": {1: "4*h"}, "y": None}, (2, 4), (2, 1)) == [(2, "4*h"), (2, 1)]
    assert dims(both, (0, 3), (0, 3)) == [("n", 3), ("n", 3)]
    apart = {"x": {0: n}, "y": {0: t.export.Dim("m")}}
    with pytest.raises(CompileError) as caught:
        loaded(Joined(), (t.zeros(1, 3), t.zeros(1, 3)), dynamic_shapes=apart)
    assert str(caught.value).endswith(
        "  open extents of 1 in the example inputs were taken as 2, as torch.export makes 1 a "
        "constant: give examples with larger ones"
    )


def test_dims_of_a_tensor_that_is_passed_twice(t: Any) -> None:
    """Each place has its own, with extents of 1 in the example too."""

    class Apart(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return x.sum(0) + 1, y * 2

    for example in (t.ones(1, 3), t.ones(4, 3)):
        for shapes, expected in (
            (({0: "n"}, {0: "m"}), [("n", 3), ("m", 3)]),
            (({0: "n"}, {0: "n"}), [("n", 3), ("n", 3)]),
            (({0: "n"}, None), [("n", 3), tuple(example.shape)]),
        ):
            program = loaded(Apart(), (example, example), dynamic_shapes=shapes)
            assert [i.dims for i in program.inputs] == expected


def test_trees_of_arguments_and_results(t: Any) -> None:
    class Tree(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, pair: Any, scale: float, *, options: Any = None) -> Any:
            a, b = pair
            c = a + options["bias"] * scale
            return {"sum": c, "more": [b, (a, None)], "rows": a.shape[0], "text": "x", "c": c}

    module, pair = Tree(), (t.randn(3, 2), t.randn(2))
    options = {"bias": t.randn(2)}
    compiled = aot.compile(module, (pair, 2.0), {"options": options})
    program = aot.load(compiled)
    assert [i.name for i in program.inputs] == ["pair_0", "pair_1", "options_bias"]
    assert [o.name for o in program.outputs] == ["sum", "more.0", "more.1.0", "c"]
    found, wanted = program(pair, 2.0, options=options), module(pair, 2.0, options=options)
    assert list(found) == list(wanted)
    assert t.equal(found["sum"], wanted["sum"]) and t.equal(found["c"], wanted["c"])
    assert t.equal(found["more"][0], pair[1]) and t.equal(found["more"][1][0], pair[0])
    assert (found["more"][1][1], found["rows"], found["text"]) == (None, 3, "x")
    assert t.equal(program(pair=pair, scale=2.0, options=options)["sum"], wanted["sum"])
    messages = {
        "the module takes pair, scale, options, found 1 arguments": ((pair,), {}),
        "an argument is 3.0, but the module was compiled for 2.0 there": (
            (pair, 3.0),
            {"options": options},
        ),
        'input "pair_1": expected dtype f32, found f64': (
            ((pair[0], pair[1].double()), 2.0),
            {"options": options},
        ),
    }
    for message, (args, kwargs) in messages.items():
        with pytest.raises(RuntimeFailure) as failure:
            program(*args, **kwargs)
        assert message in str(failure.value)
    with pytest.raises(RuntimeFailure, match="the arguments are nested otherwise"):
        program([*pair], 2.0, options=options)


@dataclass
class Pair:
    left: Any
    right: Any
    scale: float = 2.0
    missing: Any = None


@dataclass
class Found:
    sum: Any
    parts: list[Any]
    nothing: Any


def test_dataclasses_are_taken_apart_and_rebuilt(t: Any) -> None:
    class Sum(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, pair: Any, more: Any) -> Any:
            total = pair.left + pair.right * pair.scale
            inner = Found(more["a"].left, [], None)
            return Found(total, [pair.left, {"inner": inner}], pair.missing)

    def arguments(rows: int) -> tuple[Any, ...]:
        return Pair(t.randn(rows, 3), t.randn(rows, 3)), {"a": Pair(t.randn(2), t.randn(2), 1.0)}

    module, args = Sum(), arguments(2)
    rows = {0: "rows"}
    by_field = {"pair": {"left": rows, "right": rows}, "more": {"a": {}}}
    by_place = ([rows, rows, None], {"a": [None, None, None]})
    for shapes in (by_field, by_place):
        program = loaded(module, args, dynamic_shapes=shapes)
        assert str(program.inputs[0]) == "pair_left: f32[rows, 3]"
        assert [o.name for o in program.outputs] == ["sum", "parts.0", "parts.1.inner.sum"]
        for given in (args, arguments(5)):
            found, wanted = program(*given), module(*given)
            assert isinstance(found, Found) and found.nothing is None
            assert isinstance(found.parts[1]["inner"], Found)
            assert t.equal(found.sum, wanted.sum) and t.equal(found.parts[0], wanted.parts[0])
            assert t.equal(found.parts[1]["inner"].sum, wanted.parts[1]["inner"].sum)
    with pytest.raises(RuntimeFailure, match="an argument is 3.0, but the module was compiled"):
        program(Pair(args[0].left, args[0].right, 3.0), args[1])
    with pytest.raises(RuntimeFailure, match="the arguments are nested otherwise"):
        program([args[0].left, args[0].right, 2.0], args[1])
    assert not module._forward_hooks


def test_a_file_is_called_by_names_of_arrays(t: Any, tmp_path: Path) -> None:
    compiled = aot.compile(t.nn.ReLU(), (t.randn(3),))
    compiled.save(tmp_path / "relu.aotm")
    program = aot.load(tmp_path / "relu.aotm")
    x = np.array([-1, 2, 3], np.float32)
    for found in (program({"input": x}), program(x), program(input=x)):
        assert found["output"].tolist() == [0, 2, 3]
    with pytest.raises(RuntimeFailure, match='input "input" is given twice'):
        program(x, input=x)
    with pytest.raises(RuntimeFailure, match="2 inputs, the program has 1"):
        program(x, x)


def test_buffers_that_change_are_states(t: Any) -> None:
    class Cache(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", t.zeros(2, 4, 3))
            self.register_buffer("decay", t.tensor([0.5, 2.0]))
            self.register_buffer("place", t.zeros((), dtype=t.int64))

        def forward(self, key: Any, place: Any) -> Any:
            self.keys[:, place] = key
            self.decay.mul_(self.decay)
            self.place.add_(1)
            return self.keys.sum(1), self.keys[:, 0], self.decay, self.place

    module = Cache()
    program = loaded(module, (t.randn(2, 1, 3), t.tensor([1])))
    names = ["keys", "decay", "decay.is_set", "self.place"]
    assert [s.name for s in program.states] == names
    assert [o.name for o in program.outputs] == ["output_0", "output_1", "output_2", "output_3"]
    calls = [(t.randn(2, 1, 3), t.tensor([i])) for i in (0, 2, 2, 1)]
    expected = [[r.clone() for r in module(*call)] for call in calls]
    for _ in range(2):
        for call, wanted in zip(calls, expected, strict=True):
            for one, other in zip(program(*call), wanted, strict=True):
                t.testing.assert_close(one, other, rtol=0, atol=1e-6)
        program.reset()


def test_arguments_that_change_are_written(t: Any) -> None:
    class Writes(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            x[1:] += y
            return x, x[0], y

    given, mine = t.randn(3, 2), t.randn(2)
    program = loaded(Writes(), (given, mine))
    ours, theirs = t.ones(3, 2), t.ones(3, 2)
    found, wanted = program(ours, mine), Writes()(theirs, mine)
    assert t.equal(ours, theirs)
    assert all(t.equal(a, b) for a, b in zip(found, wanted, strict=True))
    array = np.ones((3, 2), np.float32)
    program(array, mine.numpy())
    assert np.array_equal(array, theirs.numpy())


def test_parameters_that_are_shared_are_one_constant(t: Any) -> None:
    class Tied(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = t.nn.Embedding(50, 16)
            self.head = t.nn.Linear(16, 50, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.embedding(x))

    module, x = Tied(), t.tensor([[1, 2, 49]])
    ours = imported(module, [x])
    constants = [op for op in ours.main.walk() if op.name == "constant"]
    (weight,) = [op.attrs["value"] for op in constants if op.origin.endswith(".weight")]
    # torch's own memory
    assert weight.array.ctypes.data == module.embedding.weight.data_ptr()


def test_open_dims_have_bounds_and_names(t: Any) -> None:
    class Pair(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return x + y, x[:, :1], x.reshape(x.shape[0], -1, 4)

    args = (t.randn(3, 8), t.randn(3, 8))
    shapes = {"x": {0: "n:..9", 1: "4*k"}, "y": {0: "n", 1: "4*k"}}
    program = loaded(Pair(), args, dynamic_shapes=shapes)
    assert [str(i) for i in program.inputs] == ["x: f32[n, 4*k]", "y: f32[n, 4*k]"]
    assert program(t.ones(9, 12), t.ones(9, 12))[2].shape == (9, 3, 4)
    for shape, message in {
        (10, 8): "axis 0, n, must be at most 9",
        (3, 6): "axis 1 is 6, expected a multiple of 4",
    }.items():
        with pytest.raises(RuntimeFailure) as failure:
            program(t.ones(shape), t.ones(shape))
        assert message in str(failure.value)
    dim = t.export.Dim("rows", min=3, max=6)
    program = loaded(Pair(), args, dynamic_shapes={"x": {0: dim}, "y": {0: dim}})
    assert program.inputs[0].bounds[0] == (3, 6)


def test_what_torch_takes_for_granted_is_checked(t: Any) -> None:
    class Halves(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x + 1 if x.shape[0] // 2 == 3 else x

    program = loaded(Halves(), (t.randn(6),), dynamic_shapes={"x": {0: "n"}})
    assert program(t.zeros(7)).tolist() == [1] * 7
    with pytest.raises(RuntimeFailure) as failure:
        program(t.zeros(8))
    assert "the module was exported for shapes with n//2 == 3" in str(failure.value)


def test_programs_of_torch(t: Any, tmp_path: Path) -> None:
    module, x = t.nn.Linear(3, 2), t.randn(4, 3)
    exported = t.export.export(module, (x,))
    path = tmp_path / "model.pt2"
    with path.open("wb") as stream:
        t.export.save(exported, stream)
    sources: dict[str, Any] = {"program": exported, "path": path, "bytes": path.read_bytes()}
    for what, source in sources.items():
        found = aot.load(aot.compile(source))(x)
        t.testing.assert_close(found, module(x), rtol=0, atol=1e-6, msg=what)


def test_messages_for_modules(t: Any, tmp_path: Path) -> None:
    module, x = t.nn.ReLU(), t.randn(3)
    with pytest.raises(CompileError) as failure:
        aot.compile(module)
    assert str(failure.value) == (
        "a torch.nn.Module is exported with example inputs: aot.compile(module, (x,))"
    )
    with pytest.raises(CompileError) as failure:
        aot.compile(module, x)
    assert str(failure.value) == (
        "the arguments of a module are given as a tuple, found Tensor: aot.compile(module, (x,))"
    )
    with pytest.raises(CompileError) as failure:
        aot.compile("model.onnx", (x,))
    assert str(failure.value) == (
        "example inputs and dynamic_shapes go with a torch.nn.Module; the model is model.onnx"
    )
    with pytest.raises(CompileError) as failure:
        aot.compile(module, (x,), dynamic_shapes={"input": {0: "n*n"}})
    assert str(failure.value) == (
        "dynamic_shapes: 'n*n' is none of a name, a multiple of one, and one with bounds, as in "
        "32*h and H:32..960"
    )
    (tmp_path / "state.pt").write_bytes(b"")
    t.save(t.nn.Linear(2, 2).state_dict(), tmp_path / "state.pt")
    with pytest.raises(CompileError) as failure:
        aot.compile(tmp_path / "state.pt")
    assert str(failure.value) == (
        f"{tmp_path}/state.pt: is a PyTorch file, which cannot be compiled: give the module to "
        "aot.compile in Python, or save it with torch.export.save"
    )


def test_branches_on_data_are_told_with_torchs_advice(t: Any) -> None:
    class Branch(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(CompileError) as failure:
        aot.compile(Branch(), (t.randn(3),))
    first, *more = str(failure.value).splitlines()
    assert first.startswith("torch.export can't export Branch: Could not guard on data-dependent")
    assert any("test_modules.py" in line for line in more)  # where in the user's code


def test_everything_that_is_unsupported_is_listed(t: Any) -> None:
    class Inner(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return t.special.airy_ai(x), t.poisson(x) + x

    class Outer(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = Inner()

        def forward(self, x: Any) -> Any:
            a, b = self.first(x)
            return a * 2, b, t.special.bessel_j0(x), x.to(t.float8_e5m2)

    with pytest.raises(UnsupportedError) as failure:
        aot.compile(Outer(), (t.rand(3),))
    here, text = Path(__file__).name, Path(__file__).read_text()
    inner, outer = (
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip().startswith("return") and "t.special." in line
    )
    assert str(failure.value).splitlines() == [
        "model: not supported in this model (4):",
        f"  aten.special_airy_ai.default (node 'first/special_airy_ai', {here}:{inner}): "
        "there is no importer for this op",
        f"  aten.poisson.default (node 'first/poisson', {here}:{inner}): it makes random "
        "numbers; take them as an input",
        f"  aten.special_bessel_j0.default (node 'special_bessel_j0', {here}:{outer}): there is no "
        "importer for this op",
        f"  aten._to_copy.default (node '_to_copy', {here}:{outer}): element type float8_e5m2 is "
        "not supported",
    ]


def test_an_ops_origin_is_its_module(t: Any) -> None:
    network = t.nn.Sequential(t.nn.Sequential(t.nn.Linear(2, 2)), t.nn.ReLU())
    origins = {op.origin for op in imported(network, [t.randn(1, 2)]).main.walk()}
    assert {"0.0/linear", "0.0.weight", "0.0.bias", "1/relu"} <= origins


def test_torch_is_imported_for_its_models_only() -> None:
    code = (
        "import sys, aot, numpy as np\n"
        "from aot.builder import Builder\n"
        "b = Builder(); b.output('y', b.op('relu', b.input('x', 'f32[3]')))\n"
        "aot.load(aot.compile(b.module()))({'x': np.ones(3, np.float32)})\n"
        "assert 'torch' not in sys.modules and 'aot.frontends.torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_several_results_of_one_value(t: Any) -> None:
    module = module_of({"a": lambda x: x, "b": lambda x: x.view(-1), "c": lambda x: x[0]}, 1)
    x = t.randn(2, 3)
    found = loaded(module, (x,))(x)
    assert t.equal(found["a"], x) and t.equal(found["b"], x.view(-1)) and t.equal(found["c"], x[0])


class Kept:
    """Makes a module with a buffer that it changes, and arguments of it."""

    def __new__(cls, t: Any) -> Any:
        class Keeps(t.nn.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("total", t.tensor([1.0, 2.0]))

            def forward(self, x: Any, *, scale: Any) -> Any:
                self.total += x * scale
                return {"total": self.total, "rows": 2, "x": x}

        return Keeps()


def test_verification_with_the_module_itself(t: Any) -> None:
    module, x, scale = Kept(t), t.randn(2), {"scale": t.tensor(3.0)}
    found = aot.verify(module, (x,), kwargs=scale)
    assert (found.engine, found.agrees) == ("torch", True)
    assert [o.name for o in found.outputs] == ["total", "x"]
    assert module.total.tolist() == [1.0, 2.0]  # as it was
    compiled = aot.compile(module, (x,), scale)
    assert aot.verify(compiled, module, inputs=(x,), kwargs=scale, steps=5).agrees
    module.total += 1  # the program has it as it was
    assert not aot.verify(compiled, module, inputs=(x,), kwargs=scale).agrees
    exported = t.export.export(t.nn.Tanh(), (x,))
    assert aot.verify(exported, (x,)).agrees
    for wrong in (x, "model.onnx"):
        with pytest.raises(CompileError) as failure:
            aot.verify(t.nn.Tanh(), wrong)
        assert "tuple" in str(failure.value)
    with pytest.raises(CompileError) as failure:
        aot.verify("m.aotm", module, inputs=(x,), kwargs=scale)
    assert str(failure.value) == (
        "a module of PyTorch is verified with a tuple of arguments, as aot.verify(module, (x,)), "
        "or aot.verify(compiled, module, inputs=(x,))"
    )


def test_the_command_takes_files_of_torch(t: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    t.export.save(t.export.export(Kept(t), (t.randn(2),), {"scale": t.tensor(2.0)}), path)
    for line in (
        ["compile", str(path), "-o", str(tmp_path / "model.aotm")],
        ["inspect", str(tmp_path / "model.aotm")],
        ["verify", str(path)],
    ):
        result = CliRunner().invoke(cli, line)
        assert result.exit_code == 0, result.output
    assert "agrees" in result.output


def test_files_are_compared_with_torch(t: Any, tmp_path: Path) -> None:
    class Several(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, pair: Any, *, options: Any) -> Any:
            x[0] *= 2
            x = x * pair[1]
            return {"sum": x + pair[0], "rest": [x.bfloat16(), options["bias"] + 3]}

    args, kwargs = (t.randn(4, 3), (t.randn(3), 2)), {"options": {"bias": t.randn(2)}}
    rows = ({0: t.export.Dim.DYNAMIC}, (None, None), {"bias": None})
    shapes = dict(zip(("x", "pair", "options"), rows, strict=True))
    path = tmp_path / "model.pt2"
    t.export.save(t.export.export(Several(), args, kwargs, dynamic_shapes=shapes), path)
    found = aot.verify(aot.compile(path), path)
    assert found.engine == "torch" and found.agrees
    assert [o.name for o in found.outputs] == ["sum", "rest.0", "rest.1", "x.next"]
    with pytest.raises(CompileError, match="model.pt2 has an input 'x' that the module has not"):
        open_torch(path)({})
    onnx = tmp_path / "model.onnx"
    onnx.write_bytes(b"\x08\x08")
    with pytest.raises(CompileError) as failure:
        aot.verify(aot.compile(path), onnx, against="torch")
    assert str(failure.value) == (
        f"torch cannot run {onnx}: it is an ONNX model, expected a PyTorch program"
    )


def test_a_file_with_a_buffer_is_compared_step_by_step(t: Any, tmp_path: Path) -> None:
    """torch keeps the buffer from call to call, as the compiled program does."""

    class Counts(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", t.ones(3))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total * x

    path = tmp_path / "model.pt2"
    t.export.save(t.export.export(Counts(), (t.randn(3),)), path)
    found = aot.verify(aot.compile(path), path, steps=4)
    assert found.engine == "torch" and found.agrees
    (total,) = found.outputs
    assert sum(total.histogram) == 4 * 3, "each element of each step"


def test_sums_of_open_dims_in_files(t: Any, tmp_path: Path) -> None:
    """torch writes bounds of a sum of dims, which it can't decompose when it has read them."""

    class Joins(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            z = t.cat([x, y])
            return z[: x.shape[0]] * 2 if z.shape[0] >= 4 else z[: x.shape[0]]

    args, dim = (t.randn(3), t.randn(4)), t.export.Dim.DYNAMIC
    shapes = {"x": {0: dim}, "y": {0: dim}}
    t.export.save(t.export.export(Joins(), args, dynamic_shapes=shapes), tmp_path / "m.pt2")
    program = aot.load(aot.compile(tmp_path / "m.pt2"))
    assert program(t.ones(7), t.ones(2)).tolist() == [2] * 7


def test_quantised_graphs_run_in_integers(t: Any) -> None:
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    q = t.ops.quantized_decomposed

    def around(x: Any, scale: float, zero: int) -> Any:
        bounds = (-128, 127, t.int8)
        made = q.quantize_per_tensor(x, scale, zero, *bounds)
        return q.dequantize_per_tensor(made, scale, zero, *bounds)

    class Quantised(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", t.randint(-127, 128, (8, 3, 3, 3), dtype=t.int8))
            self.register_buffer("scales", t.rand(8) * 0.01 + 0.001)
            self.register_buffer("zeros", t.zeros(8, dtype=t.int64))
            self.register_buffer("v", t.randint(-127, 128, (5, 8), dtype=t.int8))

        def forward(self, x: Any) -> Any:
            parameters = (self.scales, self.zeros, 0, -127, 127, t.int8)
            w = q.dequantize_per_channel(self.w, *parameters)
            y = t.relu(t.nn.functional.conv2d(around(x, 0.03, 3), w, padding=1))
            y = around(around(y, 0.05, -128).mean((2, 3)), 0.02, -128)
            v = q.dequantize_per_tensor(self.v, 0.01, 0, -127, 127, t.int8)
            return around(t.nn.functional.linear(y, v), 0.04, 5)

    module, x = Quantised(), t.randn(2, 3, 8, 8)
    compiled = aot.compile(module, (x,))
    work = compiled.stats["variants"][0]["multiply_adds"]
    assert list(work) == ["in integers"] and work["in integers"] > 0
    # one step of what the results are rounded to
    t.testing.assert_close(aot.load(compiled)(x), module(x), rtol=0, atol=0.0401)


def test_quantising_ops(t: Any) -> None:
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    q, i8 = t.ops.quantized_decomposed, t.int8
    scales, zeros = t.tensor([0.1, 0.03, 0.5]), t.tensor([0, 3, -5])
    functions = {
        "tensor": lambda x: q.quantize_per_tensor(x, 0.05, 3, -128, 127, i8),
        "narrow": lambda x: q.quantize_per_tensor(x, 0.05, 0, -7, 7, i8),
        "unsigned": lambda x: q.quantize_per_tensor(x, 0.05, 128, 0, 255, t.uint8),
        "words": lambda x: q.quantize_per_tensor(x, 0.0005, 0, -32768, 32767, t.int16),
        "channels": lambda x: q.quantize_per_channel(x, scales, zeros, 1, -127, 127, i8),
        "back": lambda x: q.dequantize_per_channel(
            q.quantize_per_channel(x, scales, zeros, 1, -128, 127, i8),
            scales, zeros, 1, -128, 127, i8,
        ),
        "chosen": lambda x: tuple(q.choose_qparams(x, -128, 127, 1e-7, i8)),
    }  # fmt: skip
    check(functions, [t.randn(4, 3, 2)])


def test_bfloat16_is_computed_in_float32(t: Any) -> None:
    module = t.nn.Sequential(t.nn.Linear(64, 96), t.nn.GELU(), t.nn.LayerNorm(96)).bfloat16()
    x = t.randn(3, 64).bfloat16()
    compiled = aot.compile(module, (x,))
    program = aot.load(compiled)
    found = program(x)
    assert found.dtype is t.bfloat16
    assert [str(v) for v in (*program.inputs, *program.outputs)] == [
        "input: bf16[3, 64]",
        "output: bf16[3, 96]",
    ]
    elements = sum(p.numel() for p in module.parameters())
    assert compiled.stats["rodata"]["bytes_kept"] < 2.2 * elements
    exact = module.float()(x.float())  # a step of bfloat16 is 2^-8; nothing is rounded in between
    t.testing.assert_close(found.float(), exact, rtol=2**-8, atol=1e-5)
    array = program(x.view(t.int16).numpy().view(DType.BF16.numpy))
    assert np.array_equal(array.astype(np.float32), found.float().numpy())
    assert aot.verify(module.bfloat16(), (x,), tolerance=0.03).agrees


def test_bfloat16_beside_numbers_and_other_types(t: Any) -> None:
    class Mixed(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", t.arange(8).bfloat16())

        def forward(self, x: Any, y: Any) -> Any:
            self.kept[2:6] += x[0, :4]
            x[1] *= 0.1
            z = t.where(y > 0.5, x, -t.inf).amax() + y * 1.001
            spectrum = t.fft.rfft(x.float()).abs().bfloat16()
            return x / 3, z, x.double(), t.full((2,), 0.1).bfloat16(), self.kept, spectrum

    module = Mixed()
    x, y = t.randn(2, 8).bfloat16(), t.rand(2, 8)
    program = loaded(module, (x, y))
    for _ in range(2):
        ours, theirs = x.clone(), x.clone()
        found, wanted = program(ours, y), module(theirs, y)
        assert t.equal(ours, theirs)
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype is other.dtype
            t.testing.assert_close(one, other, rtol=2**-7, atol=2**-7)
