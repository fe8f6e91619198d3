"""The Vulkan backend as the driver sees it: one shader a kernel; equal words are one segment of the
file."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from aot.backends.code import Code, Emitted, WhyTooLong, never_too_long
from aot.backends.vulkan import requirements
from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.limits import LimitError
from aot.backends.vulkan.placement import written_out
from aot.backends.vulkan.shader import MOST_WINDOW_OPERAND_BYTES, WINDOW_BYTES, Shader
from aot.ir.dims import Dim
from aot.kernels.ir.nodes import BufferClass, For, Kernel
from aot.link.class_sizes import ClassSize
from aot.link.image import Device, ExecutableImage
from aot.options import Progress
from aot.target.model import Target


class VulkanBackend:
    """The `Backend` for SPIR-V."""

    device = Device.VULKAN
    scratch_in_arena = False
    overlaps_dispatches = True

    def __enter__(self) -> VulkanBackend:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def expect(self, source: Any) -> None:
        pass

    def unrolled(self, kernel: Kernel) -> Container[For]:
        return written_out(kernel)

    def begin(self, kernel: Kernel, target: Target) -> None:
        pass

    def limits_of_buffers(self, largest: int) -> tuple[tuple[str, int], ...]:
        return requirements.limits_of_buffers(largest)

    def windowed(self, sizes: Mapping[int, ClassSize]) -> frozenset[BufferClass]:
        return frozenset(
            BufferClass(c)
            for c, size in sizes.items()
            if size.total > WINDOW_BYTES and size.largest <= MOST_WINDOW_OPERAND_BYTES
        )

    def compile(
        self,
        kernels: Sequence[Kernel],
        target: Target,
        progress: Progress,
        why_too_long: WhyTooLong = never_too_long,
        windowed: frozenset[BufferClass] = frozenset(),
    ) -> Code:
        shaders: list[Shader] = []
        executables: list[ExecutableImage] = []
        refused: dict[str, str] = {}
        iterations: dict[str, Dim] = {}
        for number, kernel in enumerate(kernels):
            progress("codegen", number, len(kernels))
            try:
                shader = compile_kernel(kernel, target, windowed)
            except LimitError as error:
                refused[kernel.name] = error.what
                continue
            if why := why_too_long(kernel.name, shader.iterations):
                refused[kernel.name] = why
                continue
            iterations[kernel.name] = shader.iterations
            shaders.append(shader)
            executables.append(_executable(kernel, shader))
        return Code(
            b"",
            tuple(executables),
            Emitted.of_shaders([b"".join(e.shaders) for e in executables]),
            limits=requirements.limits(shaders),
            features=requirements.features(shaders),
            refused=refused,
            iterations=iterations,
        )


def _executable(kernel: Kernel, shader: Shader) -> ExecutableImage:
    return ExecutableImage(
        kernel.name,
        len(kernel.params),
        spirv=shader.words,
        scratch_bytes=shader.shared_bytes,
        workgroup_size=shader.workgroup_size,
        param_buffer_bytes=shader.param_buffer_bytes,
        texel_spirv=None if shader.texel is None else shader.texel.words,
        windows=shader.windows,
    )
