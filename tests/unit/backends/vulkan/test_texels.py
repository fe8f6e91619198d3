"""Class buffers that shaders read as texels: what they show, and what a device must allow.

The shader is written by hand, one instruction after the other: what reads so in compiled modules
is tested where those are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.backends.vulkan.assembler import Assembler as ShaderAssembler
from aot.backends.vulkan.assembler import FunctionBody
from aot.backends.vulkan.shader import texel_binding
from aot.backends.vulkan.spirv import BuiltIn, Capability, Op, StorageClass
from aot.errors import RuntimeFailure
from aot.ir.builder import Builder
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass
from aot.link.image import ArenaBuffer, ExecutableImage
from aot.link.module import module_bytes
from aot.link.reader import read_module
from tests.support.runtime_modules import ARENA, CONSTANTS, INPUTS, OUTPUTS, Assembler
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import Tensor, info_of, module_of, reading_texels, running_on

pytestmark = pytest.mark.vulkan

RODATA = np.random.default_rng(1).integers(0, 1 << 32, 8, np.uint32)
PATTERN = 0x7FA00001  # a NaN that signals, as a float
MEMORY = ("unified", "staged")


@pytest.fixture(params=[(d, m) for d in DRIVERS for m in MEMORY], ids="-".join)
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Each driver, with memory that the host shares and with copies to memory of its own."""
    driver, memory = request.param
    with running_on(driver, tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOT_VULKAN_MEMORY", memory)
        patch.setenv("AOT_VULKAN_TEXELS", "on")
        yield driver


def mixing_shader() -> bytes:
    """outputs[g] = constants[1] ^ arena[g] ^ inputs[g], g the workgroup; each is four words, those
    of the inputs read one by one."""
    asm = ShaderAssembler()
    asm.capability(Capability.SAMPLED_BUFFER)
    quad = asm.vector(asm.u32, 4)
    images = {
        c: asm.resource(
            StorageClass.UNIFORM_CONSTANT, asm.texels, texel_binding(BufferClass(c), words)
        )
        for c, words in ((CONSTANTS, 4), (ARENA, 4), (INPUTS, 1))
    }
    block = asm.block(asm.runtime_array(quad, stride=16), is_written=True)
    outputs = asm.resource(StorageClass.STORAGE_BUFFER, block, OUTPUTS)
    ids = asm.builtin(BuiltIn.WORKGROUP_ID)
    body = FunctionBody(asm)
    loaded = body.result(Op.LOAD, asm.vector(asm.u32, 3), ids)
    group = body.result(Op.COMPOSITE_EXTRACT, asm.u32, loaded, 0)
    loaded_images = {c: body.result(Op.LOAD, asm.texels, image) for c, image in images.items()}
    first = body.result(Op.I_MUL, asm.u32, group, asm.constant(asm.u32, 4))
    words = []
    for number in range(4):
        place = body.result(Op.I_ADD, asm.u32, first, asm.constant(asm.u32, number))
        fetched = body.result(Op.IMAGE_FETCH, quad, loaded_images[INPUTS], place)
        words.append(body.result(Op.COMPOSITE_EXTRACT, asm.u32, fetched, 0))
    value = body.result(Op.COMPOSITE_CONSTRUCT, quad, *words)
    for buffer_class, place in ((CONSTANTS, asm.constant(asm.u32, 1)), (ARENA, group)):
        fetched = body.result(Op.IMAGE_FETCH, quad, loaded_images[buffer_class], place)
        value = body.result(Op.BITWISE_XOR, quad, value, fetched)
    pointer = asm.pointer(StorageClass.STORAGE_BUFFER, quad)
    zero = asm.constant(asm.u32, 0)
    to = body.result(Op.ACCESS_CHAIN, pointer, outputs, zero, group)
    body.emit(Op.STORE, to, value)
    return asm.finish(body, (1, 1, 1))


def mixing_module(rodata: bytes = RODATA.tobytes()) -> bytes:
    """y = mix(x) for x of N words; the arena holds N words of PATTERN."""
    asm = Assembler()
    asm.block()
    size, groups, arena = asm.register(), asm.register(), asm.register()
    asm.emit("INPUT_DIM", size, 0, 0)
    asm.emit("OUTPUT_DIM", 0, 0, size)
    three, four, one = asm.register(3), asm.register(4), asm.register(1)
    asm.emit("FLOORDIV", groups, asm.binary("ADD", size, three), four)
    bytes_ = asm.binary("MUL", size, four)
    asm.emit("BUFFER", 0, bytes_)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("FILL", ARENA, arena, bytes_, PATTERN)
    asm.emit("DISPATCH", 0, groups, one, one)
    asm.emit("RETURN")
    tensors = [Tensor(name, DType.U32, ("N",)) for name in "xy"]
    buffers = (ArenaBuffer(0, 1, arena),)
    shader = ExecutableImage("mix", 0, spirv=mixing_shader(), workgroup_size=(1, 1, 1))
    made = module_of(
        asm, tensors[:1], tensors[1:], shaders=[shader], rodata=rodata, buffers=buffers
    )
    return reading_texels(made)


def test_texels_are_the_bytes_of_their_buffers(device: str) -> None:
    """Also where the last texel is whole only in memory, and when buffers are made anew."""
    with aot.load(mixing_module(), "vulkan") as program:
        for number, count in enumerate([8, 13, 13, 4000, 13, 1, 50_001]):
            x = np.random.default_rng(number).integers(0, 1 << 32, count, np.uint32)
            wanted = x ^ np.uint32(PATTERN) ^ np.resize(RODATA[4:], count)
            assert np.array_equal(program({"x": x})["y"], wanted)
        # 8, then larger buffers for 13; for 4000, and 13 again; for 1; for 50001
        assert info_of(program).recording_count == 6


def test_large_buffers_name_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SwiftShader's is Vulkan's least: 65536 texels, of a word each."""
    monkeypatch.setenv("AOT_VULKAN_TEXELS", "on")
    most = 65536
    with running_on("swiftshader", tmp_path):
        message = r"{} of {} bytes is above SwiftShader.*'s maxTexelBufferElements, 65536 of 4 byt"
        with pytest.raises(
            RuntimeFailure, match=message.format("constants", 4 * most + 16)
        ) as caught:
            aot.load(mixing_module(bytes(4 * most + 4)), "vulkan")
        assert caught.value.status == "unsupported"
        with aot.load(mixing_module(bytes(4 * most)), "vulkan") as program:
            with pytest.raises(
                RuntimeFailure, match=message.format("the arena", 4 * most + 16)
            ) as caught:
                program({"x": np.zeros(most + 1, np.uint32)})
            assert caught.value.status == "unsupported"
            for count in (most, 5):
                x = np.arange(count, dtype=np.uint32)
                assert np.array_equal(program({"x": x})["y"], x ^ np.uint32(PATTERN))


def test_a_device_with_less_than_is_needed_is_refused(tmp_path: Path) -> None:
    image = read_module(mixing_module())
    (variant,) = image.variants
    limits: tuple[tuple[str, int], ...] = (("maxTexelBufferElements", 65537),)
    changed: Any = replace(image, variants=(replace(variant, limits=limits),))
    with (
        running_on("swiftshader", tmp_path),
        pytest.raises(
            RuntimeFailure, match="maxTexelBufferElements is 65536, the variant needs 65537"
        ),
    ):
        aot.load(module_bytes(changed), "vulkan")


@pytest.mark.parametrize(
    ("driver", "target", "setting", "expected"),
    [
        ("lavapipe", "vulkan-1.1", "", True),
        ("lavapipe", "vulkan-1.1", "off", False),
        ("lavapipe", "nvidia", "on", False),  # its shaders have no such loads
        ("swiftshader", "vulkan-1.1", "", False),
        ("swiftshader", "vulkan-1.1", "on", True),
    ],
)
def test_what_shaders_read(
    driver: str,
    target: str,
    setting: str,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Narrow and wide elements, one by one and four at a time, all of them either way."""
    monkeypatch.setenv("AOT_VULKAN_TEXELS", setting)
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((32, 24)).astype(np.float32)
    b = Builder()
    x = b.input("x", "f32[7, 32]")
    mask = b.input("mask", "bool[7, 24]")
    product = b.op("matmul", x, b.constant(weight))
    b.output("y", b.op("where", mask, product, b.constant(np.float32(0.5))))
    given = {
        "x": rng.standard_normal((7, 32)).astype(np.float32),
        "mask": rng.random((7, 24)) < 0.5,
    }
    module = aot.compile(b.module(), targets=[target])
    with running_on(driver, tmp_path), aot.load(module.to_bytes(), "vulkan") as program:
        assert info_of(program).reads_texels == expected
        wanted = np.where(given["mask"], given["x"] @ weight, np.float32(0.5))
        np.testing.assert_allclose(program(given)["y"], wanted, rtol=1e-5, atol=1e-5)
