"""What a GPU can't run, run by the CPU in the same program: on both drivers, memory shared and not.

Models with such parts against ONNX Runtime or the interpreter; random functions of which any
executable may be the host's; what is said of it; which copies there are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.builder import Builder
from aot.driver.cpu_fallback import CpuFallback, hosts_of
from aot.errors import CompileError, UnsupportedError
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.ir.interpreter.memory import States
from aot.link.image import Arch, Device, VariantImage
from aot.link.program import Instruction, decode
from aot.link.reader import read_module
from aot.runtime import loader
from aot.target.selection import load as load_target
from aot.tools.agreement import compare
from aot.tools.merging import merge
from tests.support import control_functions as control
from tests.support import models, runtime_api
from tests.support.runtime_modules import with_structure
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

Array = np.ndarray[Any, Any]
TARGETS = ("vulkan-1.1", "host")
MEMORY = ("unified", "staged")
# Where memory is does not depend on the driver: each has one of both, all with all are a sweep.
PLACES = [
    pytest.param((d, m), marks=[] if DRIVERS.index(d) % 2 == MEMORY.index(m) else pytest.mark.sweep)
    for d in DRIVERS
    for m in MEMORY
]
F32, F64, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
rng = np.random.default_rng(3)
WEIGHTS = rng.standard_normal((16, 32)).astype(np.float32)


@pytest.fixture(params=PLACES, ids="-".join)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A driver and a kind of memory; the validation layer listens."""
    driver, memory = request.param
    monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
    with running_on(driver, tmp_path):
        yield


def model(
    nodes: list[Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any], **constants: Array
) -> bytes:
    def infos(given: Mapping[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in given.items()]

    graph = helper.make_graph(
        nodes,
        "main",
        infos(inputs),
        infos(outputs),
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def check(source: bytes, given: list[dict[str, Array]], **options: Any) -> aot.CompiledModule:
    """Runs of one program against ONNX Runtime's."""
    module = aot.compile(source, **{"targets": TARGETS, **options})
    session = onnxruntime.InferenceSession(source)
    with aot.load(module.to_bytes(), "vulkan") as program:
        for feeds in given:
            wanted = session.run(None, feeds)
            found = program(feeds)
            for info, array in zip(session.get_outputs(), wanted, strict=True):
                np.testing.assert_allclose(
                    found[info.name], array, rtol=1e-5, atol=1e-5 * abs(array).max(initial=1)
                )
    return module


def cpu_fallback(module: aot.CompiledModule) -> dict[str, Any]:
    found: dict[str, Any] = module.stats["variants"][0]["cpu_fallback"]
    return found


def variant_of(module: aot.CompiledModule, number: int = 0) -> VariantImage:
    return read_module(module.to_bytes()).variants[number]


def instructions(variant: VariantImage) -> list[Instruction]:
    (entry,) = variant.entry_points
    return list(decode(entry.program.code))


def copies(variant: VariantImage) -> list[str]:
    """Dispatches by who runs them, and what goes between, in order."""
    names = {"TO_HOST": "to host", "TO_DEVICE": "to device", "COPY": "copy"}
    found = []
    for instruction in instructions(variant):
        if instruction.name == "DISPATCH":
            executable = variant.executables[instruction.operands[0]]
            found.append("host" if variant.is_cpu_fallback(executable) else "device")
        elif instruction.name in names:
            found.append(names[instruction.name])
    return found


# f64 in the middle, at open shapes

DOUBLE_NODES = [
    node("MatMul", "x w", "a"),
    node("Relu", "a", "b"),
    node("Cast", "b", "c", to=F64),
    node("Add", "c big", "d"),
    node("ReduceMean", "d", "e", keepdims=1),
    node("Sub", "d e", "f"),
    node("Cast", "f", "g", to=F32),
    node("Add", "g a", "y"),
]
DOUBLES = model(
    DOUBLE_NODES,
    {"x": (F32, ["n", 16])},
    {"y": (F32, ["n", 32])},
    w=WEIGHTS,
    big=np.array(1e9),  # in f32, nothing of what is added would be left
)


def rows(count: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(count).standard_normal((count, 16)).astype(np.float32)}


def test_doubles_in_the_middle(place: None) -> None:
    module = check(DOUBLES, [rows(5), rows(9), rows(5), rows(200)])
    hosted = cpu_fallback(module)
    assert hosted["dispatches"] == len(hosted["because"]) > 0
    assert {b["why"] for b in hosted["because"]} == {"f64, which vulkan-1.1 does not compute"}
    assert hosted["copies"] == {"to_host": 1, "to_device": 1}


def test_doubles_as_inputs_and_outputs(place: None) -> None:
    source = model(
        [node("Mul", "x x", "a"), node("Cast", "a", "b", to=F32), node("Relu", "b", "y")],
        {"x": (F64, ["n", 4])},
        {"a": (F64, ["n", 4]), "y": (F32, ["n", 4])},
    )
    given = [{"x": np.random.default_rng(n).standard_normal((n, 4))} for n in (3, 8, 3)]
    check(source, given)


def test_an_empty_extent(place: None) -> None:
    check(DOUBLES, [rows(0), rows(4), rows(0)])


# lines that are too long for one lane

SORTED = model(
    [
        node("Mul", "x x", "a"),
        node("TopK", "a k", "v i", largest=0),
        node("Gather", "x i", "g", axis=0),
        node("Add", "g v", "y"),
    ],
    {"x": (F32, [9000])},
    {"y": (F32, [7000]), "i": (I64, [7000])},
    k=np.array([7000]),
)


def test_a_long_sort(place: None) -> None:
    x = np.random.default_rng(0).standard_normal(9000).astype(np.float32)
    module = check(SORTED, [{"x": x}, {"x": x[::-1].copy()}])
    (because,) = cpu_fallback(module)["because"]
    assert because["op"] == "top_k"
    assert because["why"].endswith("iterations, and may through 65,535")


def test_a_short_sort_is_the_gpus() -> None:
    source = SORTED_SHORT
    assert "cpu_fallback" not in aot.compile(source, targets=TARGETS).stats["variants"][0]


SORTED_SHORT = model(
    [node("TopK", "x k", "v i")],
    {"x": (F32, [900])},
    {"v": (F32, [5]), "i": (I64, [5])},
    k=np.array([5]),
)


# integers that don't fit

HASH = model(
    [
        node("Abs", "x", "p"),
        node("Mul", "p m", "a"),
        node("Add", "a c", "b"),
        node("Mod", "b q", "d"),
        node("Cast", "d", "e", to=F32),
        node("Mul", "e s", "y"),
        node("ReduceMax", "b", "top", keepdims=0),
    ],
    {"x": (I64, [64])},
    {"y": (F32, [64]), "d": (I64, [64]), "top": (I64, [])},
    m=np.array(2862933555777),
    c=np.array(3037000493),
    q=np.array(1000003),
    s=np.array(0.5, np.float32),
)


def test_integers_that_do_not_fit(place: None) -> None:
    module = check(HASH, [{"x": np.arange(64) - 20}])
    assert "i64, which vulkan-1.1 does not compute" in {
        b["why"] for b in cpu_fallback(module)["because"]
    }


def test_integers_that_do_not_fit_through_a_loop(place: None) -> None:
    body = helper.make_graph(
        [
            node("Identity", "go", "on"),
            node("Mul", "s m", "t"),
            node("Add", "t c", "u"),
            node("Mod", "u q", "z"),
            node("Cast", "z", "f", to=F32),
            node("Mul", "f half", "r"),
        ],
        "body",
        [
            helper.make_tensor_value_info("n", I64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", I64, [8]),
            helper.make_tensor_value_info("before", F32, [8]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("z", I64, [8]),
            helper.make_tensor_value_info("r", F32, [8]),
        ],
    )
    source = model(
        [helper.make_node("Loop", ["trips", "", "x", "zeros"], ["last", "seen"], body=body)],
        {"x": (I64, [8]), "trips": (I64, [])},
        {"last": (I64, [8]), "seen": (F32, [8])},
        zeros=np.zeros(8, np.float32),
        half=np.array(0.5, np.float32),
        m=np.array(6364136223),
        c=np.array(144269504088),
        q=np.array((1 << 31) + 11),
    )
    for trips in (0, 1, 5):
        check(source, [{"x": np.arange(8), "trips": np.array(trips)}])


# state and control flow


def stateful() -> Module:
    """A running mean in f64, kept between runs and refined in a loop; a branch on it."""
    b = Builder()
    x, n = b.input("x", "f32[12]"), b.input("n", "i64[]")
    kept = b.op("state", variable="mean", dtype="f64", shape=[12])
    near = b.op("cast", b.op("tanh", x), to="f64")

    def body(index: Any, mean: Any) -> Any:
        step = b.op("mul", b.op("sub", near, mean), b.constant(0.125, "f64"))
        made = b.op("add", mean, step)
        return [b.constant(True), made, b.op("exp", b.op("cast", made, to="f32"))]

    block = b.block(["i64[]", "f64[12]"], body)
    first = b.op("abs", kept)  # a state's own memory can't be handed on
    mean, shown = b.op("loop", n, None, first, trips=4, blocks=[block])
    b.op("assign", kept, b.op("abs", b.op("mul", mean, b.constant(1.0000000001, "f64"))))
    total = b.op("reduce_sum", mean, axes=[0], keepdims=False)
    is_more = b.op("less", b.constant(0.25, "f64"), total)
    blocks = [
        b.block([], lambda: [b.op("cast", b.op("mul", mean, mean), to="f32")]),
        b.block([], lambda: [b.op("neg", x)]),
    ]
    b.output("branch", b.op("if", is_more, blocks=blocks))
    b.output("shown", b.op("reduce_sum", shown, axes=[0], keepdims=False))
    b.output("mean", mean)
    return b.module()


def test_state_loops_and_branches(place: None) -> None:
    module, states = stateful(), States()
    r = np.random.default_rng(5)
    with aot.load(aot.compile(module, targets=TARGETS).to_bytes(), "vulkan") as program:
        for number in range(6):
            if number == 4:
                program.reset()
                states = States()
            given = [r.standard_normal(12).astype(np.float32), np.array(number % 5)]
            wanted = run(module.main, given, module=module, states=states)
            for found, array in zip(program.run(given), wanted, strict=True):
                np.testing.assert_allclose(found, array, rtol=1e-6, atol=1e-6)


# any executable may be the host's


@contextmanager
def some_on_cpu(seed: int, share: float) -> Iterator[None]:
    """Executables are the host's by chance while it lasts."""
    real = CpuFallback.why_by_type
    r = random.Random(seed)

    def why(self: CpuFallback, function: Function) -> str:
        found = real(self, function)
        is_chosen = self.host is not None and r.random() < share
        return found or ("it is chosen" if is_chosen else "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuFallback, "why_by_type", why)
        yield


def check_random(seed: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    extent = 16 if seed % 3 else "N"
    module = control.made(seed, extent, "concat")
    with some_on_cpu(seed, share):
        data = aot.compile(module, targets=TARGETS).to_bytes()
    programs: list[loader.Program] = []
    try:
        for memory in MEMORY:
            monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
            programs.append(aot.load(data, "vulkan"))
        control.compare(module, seed, extent, programs)
    finally:
        for program in programs:
            program.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_on(DRIVERS[seed % len(DRIVERS)], tmp_path):
        check_random(seed, (0.5, 0.3, 1.0)[seed % 3], monkeypatch)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(12, 212, 20))
def test_many_random_programs(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_on(DRIVERS[first // 20 % len(DRIVERS)], tmp_path):
        for seed in range(first, first + 20):
            check_random(seed, (0.5, 0.3, 1.0)[seed % 3], monkeypatch)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_layers_run_as_their_host_would_have_them(place: None, share: float) -> None:
    """Merged layers have the GPU's tiles, which may be too large for a CPU's stack."""
    r, sizes = np.random.default_rng(2), (24, 200, 300, 96, 40)
    layers = list(pairwise(sizes))
    weights = {
        f"w{n}": (r.standard_normal(shape) / 8).astype(np.float32) for n, shape in enumerate(layers)
    }
    nodes = [node("MatMul", f"{'x' if n == 0 else f'r{n - 1}'} w{n}", f"m{n}") for n in range(4)]
    nodes += [node("Relu", f"m{n}", f"r{n}") for n in range(3)]
    nodes = sorted(nodes, key=lambda n: (n.output[0][1:], n.output[0][0]))
    source = model(
        [*nodes, node("Softmax", "m3", "y")],
        {"x": (F32, ["n", 24])},
        {"y": (F32, ["n", 40])},
        **weights,
    )
    given = [{"x": r.standard_normal((n, 24)).astype(np.float32)} for n in (3, 70, 3)]
    with some_on_cpu(4, share):
        module = check(source, given, optimize="size", targets=("lavapipe", "host"))
    assert cpu_fallback(module)["dispatches"] > 1


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["silero_vad_16k", "minilm_l3", "ppocr_cls"])
def test_models_of_which_some_layers_are_the_hosts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recurrence, attention and convolutions, at one shape after the other."""
    with some_on_cpu(5, 0.5):
        module = aot.compile(models.model_path(name), targets=TARGETS)
    assert cpu_fallback(module)["dispatches"] > 1
    for memory in MEMORY:
        monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
        with running_on("lavapipe", tmp_path), aot.load(module.to_bytes(), "vulkan") as program:
            for number in ("1", "2", "1"):
                outputs = program(models.feeds(name, number))
                for output, wanted in models.reference(name, number).items():
                    assert compare(output, outputs[output], wanted).error <= 1e-4


# which copies there are


def test_nothing_is_copied_that_the_other_has() -> None:
    """Neighbours on the host hand on what they make; a value that both read goes once."""
    b = Builder()
    x = b.input("x", "f32[8192]")
    a = b.op("tanh", x)
    total = b.op("reduce_sum", b.op("cast", a, to="f64"), axes=[0], keepdims=True)
    scaled = b.op("div", b.op("cast", a, to="f64"), total)
    b.output("y", b.op("exp", b.op("cast", scaled, to="f32")))
    b.output("z", b.op("neg", a))
    variant = variant_of(aot.compile(b.module(), targets=TARGETS))
    found = copies(variant)
    assert found.count("to host") == found.count("to device") == 1
    first, last = found.index("to host"), found.index("to device")
    assert set(found[first + 1 : last]) == {"host"}


def test_inputs_are_not_copied_to_the_host() -> None:
    b = Builder()
    x = b.input("x", "f64[256]")
    b.output("y", b.op("mul", x, x))
    assert copies(variant_of(aot.compile(b.module(), targets=TARGETS))) == ["host", "to device"]


# what is made, and said


def test_a_variant_for_each_architecture() -> None:
    targets = ["vulkan-1.1", "x86-64-v3", "x86-64-v2", "aarch64-generic"]
    module = aot.compile(DOUBLES, targets=targets)
    variants = read_module(module.to_bytes()).variants
    found = [(v.target, None if v.host is None else v.host.target) for v in variants]
    assert found == [
        ("vulkan-1.1", "x86-64-v2"),
        ("vulkan-1.1", "aarch64-generic"),
        ("x86-64-v3", None),
        ("x86-64-v2", None),
        ("aarch64-generic", None),
    ]
    host = variants[1].host
    assert host is not None
    assert (host.arch, host.word_bytes) == (Arch.AARCH64, 8)
    assert [v.device for v in variants[:3]] == [Device.VULKAN, Device.VULKAN, Device.CPU]


def test_hosts_ask_as_little_as_the_cpus_that_are_given() -> None:
    wanted = [load_target(n) for n in ("x86-64-v4", "x86-64-v2", "x86-64-v3", "vulkan-1.1")]
    assert [t.name for t in hosts_of(wanted)] == ["x86-64-v2"]
    assert hosts_of([load_target("vulkan-1.1")]) == ()


def test_without_a_cpu_the_error_says_to_add_one() -> None:
    advice = ", or add a --target for the CPU, to run what is not for a GPU:"
    source = model([node("Mul", "x x", "y")], {"x": (F64, [4])}, {"y": (F64, [4])})
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(source, targets=["vulkan-1.1"])
    assert str(caught.value).splitlines() == [
        f"target vulkan-1.1 has no f64; export the model in float32{advice}",
        "  input 'x' is f64[4]",
        "  output 'y' is f64[4]",
    ]
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(HASH, targets=["vulkan-1.1"])
    assert str(caught.value).splitlines()[0].endswith(f"cast them to int32 in the model{advice}")
    assert str(caught.value).splitlines()[1:] == ["  reduce_max (node 'ReduceMax:top')"]


def test_a_limit_that_is_broken_sends_a_kernel_to_the_host(
    place: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aot.backends.vulkan import backend
    from aot.backends.vulkan.limits import LimitError

    real, source = backend.compile_kernel, SORTED_SHORT

    def compile_kernel(kernel: Any, *given: Any) -> Any:
        if "position" in str([s.name for s in kernel.scratch]):
            raise LimitError(kernel.name, "more than there is")
        return real(kernel, *given)

    monkeypatch.setattr(backend, "compile_kernel", compile_kernel)
    x = np.random.default_rng(0).standard_normal(900).astype(np.float32)
    (because,) = cpu_fallback(check(source, [{"x": x}]))["because"]
    assert (because["op"], because["why"]) == ("top_k", "more than there is")
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(source, targets=["vulkan-1.1"])
    assert str(caught.value).splitlines() == [
        "target vulkan-1.1 can't run these; add a --target for the CPU, which then runs them in "
        "the same program:",
        "  top_k (node 'TopK:v'): more than there is",
    ]


def test_another_machines_host_is_a_reason_not_to_run(place: None) -> None:
    module = aot.compile(DOUBLES, targets=["vulkan-1.1", "aarch64-generic"])
    with pytest.raises(aot.RuntimeFailure) as caught:
        aot.load(module.to_bytes(), "vulkan")
    assert "vulkan-1.1: for what the CPU runs of it: made for aarch64" in str(caught.value)


def test_what_inspect_and_the_summary_say(tmp_path: Path) -> None:
    from aot.cli.text import compile_summary
    from aot.tools.inspection import format_inspection, inspect

    module = aot.compile(DOUBLES, targets=TARGETS)
    hosted = cpu_fallback(module)
    text = compile_summary(module.stats, "m.aotm", 1, 0.0)
    count = hosted["dispatches"]
    assert f"{count} dispatches run on the CPU, {hosted['target']}, with 1 copies to it" in text
    assert "      f64, which vulkan-1.1 does not compute: " in text
    facts = inspect(module.to_bytes())
    variant = facts["variants"][0]
    assert variant["host"]["target"] == hosted["target"]
    assert variant["entry_points"][0]["cpu_fallback_dispatches"] == count
    whys = {e["why_on_cpu"] for e in variant["executables"] if "why_on_cpu" in e}
    assert whys == {"f64, which vulkan-1.1 does not compute"}
    shown = format_inspection(facts)
    assert f"{count} of the dispatches on the host, with 1 copies to it and 1 back" in shown
    assert " on the host: f64, which vulkan-1.1 does not compute" in shown


def test_merged_modules_run(place: None, tmp_path: Path) -> None:
    paths = []
    for name, source in (("a", DOUBLES), ("b", HASH)):
        paths.append(tmp_path / f"{name}.aotm")
        aot.compile(source, targets=TARGETS, entry_name=name).save(paths[-1])
    merged = merge([str(p) for p in paths])
    given = {"a": rows(5), "b": {"x": np.arange(64)}}
    for name, source in (("a", DOUBLES), ("b", HASH)):
        session = onnxruntime.InferenceSession(source)
        names = [o.name for o in session.get_outputs()]
        with aot.load(merged.to_bytes(), "vulkan", entry=name) as program:
            found = program(given[name])
        for output, array in zip(names, session.run(names, given[name]), strict=True):
            np.testing.assert_allclose(found[output], array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids="-".join)
def test_a_module_that_needs_no_host_merges_with_one_that_does(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """Its variant is part of each that the other has, one for each CPU."""
    plain = model([node("Tanh", "x", "y")], {"x": (F32, ["N"])}, {"y": (F32, ["N"])})
    sources = {"a": DOUBLES, "b": plain}
    paths = {}
    for name, source in sources.items():
        paths[name] = tmp_path / f"{name}.aotm"
        module = aot.compile(source, targets=(*TARGETS, "aarch64-generic"), entry_name=name)
        module.save(paths[name])
    merged = merge([str(paths[name]) for name in order])
    host = load_target("host").name
    assert [v.label for v in merged.image.variants] == [
        *(f"vulkan-1.1 with {cpu}" for cpu in (host, "aarch64-generic")), host, "aarch64-generic",
    ]  # fmt: skip
    assert [e.name for e in merged.image.variants[0].entry_points] == list(order)
    given = {"a": rows(5), "b": {"x": np.arange(64, dtype=np.float32)}}
    with running_on("lavapipe", tmp_path):
        for name, source in sources.items():
            (wanted,) = onnxruntime.InferenceSession(source).run(["y"], given[name])
            with aot.load(merged.to_bytes(), "vulkan", entry=name) as program:
                np.testing.assert_allclose(program(given[name])["y"], wanted, rtol=1e-5, atol=1e-5)


def test_threads_share_what_the_host_runs(place: None) -> None:
    x = rows(4000)
    data = aot.compile(DOUBLES, targets=TARGETS).to_bytes()
    with aot.load(data, "vulkan") as one, aot.load(data, "vulkan", threads=2) as two:
        assert two.threads == 2
        for _ in range(3):
            np.testing.assert_array_equal(one(x)["y"], two(x)["y"])


def _host(root: Any) -> Any:
    return root.variants[0].host


def _host_code(root: Any) -> Any:
    return next(e for e in root.variants[0].executables if e.spirv is None)


MALFORMED = {
    "words": (lambda r: setattr(_host(r), "wordBytes", 5), "Host.word_bytes must be 4 or 8"),
    "arch": (lambda r: setattr(_host(r), "arch", 99), "an enum has a value"),
    "cpu": (lambda r: setattr(r.variants[0], "device", 0), "Variant.arch must be that of a CPU"),
    "place": (
        lambda r: setattr(_host_code(r), "codeOffset", 1 << 40),
        "Executable.code_offset must lie inside the code image",
    ),
    "params": (lambda r: setattr(_host_code(r), "paramWords", 1), "the parameter count is not"),
    "none": (
        lambda r: setattr(r.variants[0], "host", None),
        "Variant.code must be empty in a variant",
    ),
    "name": (lambda r: setattr(_host(r), "target", None), "a required field is missing"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_hosts_are_refused(name: str, tmp_path: Path) -> None:
    change, message = MALFORMED[name]
    data = with_structure(aot.compile(DOUBLES, targets=TARGETS).to_bytes(), change)
    with running_on(DRIVERS[0], tmp_path), pytest.raises(runtime_api.Failed) as caught:
        runtime_api.Module(data)
    assert caught.value.status == "malformed"
    assert message in caught.value.message
    with pytest.raises(CompileError):
        read_module(data)


def test_a_cpu_s_program_hands_nothing_over(tmp_path: Path) -> None:
    """The instructions are for programs of two devices."""
    data = aot.compile(DOUBLES, targets=TARGETS).to_bytes()

    def change(root: Any) -> None:
        gpu, cpu = (v.entryPoints[0].program for v in root.variants)
        cpu.code, cpu.blocks, cpu.executeBlock = gpu.code, gpu.blocks, gpu.executeBlock
        cpu.registerCount = gpu.registerCount
        root.variants[1].executables = deepcopy(root.variants[0].executables)
        for executable in root.variants[1].executables:
            executable.spirv = executable.texelSpirv = None
        root.variants[1].code = root.variants[0].code
        cpu.buffers, cpu.scratchOffset = gpu.buffers, -1

    with running_on(DRIVERS[0], tmp_path), pytest.raises(runtime_api.Failed) as caught:
        runtime_api.Module(with_structure(data, change))
    assert "the instruction is not for a CPU" in caught.value.message
