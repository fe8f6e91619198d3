"""Kernel cases as one linked image, run by whoever has the CPU, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aot.backends.cpu.compile import compile_kernel
from aot.link.code_image import CodeImage, link_image
from aot.target.model import Target
from tests.support.cpu_case import Case
from tests.support.cpu_checking import check, expected_of, inputs_for
from tests.support.cpu_running import Job, make_job, store_results
from tests.support.hard_case import HardKernel, class_buffers, results_of

Run = Callable[[CodeImage, list[Job]], None]
"""Runs job i with entry i of an image, changing the jobs' classes in place."""


def check_image(image: CodeImage, target: Target, count: int) -> None:
    """An image of `count` kernels has an entry for each, and equal ones once."""
    assert image.functions_met == count == len(image.entries)
    assert len(set(image.entries)) == image.functions_kept
    if target.arch != "wasm32":  # whose functions lie anywhere
        is_thumb = target.arch == "thumb"
        assert all(entry % 2 == is_thumb for entry in image.entries)


def check_linked(cases: Sequence[Case], target: Target, run: Run, guard: str = "") -> None:
    """Compiles all, links them to one image and runs it in one process; with pages without access
    as `make_job` has them."""
    jobs: list[Job] = []
    expected = []
    for case in cases:
        kernel = case.make()
        expected.append(expected_of(case, kernel, target))
        jobs.append(make_job(kernel, inputs_for(case, target), case.params, target, guard))
    image = link_image([compile_kernel(job.kernel, target) for job in jobs], target)
    check_image(image, target, len(jobs))
    run(image, jobs)
    failures = []
    for case, job, right in zip(cases, jobs, expected, strict=True):
        got = inputs_for(case, target)
        store_results(job, got)
        try:
            check(case, right, got, target)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def check_hard_kernels(cases: Sequence[HardKernel], target: Target, run: Run) -> None:
    """The same of kernels with their own references and tolerances."""
    jobs, places = [], []
    for case in cases:
        arrays, params, where = class_buffers(case)
        jobs.append(make_job(case.kernel, arrays, params, target))
        places.append(where)
    run(link_image([compile_kernel(c.kernel, target) for c in cases], target), jobs)
    for case, job, where in zip(cases, jobs, places, strict=True):
        arrays = {n: np.frombuffer(bytes(d), np.uint8) for n, d in job.classes.items()}
        assert case.largest_error(results_of(case, arrays, where)) <= case.tolerance, case.name
