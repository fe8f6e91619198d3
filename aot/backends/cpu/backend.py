"""The CPU backend as the driver sees it: objects, linked into one position-free image."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from aot.backends.code import Code, Emitted, WhyTooLong, never_too_long
from aot.backends.cpu.codegen import CpuCodegen
from aot.backends.cpu.object_cache import ObjectCache
from aot.backends.cpu.scratch import scratch_bytes
from aot.kernels.ir.nodes import BufferClass, For, Kernel
from aot.link.class_sizes import ClassSize
from aot.link.code_image import link_image
from aot.link.image import Device, ExecutableImage
from aot.options import CompileOptions, Progress
from aot.target.model import Target


class CpuBackend:
    """The `Backend` that compiles machine code with LLVM."""

    device = Device.CPU
    scratch_in_arena = True
    overlaps_dispatches = False

    def __init__(self, options: CompileOptions, cache: ObjectCache) -> None:
        self._options = options
        self._codegen = CpuCodegen.of(options, cache)

    def __enter__(self) -> CpuBackend:
        self._codegen.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._codegen.__exit__(*error)

    def expect(self, source: Any) -> None:
        self._codegen.expect(source, self._options)

    def unrolled(self, kernel: Kernel) -> Container[For]:
        return ()

    def begin(self, kernel: Kernel, target: Target) -> None:
        self._codegen.begin(kernel, target)

    def limits_of_buffers(self, largest: int) -> tuple[tuple[str, int], ...]:
        return ()

    def windowed(self, sizes: Mapping[int, ClassSize]) -> frozenset[BufferClass]:
        return frozenset()

    def compile(
        self,
        kernels: Sequence[Kernel],
        target: Target,
        progress: Progress,
        why_too_long: WhyTooLong = never_too_long,
        windowed: frozenset[BufferClass] = frozenset(),
    ) -> Code:
        objects = self._codegen.objects(kernels, target, progress)
        image = link_image(objects.data, target, [k.name for k in kernels])
        executables = tuple(
            ExecutableImage(k.name, len(k.params), offset, None, scratch_bytes(k, target))
            for k, offset in zip(kernels, image.offsets, strict=True)
        )
        counts = {
            "cache": {"hits": objects.hits, "misses": objects.misses},
            "llvm_calls": objects.llvm_calls,
        }
        return Code(image.data, executables, Emitted.of_image(image), image.parts, counts)
