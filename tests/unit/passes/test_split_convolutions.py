"""Convolutions as parts of Winograd's algorithm on a GPU: which, for how many bytes, and that they
compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.frontends.text import import_text
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.layout.choose_algorithms import CHOOSE_ALGORITHMS, GROWTH_BYTES
from aot.switches import Switches
from aot.target import selection as targets
from aot.target.model import Target

LAST = "{order=0:2:3:1}"
CONV = """
  %w{n} = constant {{value = f32[{filters}, {channels}, 3, 3] <splat 0.03125>}}
      : f32[{filters}, {channels}, 3, 3]
  %{n} = conv(%x{n}, %w{n}{bias}) {{strides = [{stride}, {stride}], dilations = [1, 1],
      pads = [{pads}]}} : f32[{images}, {filters}, {result}]{last}
"""


def conv(
    size: tuple[int, int] = (28, 28),
    channels: int = 128,
    filters: int = 128,
    *,
    images: int = 1,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    stride: int = 1,
    has_bias: bool = False,
    last: str = LAST,
    n: int = 0,
) -> tuple[str, str, str]:
    """Inputs, ops and the result of one."""
    result = [(size[d] + pads[d] + pads[2 + d] - 3) // stride + 1 for d in range(2)]
    inputs = f"%x{n}: f32[{images}, {channels}, {size[0]}, {size[1]}]{last}"
    if has_bias:
        inputs += f", %b{n}: f32[{filters}]"
    ops = CONV.format(
        n=n,
        filters=filters,
        channels=channels,
        bias=f", %b{n}" if has_bias else "",
        stride=stride,
        pads=", ".join(map(str, pads)),
        images=images,
        result=", ".join(map(str, result)),
        last=last,
    )
    return inputs, ops, f"%{n}"


def module_of(*parts: tuple[str, str, str]) -> Module:
    inputs, ops, results = zip(*parts, strict=True)
    names = ", ".join(f'"r{n}"' for n in range(len(parts)))
    return import_text(
        f"func @main({', '.join(inputs)}) -> ({names}) {{{''.join(ops)}"
        f"  return({', '.join(results)})\n}}\n"
    )


def slow_at_products() -> Target:
    """A GPU on which whatever saves products pays."""
    target = targets.load("vulkan-1.1")
    assert target.gpu is not None
    return replace(
        target, gpu=replace(target.gpu, products_per_us=1, bytes_per_us=1000, launch_ns=1)
    )


def chosen(
    module: Module, target: Target, *, optimize: str = "speed", storage: str = "fp32"
) -> list[str]:
    """What convolutions became: the outputs along a side of their tiles, or `conv`."""
    options = CompileOptions(optimize=optimize, storage=storage)
    context = PassContext(options, target, Switches(is_verifying_each=True))
    run_passes(module, [CHOOSE_ALGORITHMS], context)
    made = [op for op in module.main.block if op.name in ("conv", "winograd_outputs")]
    return [str(op.attrs.get("outputs", "conv")) for op in made]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (conv(), "2"),
        (conv((14, 14), 256, 256), "2"),
        (conv((7, 7), 512, 512), "2"),
        (conv((112, 112), 64, 64), "4"),
        (conv((28, 28), 128, 128, images=8), "4"),
        (conv((14, 14)), "conv"),  # over before three dispatches could be
        (conv((56, 56), 16, 16), "conv"),
        (conv(stride=2), "conv"),
        (conv(last=""), "conv"),  # channels are planes
    ],
)
def test_those_that_take_long_are_split(part: tuple[str, str, str], expected: str) -> None:
    assert chosen(module_of(part), targets.load("nvidia")) == [expected]


@pytest.mark.parametrize("name", ["vulkan-1.1", "vulkan-1.3", "mali-valhall", "adreno"])
def test_devices_of_unknown_speed_do_no_such_thing(name: str) -> None:
    assert chosen(module_of(conv((56, 56), 256, 256)), targets.load(name)) == ["conv"]


@pytest.mark.parametrize("optimize", ["balanced", "size"])
def test_no_file_grows_unless_asked(optimize: str) -> None:
    module = module_of(conv())
    assert chosen(module, targets.load("nvidia"), optimize=optimize) == ["conv"]


def test_files_grow_by_a_bound_and_what_gains_most_for_its_bytes_comes_first() -> None:
    each = 7 * 512 * 512 * 4
    count = GROWTH_BYTES["speed"] // each
    parts = [conv((7, 7), 512, 512, n=n) for n in range(count + 1)]
    found = chosen(module_of(*parts, conv(n=count + 1)), targets.load("nvidia"))
    assert found.count("conv") == 1
    assert found[-1] in ("2", "4")


def test_filters_that_something_else_has_stay() -> None:
    inputs, ops, _ = conv()
    module = import_text(f'func @main({inputs}) -> ("r0", "r1") {{{ops}  return(%0, %w0)\n}}\n')
    assert chosen(module, targets.load("nvidia")) == ["conv"]


def test_filters_stored_in_16_bits_are_of_the_tiles_that_round_less() -> None:
    target = targets.load("nvidia")
    assert chosen(module_of(conv((112, 112), 128, 128)), target) == ["4"]
    assert chosen(module_of(conv((112, 112), 128, 128)), target, storage="fp16") == ["2"]


def test_matrices_of_16_bits_are_left_alone() -> None:
    target = targets.load("nvidia-matrix")
    assert chosen(module_of(conv((56, 56), 256, 256)), target, storage="fp16") == ["conv"]
    assert chosen(module_of(conv((56, 56), 256, 256)), target) == ["4"]


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("size", "pads"),
    [
        ((8, 8), (1, 1, 1, 1)),
        ((5, 9), (1, 1, 1, 1)),
        ((4, 5), (0, 0, 0, 0)),
        ((7, 4), (0, 2, 1, 0)),
        ((1, 2), (2, 1, 2, 1)),
    ],
)
def test_parts_compute_what_the_convolution_does(
    size: tuple[int, int], pads: tuple[int, int, int, int], has_bias: bool, storage: str
) -> None:
    before, after = (
        module_of(conv(size, 8, 12, images=2, pads=pads, has_bias=has_bias)) for _ in range(2)
    )
    assert chosen(after, slow_at_products(), storage=storage) in (["2"], ["4"])
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal(v.type.shape).astype(np.float32) for v in before.main.inputs]
    (wanted,), (found,) = run(before.main, arrays), run(after.main, arrays)
    np.testing.assert_allclose(found, wanted, atol=3e-6 * np.abs(wanted).max())
