"""Every sample of every op in every form, kernel by kernel, on the backends that run kernels.

The oracle is the graph interpreter, to which layouts mean nothing. Kernels are verified, and the
interpreter runs them with race checks on. Where an op has many samples, layouts take turns, and so
do targets of other forms than the plain one; all with all are a sweep. Whole programs are
tests/runtime/test_op_samples.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from aot.errors import InternalError
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, OpRecord, Sample
from aot.ir.types import DType
from aot.target import selection as targets
from tests.support.half_regions import check_half, executable, half_function, half_inputs
from tests.support.kernel_backends import DRIVEN, INTERPRETED, NATIVE, KernelBackend
from tests.support.laid_out import LAYOUTS, relay
from tests.support.lowering import run_executable
from tests.support.lowering_checks import sample_runs
from tests.support.op_samples import naming

WIDE = frozenset({DType.I64, DType.U64, DType.F64})
Check = Callable[[KernelBackend], None]


@dataclass(frozen=True)
class Form:
    """How samples are run.

    Attributes:
        takes: whether there are samples of an op, or this one of them, in this form.
        prepare: what is the same for all backends: the function and its results.
        here: backends that need nothing installed, by groups of which one is much like another.
        driven: those that need a Vulkan driver.
        turn: of an op of many samples, the first of those that it takes: one of `TURNS`.
    """

    takes: Callable[[OpRecord, Sample], bool]
    prepare: Callable[[OpRecord, Sample], Check]
    here: Sequence[Sequence[KernelBackend]]
    driven: Sequence[KernelBackend] = ()
    turn: int | None = None


TURNS = len(LAYOUTS)
MANY = 3  # so many samples of an op see each backend of a group


def takes_all(record: OpRecord, sample: Sample) -> bool:
    return True


def has_layouts(record: OpRecord, sample: Sample) -> bool:
    return not record.kind.has_handwritten_kernel and any(
        t is not None and t.rank > 1 for t in sample.operands
    )


def has_f32(record: OpRecord, sample: Sample) -> bool:
    return any(t is not None and t.dtype is DType.F32 for t in sample.operands)


def as_it_is(record: OpRecord, sample: Sample) -> Check:
    runs = sample_runs(record, sample)
    return lambda backend: runs.check(backend.target, backend.engine)


def laid_out(layout: str) -> Callable[[OpRecord, Sample], Check]:
    """Operands and results of two dims and more in an order of memory, with gaps too."""

    def prepare(record: OpRecord, sample: Sample) -> Check:
        runs = sample_runs(record, sample, lambda function: relay(function, layout))
        return lambda backend: runs.check(backend.target, backend.engine)

    return prepare


def in_half(record: OpRecord, sample: Sample) -> Check:
    """Operands and results lie in memory as f16, and the op computes in f32."""
    function, inputs = half_function(record, sample), half_inputs(sample)
    wanted = run(function, inputs)
    made = executable(function)

    def check(backend: KernelBackend) -> None:
        found = run_executable(made, targets.load(backend.target), inputs, [], backend.engine)
        check_half(found, wanted)

    return check


_BOTH = [INTERPRETED["x86-64-v4"], INTERPRETED["vulkan-1.1"]]
FORMS = {
    "plain": Form(takes_all, as_it_is, [[b] for b in INTERPRETED.values()]),
    **{
        layout: Form(
            has_layouts,
            laid_out(layout),
            [_BOTH, [*NATIVE.values()][-1:]],
            [*DRIVEN.values()] if layout == "channels_last" else [],
            turn,
        )
        for turn, layout in enumerate(LAYOUTS)
    },
    "f16": Form(
        has_f32, in_half, [[*INTERPRETED.values()], [*NATIVE.values()]], [*DRIVEN.values()]
    ),
}


def samples_of(record: OpRecord, form: Form) -> dict[int, Sample]:
    """The op's samples in a form, by number."""
    if record.compute is None and not record.kind.has_handwritten_kernel:
        return {}
    taken = {
        number: sample
        for number, sample in enumerate(record.samples)
        if "layout" not in sample.attrs and form.takes(record, sample)
    }
    if form.turn is None or len(taken) <= TURNS:
        return taken
    return dict([*taken.items()][form.turn :: TURNS])


CASES = [
    pytest.param(name, form, id=f"{name}-{form}")
    for form in FORMS
    for name, record in sorted(REGISTRY.items())
    if samples_of(record, FORMS[form])
]


def backends_of(form: Form, turn: int) -> list[KernelBackend]:
    """Of each group the one whose turn it is."""
    return [group[turn % len(group)] for group in form.here if group]


def check_samples(
    name: str, form: str, samples: Mapping[int, Sample], *, everywhere: bool = False
) -> None:
    everywhere = everywhere or len(samples) < MANY
    every = [backend for group in FORMS[form].here for backend in group]
    for turn, (number, sample) in enumerate(samples.items()):
        check = FORMS[form].prepare(REGISTRY[name], sample)
        for backend in every if everywhere else backends_of(FORMS[form], turn):
            with naming(f"sample {number} of {name}, {form}, on {backend.name}"):
                check(backend)


@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_sample(name: str, form: str) -> None:
    """Of an op of many samples, each in one of the layouts."""
    check_samples(name, form, samples_of(REGISTRY[name], FORMS[form]))


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "form"), [c for c in CASES if c.values[1] != "plain"])
def test_every_sample_everywhere(name: str, form: str) -> None:
    """In every layout, on every backend."""
    taken = samples_of(REGISTRY[name], replace(FORMS[form], turn=None))
    check_samples(name, form, taken, everywhere=True)


@pytest.mark.vulkan
@pytest.mark.parametrize(("name", "form"), [c for c in CASES if FORMS[str(c.values[1])].driven])
def test_every_sample_on_a_driver(name: str, form: str) -> None:
    """Right, or refused: only 64-bit arithmetic may be, which legalisation removes before. As they
    are they run so in programs: tests/runtime/test_vulkan_samples.py."""
    record = REGISTRY[name]
    for number, sample in samples_of(record, FORMS[form]).items():
        check = FORMS[form].prepare(record, sample)
        for backend in FORMS[form].driven:
            with naming(f"sample {number} of {name}, {form}, on {backend.name}"):
                try:
                    check(backend)
                except InternalError as error:
                    types = (
                        *sample.operands,
                        *record.call(sample.operands, sample.attrs).result_types,
                    )
                    assert any(t is not None and t.dtype in WIDE for t in types)
                    assert "legalisation should have removed" in str(error)


def test_an_error_names_its_sample() -> None:
    """Wrong results are found, and the note says whose they are."""

    def wrong(kernel: object, buffers: dict[str, np.ndarray], params: object) -> None:
        for array in buffers.values():
            array[...] = 1

    check = as_it_is(REGISTRY["exp"], REGISTRY["exp"].samples[0])
    with (
        pytest.raises(AssertionError) as caught,
        naming("sample 0 of exp"),
    ):
        check(KernelBackend("wrong", "x86-64-v4", wrong))
    assert caught.value.__notes__ == ["sample 0 of exp"]
