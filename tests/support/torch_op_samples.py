"""PyTorch's own samples of its ops: which are run, in which process, and what became of each.

Owns the selection, the child processes and the comparison; no op is known here by its name but
those whose results are random, or undefined in part. torch's eager result is what is expected.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import select
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import aot
from aot.errors import CompileError, UnsupportedError

DTYPES = ("float32", "int64", "bool")
VERDICTS = (
    "right",
    "refused",
    "not exportable",
    "internal error",
    "fails in the run",
    "wrong",
    "not run by torch",
)
FAULTS = ("internal error", "fails in the run", "wrong")
CONSIDERED = 40  # samples of an op, of which those that run are spread evenly
LIMIT_S = 20  # CPU seconds a sample
WALL_S = 300  # for a child that waits and computes nothing

# A stage of a sample, in order -> the verdict of one that ends or raises in it.
_STAGES = {
    "eager": "not run by torch",
    "export": "not exportable",
    "compile": "internal error",
    "run": "fails in the run",
    "compare": "wrong",
}
# Bits of error by dtype, relative to an element, and to the largest of its tensor.
_TOLERANCES = {
    "float16": (2e-3, 1e-3),
    "bfloat16": (2e-2, 1e-2),
    "float32": (2e-4, 2e-5),
    "float64": (2e-4, 2e-5),  # computed from single floats where torch promotes
}
# Results that no seed of ours repeats: the names of ops, without their variants.
RANDOM = frozenset(
    (
        *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal"),
        *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"),
        *("uniform", "pca_lowrank", "svd_lowrank"),
        *(f"nn.functional.{name}dropout" for name in ("", "alpha_", "feature_alpha_")),
        *("nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.rrelu"),
        *(f"nn.functional.fractional_max_pool{rank}d" for rank in (2, 3)),
    )
)
# Results whose elements torch leaves undefined.
UNDEFINED = frozenset(
    (
        *("empty", "empty_like", "empty_permuted", "empty_strided"),
        *("new_empty", "new_empty_strided"),
    )
)
# Ops that give positions, of equal elements any: what stands there is compared -> which argument
# after the input says the dim.
TIED = {
    "argsort": 0,
    "sort": 0,
    "topk": 1,
    "kthvalue": 1,
    "median": 0,
    "mode": 0,
    "nanmedian": 0,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one sample; the note is our message, or torch's, or what differs."""

    verdict: str
    note: str = ""


@dataclass(frozen=True)
class Record:
    """The outcomes of one op's samples in one dtype.

    Attributes:
        name: the op's, with its variant after a point.
        dtype: of the sample's floating or main input: one of `DTYPES`.
        samples: how many were asked for; the outcomes are fewer where the op has fewer.
    """

    name: str
    dtype: str
    samples: int
    outcomes: tuple[Outcome, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_records(path: Path) -> list[Record]:
    """Records that a run wrote; a last line that was cut off counts as not written."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            facts = json.loads(line)
        except json.JSONDecodeError:
            continue
        outcomes = tuple(Outcome(**outcome) for outcome in facts.pop("outcomes"))
        found.append(Record(**facts, outcomes=outcomes))
    return found


@cache
def ops() -> dict[str, Any]:
    """torch's op database by name. Imports torch, and takes seconds."""
    warnings.filterwarnings("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    return {_full_name(op): op for op in op_db}


def is_apart(op: Any) -> bool:
    """Whether an op's results are random, or undefined, so that there is nothing to compare."""
    return op.name in RANDOM | UNDEFINED


def _full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def chosen(names: Sequence[str], shard: tuple[int, int] = (0, 1)) -> list[str]:
    """Names of the ops to run, in the database's order; all that are comparable if none is named.

    Raises:
        ValueError: a name that the database has not.
    """
    known = ops()
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"torch has no samples of {', '.join(unknown)}")
    found = list(names) or [name for name, op in known.items() if not is_apart(op)]
    return found[shard[0] :: shard[1]]


def samples_of(op: Any, dtype: str, count: int) -> list[Any]:
    """Up to `count` samples, spread over the op's first ones; the same in every run."""
    import torch

    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    made = op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)
    found = list(islice(made, CONSIDERED))
    return found[:: max(1, len(found) // count)][:count]


def survey(
    names: Iterable[str], dtypes: Iterable[str], samples: int, done: Iterable[Record] = ()
) -> Iterator[Record]:
    """Runs each op in each dtype that it has, but those that are done with as many samples."""
    import torch

    torch.set_num_threads(1)
    _warm()
    finished = {(record.name, record.dtype, record.samples) for record in done}
    dtypes = tuple(dtypes)
    for name in names:
        for dtype in dtypes:
            has = getattr(torch, dtype) in ops()[name].supported_dtypes("cpu")
            if has and (name, dtype, samples) not in finished:
                yield Record(name, dtype, samples, tuple(outcomes(name, dtype, samples)))


@cache
def _warm() -> None:
    """Imports and caches what every child needs; starts no thread, which a fork would lose."""
    import torch

    module, tensors = _as_module(ops()["add"], samples_of(ops()["add"], "float32", 1)[0])
    aot.compile(torch.export.export(module, tuple(tensors)), targets=["host"], jobs=1)


def outcomes(name: str, dtype: str, samples: int) -> list[Outcome]:
    """Runs samples in a child process; one that ends it, or takes too long, fails alone."""
    found: list[Outcome] = []
    while True:
        stage, is_whole, ended = _in_child(name, dtype, samples, found)
        if is_whole:
            return found
        if stage is None:  # not one sample was made
            return [*found, Outcome("not run by torch", f"samples: {ended}")]
        found.append(Outcome(_STAGES[stage], ended))


def _in_child(
    name: str, dtype: str, samples: int, found: list[Outcome]
) -> tuple[str | None, bool, str]:
    """Appends outcomes after the `found` ones: (the last stage, whether all ran, how it ended)."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        status = 1
        try:
            with os.fdopen(writes, "w", buffering=1) as out:
                _serve(name, dtype, samples, len(found), lambda line: print(line, file=out))
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    stage, is_whole, ended = None, False, ""
    with os.fdopen(reads) as lines:
        while True:
            if not select.select([lines], [], [], WALL_S)[0]:
                os.kill(child, signal.SIGKILL)
            if not (line := lines.readline()):
                break
            kind, fact = json.loads(line)
            if kind == "stage":
                stage = fact
            elif kind == "outcome":
                found.append(Outcome(**fact))
                stage = None
            elif kind == "end":
                is_whole = True
            else:
                ended = fact
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        ended = f"ended by {signal.Signals(-status).name}"
    return stage, is_whole, ended or f"ended with status {status}"


def _serve(name: str, dtype: str, samples: int, first: int, send: Callable[[str], None]) -> None:
    """The child: runs samples from the `first` on, and tells of stages and outcomes."""
    gc.freeze()  # a collection would copy all of the parent's memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    op = ops()[name]
    try:
        made = samples_of(op, dtype, samples)
    except Exception as error:
        send(json.dumps(["error", _told(error)]))
        return
    for sample in made[first:]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + LIMIT_S
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))
        outcome = outcome_of(op, sample, lambda stage: send(json.dumps(["stage", stage])))
        send(json.dumps(["outcome", asdict(outcome)]))
    send(json.dumps(["end", ""]))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:400]}"


def outcome_of(
    op: Any, sample: Any, on_stage: Callable[[str], None] = lambda stage: None
) -> Outcome:
    """Exports one sample as a module, compiles it for the host, runs it and compares.

    The tensors of the sample are the module's inputs; all else is constant in it. Of complex
    results it gives the two parts.
    """
    import torch

    module, tensors = _as_module(op, sample)
    stage = "eager"

    def enter(name: str) -> None:
        nonlocal stage
        stage = name
        on_stage(name)

    def copies() -> list[Any]:
        return [tensor.clone() for tensor in tensors]

    try:
        enter("eager")
        expected = module(*copies())
        enter("export")
        program = torch.export.export(module, tuple(copies()))
        enter("compile")
        compiled = aot.compile(program, targets=["host"], jobs=1)
        enter("run")
        found = aot.load(compiled, device="cpu")(*copies())
        enter("compare")
        difference = differs(expected, found)
    except (CompileError, UnsupportedError) as error:
        return Outcome("refused" if stage == "compile" else _STAGES[stage], str(error)[:400])
    except Exception as error:
        return Outcome(_STAGES[stage], _told(error))
    if not difference:
        return Outcome("right")
    return Outcome("wrong", f"{difference}, of {_described(sample)}")


def _as_module(op: Any, sample: Any) -> tuple[Any, list[Any]]:
    """A module that calls the op on a sample, and the tensors that it takes."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

    values, form = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]

    class Sample(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            fed = list(values)
            for place, tensor in zip(places, tensors):
                fed[place] = tensor
            args, named = tree_unflatten(fed, form)
            found = op.op(*args, **named)
            return tree_map(_real, _settled(op, found, args, named))

    return Sample(), [values[place].detach().clone() for place in places]


def _real(value: Any) -> Any:
    """Complex tensors as their two parts: programs have no complex outputs."""
    import torch

    if isinstance(value, torch.Tensor) and value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value


def _settled(op: Any, found: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Results, with the elements at a position in place of one that may be any among equals."""
    import torch

    if op.name not in TIED or named.get("stable"):
        return found
    x, *others = args
    if isinstance(found, torch.Tensor) and op.name != "argsort":
        return found  # of all elements
    dim = named.get("dim", others[TIED[op.name]] if len(others) > TIED[op.name] else -1)
    if isinstance(found, torch.Tensor):
        return x.gather(dim, found)
    values, places = found
    if places.ndim < x.ndim:
        return values, x.gather(dim, places.unsqueeze(dim)).squeeze(dim)
    return values, x.gather(dim, places)


def _described(sample: Any) -> str:
    from torch.utils._pytree import tree_map

    def one(value: Any) -> Any:
        return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else value

    return str(tree_map(one, ((sample.input, *sample.args), sample.kwargs)))[:300]


def differs(expected: Any, found: Any) -> str:
    """What is not equal: numbers, shapes, dtypes, elements; "" if all are as torch has them."""
    left, right = _tensors(expected), _tensors(found)
    if len(left) != len(right):
        return f"{len(right)} results, expected {len(left)}"
    for number, (wanted, got) in enumerate(zip(left, right)):
        where = f"result {number}: " if len(left) > 1 else ""
        if wanted.shape != got.shape:
            return f"{where}shape {list(got.shape)}, expected {list(wanted.shape)}"
        if wanted.dtype != got.dtype:
            return f"{where}{got.dtype}, expected {wanted.dtype}"
        if text := _elements_differ(wanted, got):
            return where + text
    return ""


def _tensors(values: Any) -> list[Any]:
    """Tensors and numbers among a call's results, as tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    kept = [
        v for v in tree_leaves(values) if isinstance(v, torch.Tensor | int | float | np.ndarray)
    ]
    return [torch.as_tensor(value) for value in kept]


def _elements_differ(wanted: Any, got: Any) -> str:
    """NaN is equal to NaN, an infinity to itself, integers and truth values exactly."""
    import torch

    name = str(wanted.dtype).removeprefix("torch.")
    if name not in _TOLERANCES:
        count = int((wanted != got).sum())
        return f"{count} of {wanted.numel()} elements differ" if count else ""
    if not torch.equal(wanted.isnan(), got.isnan()):
        return f"{int(got.isnan().sum())} NaN, expected {int(wanted.isnan().sum())}"
    relative, of_largest = _TOLERANCES[name]
    wanted, got = wanted.double(), got.double()
    finite = wanted[wanted.isfinite()].abs()
    least = of_largest * max(1e-2, float(finite.max()) if finite.numel() else 0.0)
    if torch.allclose(got, wanted, rtol=relative, atol=least, equal_nan=True):
        return ""
    gap = (got - wanted).abs().nan_to_num(0.0)
    return f"differs by up to {float(gap.max()):.3g}"
