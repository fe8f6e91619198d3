"""Linked kernels for WebAssembly agree with the interpreter, bit by bit, when Node runs them.

The same cases as under QEMU. Without fused multiply-add: that what is computed is what the
interpreter computes is also what makes the error bounds of `test_math` hold here.
"""

from __future__ import annotations

import numpy as np
import pytest
from cpu_case import Case
from cpu_cases import access_cases, matmul_tile
from cpu_checking import check, expected_of, inputs_for
from cpu_operators import operator_cases
from cpu_running import Job, make_job, store_results, target_of
from hard_kernels import HARD_KERNELS, class_buffers, results_of
from node import require_node, run_image

from aot.backends.cpu import compile_kernel, emit_assembly
from aot.link.code_image import link_image

TARGET = "wasm32"


def check_cases(cases: list[Case]) -> None:
    """Compiles all, links them to one image and runs it in one process."""
    require_node()
    target = target_of(TARGET)
    jobs: list[Job] = []
    expected = []
    for case in cases:
        kernel = case.make()
        expected.append(expected_of(case, kernel, target))
        jobs.append(make_job(kernel, inputs_for(case, target), case.params, target))
    image = link_image([compile_kernel(job.kernel, target) for job in jobs], target)
    assert image.functions_met == len(jobs)
    run_image(image, jobs)
    failures = []
    for case, job, right in zip(cases, jobs, expected, strict=True):
        got = inputs_for(case, target)
        store_results(job, got)
        try:
            check(case, right, got, target)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def test_access() -> None:
    check_cases([c for c in access_cases() if c.runs_on(target_of(TARGET))])


@pytest.mark.parametrize("style", ["scalar", "vector"])
def test_operators(style: str) -> None:
    check_cases(operator_cases(target_of(TARGET), [style]))


def test_hard_kernels() -> None:
    require_node()
    record = target_of(TARGET)
    jobs, places = [], []
    for case in HARD_KERNELS:
        arrays, params, where = class_buffers(case)
        jobs.append(make_job(case.kernel, arrays, params, record))
        places.append(where)
    objects = [compile_kernel(c.kernel, record) for c in HARD_KERNELS]
    run_image(link_image(objects, record), jobs)
    for case, job, where in zip(HARD_KERNELS, jobs, places, strict=True):
        arrays = {n: np.frombuffer(bytes(d), np.uint8) for n, d in job.classes.items()}
        assert case.largest_error(results_of(case, arrays, where)) <= case.tolerance, case.name


def test_a_product_is_one_instruction_where_engines_have_it() -> None:
    plain, relaxed = (
        emit_assembly(matmul_tile(2, 16, 16), target_of(name))
        for name in (TARGET, f"{TARGET}-relaxed")
    )
    assert "relaxed" not in plain and "f32x4.mul" in plain
    assert relaxed.count("f32x4.relaxed_madd") == plain.count("f32x4.mul")
    assert "f32x4.mul" not in relaxed
