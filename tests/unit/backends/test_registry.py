"""The driver asks backends by their protocol alone: what one refuses, a CPU runs or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import aot
from aot.backends.code import Code, WhyTooLong, never_too_long
from aot.backends.cpu.object_cache import ObjectCache
from aot.backends.registry import BACKENDS, Backends
from aot.backends.vulkan.backend import VulkanBackend
from aot.builder import Builder
from aot.errors import UnsupportedError
from aot.ir.graph import Module
from aot.kernels.ir.nodes import BufferClass, Kernel
from aot.link.image import Device
from aot.options import CompileOptions, Progress, no_progress
from aot.target import selection as targets
from aot.target.model import Target
from aot.target.toml import DEVICES

CPU, GPU = "x86-64-v2", "vulkan-1.1"


def model() -> Module:
    b = Builder()
    x = b.input("x", "f32[512, 600]")
    b.output("y", b.op("softmax", x, axis=1))
    b.output("z", b.op("matmul", x, b.input("w", "f32[600, 512]")))
    return b.module()


class Refusing(VulkanBackend):
    """A backend of a device that has no place for the first kernel."""

    def compile(
        self,
        kernels: Sequence[Kernel],
        target: Target,
        progress: Progress,
        why_too_long: WhyTooLong = never_too_long,
        windowed: frozenset[BufferClass] = frozenset(),
    ) -> Code:
        made = super().compile(kernels[1:], target, progress, why_too_long, windowed)
        return replace(made, refused={kernels[0].name: "it is the first"})


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_has_a_backend(device: str) -> None:
    with BACKENDS[device](CompileOptions(cache=False), ObjectCache(None)) as backend:
        assert backend.device is Device[device.upper()]
        assert backend.scratch_in_arena != backend.overlaps_dispatches


def test_a_compile_has_one_backend_a_device() -> None:
    with Backends(CompileOptions(cache=False)) as backends:
        assert backends.of(targets.load(CPU)) is backends.of(targets.load("wasm32"))
        assert backends.of(targets.load(CPU)) is not backends.of(targets.load(GPU))
        code = backends.of(targets.load(GPU)).compile([], targets.load(GPU), no_progress)
        assert (code.image, code.executables, code.refused) == (b"", (), {})


def test_what_breaks_a_limit_is_refused_by_name() -> None:
    target = targets.load(GPU)
    assert target.gpu is not None
    small = replace(target, gpu=replace(target.gpu, max_shared_bytes=0))
    module = aot.compile(model(), targets=[CPU, GPU])
    variant = module.image.variants[-1]
    assert variant.device is Device.VULKAN and variant.host is None
    assert max(e.scratch_bytes for e in variant.executables) > 0
    kernels = _kernels(small)
    made = VulkanBackend().compile(kernels, small, no_progress)
    assert [e.name for e in made.executables] + list(made.refused) == ["e1", "e0"]
    assert made.refused["e0"] == "workgroup scratch takes 512 bytes, more than the target's 0"
    assert len(made.emitted.sizes) == 1


def _kernels(target: Target) -> list[Kernel]:
    from aot.kernels.lowering import lower
    from aot.passes.base import PassContext, run_passes
    from aot.passes.order import MODEL_PASSES, TARGET_PASSES

    module = model()
    context = PassContext(CompileOptions(), target)
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), context)
    return [lower(f, target) for f in module.executables]


def test_the_cpu_runs_what_a_backend_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "vulkan", lambda options, cache: Refusing())
    module = aot.compile(model(), targets=[GPU, CPU])
    (variant,) = [v for v in module.image.variants if v.device is Device.VULKAN]
    assert variant.host is not None and variant.host.target == CPU
    assert [(e.name, e.why_on_cpu, e.spirv is None) for e in variant.executables] == [
        ("e0", "it is the first", True),
        ("e1", "", False),
    ]
    (section,) = [s for s in module.stats["variants"] if s["target"] == GPU]
    assert [b["executable"] for b in section["cpu_fallback"]["because"]] == ["e0"]


def test_without_a_cpu_what_a_backend_refuses_is_unsupported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BACKENDS, "vulkan", lambda options, cache: Refusing())
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(model(), targets=[GPU])
    assert str(caught.value) == (
        "target vulkan-1.1 can't run these; add a --target for the CPU, which then runs them in "
        "the same program:\n  softmax (executable e0): it is the first"
    )
