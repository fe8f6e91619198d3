"""Runs one kernel on a software Vulkan driver: a module of one dispatch, and the runtime.

Owns the program around the dispatch: it copies what the classes' buffers are to hold there, and
back what they hold afterwards, with poison behind each. The runtime follows the ABI written down in
`aot.backends.vulkan.shader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aot.backends.vulkan.shader import Shader
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, Kernel
from aot.link.image import ExecutableImage
from tests.support import vulkan_runtime, vulkan_server
from tests.support.runtime_modules import Assembler
from tests.support.vulkan_runtime import Tensor

POISON = 0xA5
POISON_BYTES = 256
CONSTANTS, ARENA, INPUTS, OUTPUTS = BufferClass


def packed(kernel: Kernel, values: Mapping[str, float]) -> list[int]:
    """The parameter block: a word each, floats as their bits."""
    words = []
    for param in kernel.params:
        value = values[param.name]
        if param.dtype.is_float:
            data = np.array(value, param.dtype.numpy).tobytes()
            words.append(int.from_bytes(data, "little"))
        else:
            words.append(int(value) & 0xFFFFFFFF)
    return words


def dispatched(
    driver: str,
    kernel: Kernel,
    shader: Shader,
    buffers: Mapping[BufferClass, bytes],
    values: Mapping[str, float],
    grid: Sequence[int],
) -> dict[BufferClass, bytes]:
    """The class buffers as one dispatch of `kernel`, compiled to `shader`, leaves them.

    Args:
        values: of the kernel's parameters; of a buffer's offset that in the buffer of its class.

    Raises:
        AssertionError: the validation layer spoke, or bytes behind a buffer changed.
    """
    padded = {c: data + bytes(-len(data) % 16) for c, data in buffers.items()}
    held = {c: data + bytes([POISON]) * POISON_BYTES for c, data in padded.items()}
    module = _module(kernel, shader, held, packed(kernel, values), grid)
    given = [held[c] for c in (INPUTS, ARENA, OUTPUTS)]
    found = vulkan_server.run(driver, module, given, reads_texels=bool(shader.texels))
    after = dict(zip((OUTPUTS, CONSTANTS, ARENA, INPUTS), found, strict=True))
    for binding, data in after.items():
        end = len(padded[binding])
        assert data[end:] == held[binding][end:], "a shader wrote behind its buffer"
    return {binding: data[: len(buffers[binding])] for binding, data in after.items()}


def _module(
    kernel: Kernel,
    shader: Shader,
    held: Mapping[BufferClass, bytes],
    params: Sequence[int],
    grid: Sequence[int],
) -> bytes:
    """A module whose program copies the third input to the first output, the second to the arena,
    dispatches, and copies constants, arena and first input to the other outputs."""
    size = {binding: len(data) for binding, data in held.items()}
    a = Assembler()
    a.block()
    inputs = [a.register() for _ in range(3)]
    outputs = [a.register() for _ in range(4)]
    a.emit("RETURN")
    a.execute()
    start = a.register(0)
    length = {binding: a.register(size[binding]) for binding in BufferClass}
    base = {CONSTANTS: start, ARENA: start, INPUTS: inputs[0], OUTPUTS: outputs[0]}

    def copy(to: BufferClass, at: int, source: BufferClass, place: int, what: BufferClass) -> None:
        a.emit("COPY", to.value, at, source.value, place, length[what])

    copy(ARENA, start, INPUTS, inputs[1], ARENA)
    copy(OUTPUTS, outputs[0], INPUTS, inputs[2], OUTPUTS)
    classes = {buffer.offset.name: buffer.binding for buffer in kernel.buffers}
    words = []
    for param, word in zip(kernel.params, params, strict=True):
        register = a.register(word)
        binding = classes.get(param.name)
        words.append(register if binding is None else a.binary("ADD", register, base[binding]))
    a.emit("DISPATCH", 0, *(a.register(n) for n in grid), *words)
    for number, binding in enumerate((CONSTANTS, ARENA, INPUTS), 1):
        copy(OUTPUTS, outputs[number], binding, base[binding], binding)
    a.emit("RETURN")
    executable = ExecutableImage(
        kernel.name,
        len(kernel.params),
        spirv=shader.words,
        scratch_bytes=shader.shared_bytes,
        workgroup_size=shader.workgroup_size,
        param_buffer_bytes=shader.param_buffer_bytes,
        texel_spirv=shader.words if shader.texels else None,
    )

    def tensors(names: Sequence[BufferClass]) -> list[Tensor]:
        return [Tensor(b.name.lower(), DType.U8, (size[b],)) for b in names]

    return vulkan_runtime.module_of(
        a,
        tensors((INPUTS, ARENA, OUTPUTS)),
        tensors((OUTPUTS, CONSTANTS, ARENA, INPUTS)),
        shaders=[executable],
        rodata=held[CONSTANTS],
        registers={"inputs": inputs, "outputs": outputs},
        needs=[shader],
        arena_bytes=size[ARENA],
    )
