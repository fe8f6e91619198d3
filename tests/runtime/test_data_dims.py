"""Programs whose extents data decide: the runtime against the interpreter, and what it says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.errors import RuntimeFailure, UnsupportedError
from aot.ir.dims import symbol
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from tests.support import decoder_models
from tests.support.runtime_api import CountingAllocator, Program
from tests.support.runtime_api import Module as Opened
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]


def positive(b: Builder, x: Value, name: str, most: Any) -> Value:
    """The positions of a vector's elements above 0: i64[name]."""
    (extent,) = x.type.dims
    above = b.op("less", b.constant(0.0), x)
    ones = b.op("cast", above, to="i64")
    before = b.op("scan", ones, axis=0, exclusive=True)
    outside = b.op("reshape", b.op("dim_values", dims=(extent,)), shape=())
    at = b.op("where", above, before, outside)
    zeros = b.op("fill", shape=(extent,), value=np.zeros((), np.int64))
    placed = b.op("scatter_elements", zeros, at, b.op("range", size=extent), axis=0)
    total = b.op("reduce_sum", ones, axes=(0,), keepdims=False)
    b.op("extent", total, dim=name, origin=f"count {name}")
    b.assume(f"min({name}, {most})", name, f"count {name}: its limit")
    return b.op("slice", placed, starts=(0,), stops=(symbol(name),), steps=(1,))


def chosen(extent: str, most: Any) -> Module:
    """Elements above 0, their positions and their sum."""
    b = Builder()
    x = b.input("x", f"f32[{extent}]")
    at = positive(b, x, "n0", most)
    y = b.op("gather", x, at, axis=0)
    b.output("at", at)
    b.output("twice", b.op("add", y, y))
    b.output("sum", b.op("reduce_sum", y, axes=(0,), keepdims=False))
    return b.module()


def values(count: int, share: float) -> Array:
    x = np.random.default_rng(count).random(count).astype(np.float32) + 0.1
    x[int(count * share) :] *= -1
    return np.random.default_rng(count + 1).permutation(x)


@pytest.mark.parametrize(("extent", "most"), [("40", 40), ("N", "N")])
def test_as_the_interpreter(extent: str, most: Any) -> None:
    module = chosen(extent, most)
    with aot.load(aot.compile(module)) as program:
        for share in (0, 0.3, 1, 0.7, 0):
            for count in (40,) if extent == "40" else (40, 1, 13):
                x = values(count, share)
                for found, wanted in zip(program.run([x]), run(module.main, [x]), strict=True):
                    assert found.shape == wanted.shape
                    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_the_module_says_of_outputs() -> None:
    with aot.load(aot.compile(chosen("40", 40))) as program:
        assert [(t.dims, t.bounds) for t in program.outputs] == [
            (("n0",), ((0, 40),)),
            (("n0",), ((0, 40),)),
            ((), ()),
        ]
        assert program.arena_bound_bytes is not None
    with aot.load(aot.compile(chosen("N", "N"))) as program:
        assert program.outputs[0].bounds == ((0, None),)


def test_outputs_have_the_largest_shape_until_a_run_and_its_shape_after() -> None:
    allocator = CountingAllocator()
    module = Opened(aot.compile(chosen("40", 40)).to_bytes(), allocator)
    program = Program(module)
    x = values(40, 0.25)
    program.set_input(0, x)
    program.prepare()
    assert program.output_shape(0) == (40,)
    program.run()
    assert program.output_shape(0) == (10,)
    program.prepare()
    assert program.output_shape(0) == (40,)


def test_a_run_within_bounds_allocates_nothing() -> None:
    allocator = CountingAllocator()
    module = Opened(aot.compile(chosen("40", 40)).to_bytes(), allocator)
    program = Program(module)
    program.set_input(0, values(40, 0))
    program.run()
    before = allocator.calls
    for share in (1, 0.5, 0, 0.9):
        program.set_input(0, values(40, share))
        program.run()
    assert allocator.calls == before


@pytest.mark.parametrize("name", decoder_models.MODELS)
def test_runs_of_decoders_allocate_nothing(name: str) -> None:
    """However long what a loop grows and returns is."""
    make, most = decoder_models.MODELS[name]
    model, allocator = make(), CountingAllocator()
    program = Program(Opened(aot.compile(model, max_extents=most).to_bytes(), allocator))
    lengths, calls = [], []
    for seed in range(8):
        for number, array in enumerate(decoder_models.feeds(model, seed).values()):
            program.set_input(number, array)
        program.run()
        lengths.append(program.output_shape(0)[-1])
        calls.append(allocator.calls)
    assert len(set(lengths)) > 1
    assert len(set(calls)) == 1


@pytest.mark.vulkan
@pytest.mark.parametrize("memory", ["unified", "staged"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_runs_on_a_gpu_allocate_nothing(
    driver: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a count that is read back, nor a loop or a list that ends where data say."""
    decoder = decoder_models.early_beam_search()
    shares = [[values(40, share)] for share in (0, 1, 0.5, 0.9, 0)]
    feeds = [list(decoder_models.feeds(decoder, seed).values()) for seed in range(8)]
    with running_on(driver, tmp_path):
        monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
        for model, inputs in ((chosen("40", 40), shares), (decoder, feeds)):
            allocator = CountingAllocator()
            data = aot.compile(model, targets=("vulkan-1.1",)).to_bytes()
            opened = Opened(data, allocator)
            program = Program(opened, device=2)
            lengths, calls = [], []
            for arrays in inputs:
                for number, array in enumerate(arrays):
                    program.set_input(number, array)
                program.run()
                lengths.append(program.output_shape(0)[-1])
                calls.append(allocator.calls)
            assert len(set(lengths)) > 2
            assert len(set(calls)) == 1
            program.close()
            opened.close()
            assert not allocator.live


def test_beyond_the_limit() -> None:
    with aot.load(aot.compile(chosen("40", 12))) as program:
        assert program.run([values(40, 0.3)])[0].shape == (12,)
        with pytest.raises(RuntimeFailure) as caught:
            program.run([values(40, 0.35)])
        assert str(caught.value) == (
            "count n0: its limit: n0 is 14, expected at most 12; "
            "n0 is 14, computed by node 'count n0'"
        )
        assert caught.value.status == "check"
        assert program.run([values(40, 0.3)])[0].shape == (12,)


def scalar_extent(text: str, *, is_counter: bool = False) -> Module:
    b = Builder()
    x, k = b.input("x", "f32[6]"), b.input("k", "i64[]")
    b.op("extent", k, dim="n0", origin="k")
    b.assume("min(n0, 6)", "n0", "k: its limit")
    if is_counter:
        b.output("y", b.op("range", size=text, origin="counter"))
    else:
        b.output("y", b.op("slice", x, starts=(0,), stops=(text,), steps=(1,)))
    return b.module()


def test_a_negative_extent() -> None:
    with aot.load(aot.compile(scalar_extent("n0"))) as program:
        x = np.arange(6, dtype=np.float32)
        assert program.run([x, np.array(2)])[0].tolist() == [0, 1]
        with pytest.raises(RuntimeFailure) as caught:
            program.run([x, np.array(-7)])
        assert str(caught.value) == "k: an extent that it computes is -7, expected 0 or more"


def test_what_follows_from_an_extent_may_not_be_negative() -> None:
    with aot.load(aot.compile(scalar_extent("n0 - 2", is_counter=True))) as program:
        x = np.arange(6, dtype=np.float32)
        assert program.run([x, np.array(5)])[0].shape == (3,)
        with pytest.raises(RuntimeFailure) as caught:
            program.run([x, np.array(1)])
        assert str(caught.value) == (
            "counter: there is nothing left of its input: n0 - 2 is -1; n0 is 1, "
            "computed by node 'k'"
        )


def test_an_extent_that_nothing_bounds() -> None:
    b = Builder()
    k = b.input("k", "i64[]")
    b.op("extent", k, dim="n0", origin="the node")
    b.output("y", b.op("range", size="n0"))
    module = b.module()
    with pytest.raises(UnsupportedError) as refused:
        aot.compile(module, max_default=0)
    assert refused.value.items == (
        "the node: it computes an extent that nothing limits; bound it with "
        "--max 'the node'=N (max_extents)",
    )
    for name in ("the node", "n0"):
        with aot.load(aot.compile(module, max_extents={name: 4})) as program:
            assert program.run([np.array(4)])[0].tolist() == [0, 1, 2, 3]
            with pytest.raises(RuntimeFailure) as caught:
                program.run([np.array(5)])
            assert str(caught.value) == (
                "an extent that node 'the node' computes: n0 is 5, expected at most 4; "
                "n0 is 5, computed by node 'the node'"
            )
    with pytest.raises(aot.CompileError) as unknown:
        aot.compile(module, max_extents={"k": 4})
    assert str(unknown.value) == ("no node 'k' computes an extent, those that do are 'the node'")


def test_a_bound_that_memory_cannot_hold() -> None:
    b = Builder()
    k = b.input("k", "i64[]")
    b.op("extent", k, dim="n0", origin="the node")
    b.output("y", b.op("range", size="n0"))
    module = b.module()
    for most in (1 << 62, 1 << 45):
        with pytest.raises(UnsupportedError) as refused:
            aot.compile(module, max_extents={"the node": most})
        assert refused.value.items == (
            "the node: it computes an extent that may be so large that i64[n0] has "
            f"{8 * most} bytes, expected at most {1 << 47}; bound it by less",
        )
    with aot.load(aot.compile(module, max_extents={"the node": 1 << 44})) as program:
        with pytest.raises(RuntimeFailure) as caught:
            program.run([np.array(3)])
        assert str(caught.value) == "output 'y': no memory for int64[17592186044416]"
        assert caught.value.status == "memory"


def test_extents_in_branches_and_loops() -> None:
    """A symbol of a block has another value in each of its runs."""
    b = Builder()
    x, c = b.input("x", "f32[5]"), b.input("c", "bool[]")

    def body(number: Value, total: Value) -> list[Value]:
        b.op("extent", number, dim="n0", origin="number")
        b.assume("min(n0, 5)", "n0", "limit")
        part = b.op("slice", x, starts=(0,), stops=("n0",), steps=(1,))
        twice = b.op("concat", part, b.op("neg", part), part, axis=0)
        more = b.op("reduce_sum", b.op("exp", twice), axes=(0,), keepdims=False)
        return [b.constant(True), b.op("add", total, more)]

    def loop() -> Value:
        zero = b.op("fill", shape=(), value=np.zeros((), np.float32))
        block = b.block(["i64[]", "f32[]"], body)
        found: Value = b.op("loop", None, None, zero, blocks=[block], trips=6)
        return found

    y = b.op("if", c, blocks=[b.block([], loop), b.block([], lambda: b.constant(1.0))])
    b.output("y", y)
    module = b.module()
    x_array = np.arange(5, dtype=np.float32) / 5
    with aot.load(aot.compile(module)) as program:
        for choice in (True, False):
            inputs = [x_array, np.array(choice)]
            (found,), (wanted,) = program.run(inputs), run(module.main, inputs)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


# Random graphs.


class Graph:
    """A random function of vectors whose extents data decide."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.b = Builder()
        self.count = 0
        self.x = self.b.input("x", "f32[23]")
        self.k = self.b.input("k", "i64[]")
        self.vectors: list[Value] = [self.x]
        for _ in range(self.random.randint(3, 9)):
            self.grow()
        for number, value in enumerate(self.vectors[-3:]):
            self.b.output(f"y{number}", value)
            total = self.b.op("reduce_sum", value, axes=(0,), keepdims=False)
            self.b.output(f"s{number}", total)

    def most(self) -> int:
        return 400

    def grow(self) -> None:
        b, x = self.b, self.random.choice(self.vectors)
        name = f"n{self.count}"
        self.count += 1
        match self.random.randint(0, 6):
            case 0 | 1:
                shifted = b.op("sub", x, b.constant(self.random.choice([-0.5, 0.0, 0.5])))
                at = positive(b, shifted, name, self.most())
                made = b.op("gather", x, at, axis=0)
            case 2:
                other = self.random.choice(self.vectors)
                made = b.op("concat", x, other, axis=0)
            case 3:
                b.op("extent", self.k, dim=name, origin="k")
                b.assume(f"min({name}, 9)", name, "k: its limit")
                wide = b.op("broadcast_to", b.constant(0.25), shape=(name,))
                made = b.op("concat", wide, x, axis=0)
            case 4:
                made = b.op("top_k", x, axis=0, k=x.type.dims[0], largest=True)[0]
            case 5:
                made = b.op("scan", x, axis=0)
                made = b.op("tanh", made)
            case _:
                made = b.op("add", b.op("tanh", x), b.op("neg", x))
        self.vectors.append(made)

    def inputs(self, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal(23) - rng.choice([-3, 0, 3])).astype(np.float32)
        return [x, np.array(rng.integers(0, 9))]


def check_graph(seed: int, device: str, targets: tuple[str, ...]) -> None:
    graph = Graph(seed)
    module = graph.b.module()
    with aot.load(aot.compile(module, targets=targets), device=device) as program:
        for number in range(3):
            inputs = graph.inputs(number)
            for found, wanted in zip(program.run(inputs), run(module.main, inputs), strict=True):
                assert found.shape == wanted.shape, seed
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4, err_msg=str(seed))


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOT_VERIFY", "each")
    check_graph(seed, "cpu", ("host",))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8, 80))
def test_more_random_graphs(seed: int) -> None:
    check_graph(seed, "cpu", ("host",))


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_random_graphs_on_a_gpu(driver: str, tmp_path: Path) -> None:
    """What lanes would be long at runs on the host, or all does where there is none."""
    with running_on(driver, tmp_path):
        for seed in (1, 4):
            check_graph(seed, "vulkan", ("vulkan-1.1", "host"))
        check_graph(2, "vulkan", ("vulkan-1.1",))
