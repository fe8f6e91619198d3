"""The memory of an import: what unfolds to more than the limit is one error."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import aot
from aot.errors import CompileError
from aot.frontends import registry
from aot.ir import limits
from aot.ir.dim_limits import OversizedDimError
from aot.ir.dim_semantics import map_dims
from aot.ir.dims import symbol
from aot.ir.limits import FREE_BYTES, limit_of, limited
from tests.support.onnx_models import graph_model, tensor_info
from tests.support.paths import ROOT

MIB = 1 << 20


def test_the_limit() -> None:
    assert limit_of(0, 0) == FREE_BYTES == 256 * MIB
    assert limit_of(10 * MIB, 0) == 896 * MIB
    assert limit_of(10 * MIB, 7) == 7 * MIB


CODE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from aot.errors import CompileError
from aot.frontends import registry
from aot.ir import limits
before = resource.getrlimit(resource.RLIMIT_DATA)

def taken(mib, model=0, given=0, more=0):
    try:
        with limits.limited(model << 20, given):
            limits.extend(more << 20)
            return np.ones(mib << 17).nbytes >> 20
    except CompileError as error:
        return str(error)
    finally:
        assert resource.getrlimit(resource.RLIMIT_DATA) == before

print(taken(200), taken(300), sep="\\n")
print(taken(300, model=1), taken(300, given=400), taken(300, more=1), taken(200, given=100))
print(taken(300, given=100, more=9))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_system_enforces_it() -> None:
    """In a process of one thread; a model's other files count as the model's, unless the user has
    said how much there is."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, ROOT], capture_output=True, text=True, check=True
    )

    def error(mib: int) -> str:
        return (
            f"model: importing it takes more than {mib} MiB of memory; --limit-memory MIB "
            "(limit_memory) allows more"
        )

    first, second, third, last = done.stdout.splitlines()
    assert (first, second, last) == ("200", error(256), error(100))
    assert third == f"300 300 300 {error(100)}"


def test_other_threads_keep_their_memory() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with limited(0, 1):
            assert np.ones(4 * MIB).nbytes == 32 * MIB
    finally:
        end.set()
        thread.join()


def test_what_python_can_not_allocate_is_an_error_too() -> None:
    with pytest.raises(CompileError) as failure, limited(0, 0):
        raise MemoryError
    assert "takes more than 256 MiB of memory" in str(failure.value)
    assert limits._limit.get() is limits._NONE


def test_objects_in_memory_have_no_limit_of_their_own() -> None:
    """What they take is their owner's say; what comes from a file has the file's."""

    class Read:
        file_bytes = MIB

    for source, given, expected in (
        (object(), 0, 0),
        (object(), 3, 3 * MIB),
        (b"1234", 0, 256 * MIB + 256),
        (Read(), 0, 320 * MIB),
    ):
        with registry._limited(registry.TEXT, source, given):
            assert limits._limit.get().most_bytes == expected


def test_numbers_that_no_program_computes() -> None:
    """Extents whose numbers do not fit 64 bits: found by the importer, or when code is made."""
    advice = "give the extents of the model's inputs as numbers (--input-shape, input_shapes)"
    nodes, last = [], "x"
    for n in range(63):  # the rows are doubled each time
        nodes.append(helper.make_node("Concat", [last, last], [f"c{n}"], axis=0))
        nodes.append(helper.make_node("MatMul", [f"c{n}", "x"], [f"m{n}"]))
        last = f"m{n}"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    with pytest.raises(CompileError) as raised:
        aot.compile(graph_model(nodes, [tensor_info("x", ["n", "n"])], ["y"]))
    found = "an extent is computed with 9223372036854775808, which does not fit 64 bits"
    assert str(raised.value) == f"{found}: {advice}"
    with pytest.raises(OversizedDimError) as oversized:
        map_dims(lambda dim: 0 * dim + 5**40, np.array([symbol("n")], object))
    assert str(oversized.value) == (
        f"an extent would be an expression with {5**40}, which does not fit 64 bits: {advice}"
    )
