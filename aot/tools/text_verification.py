"""Verifies a language module on a text: how far its next tokens' probabilities are from f32's.

Logits that roundings move say little; what a reply shows of them is how probable the next token is.
So both read the same text, and of each token the two distributions of the next one are compared.
Owns the text where none is given, and how far the distributions may be apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.api import compile as compile_model
from aot.api import load
from aot.base.records import dataclass
from aot.errors import CompileError, RuntimeFailure
from aot.options import DeviceName
from aot.runtime.loader import Program
from aot.runtime.text import Tokeniser
from aot.text.language_program import LanguageProgram, language_program, raw_tokens
from aot.tools.llama_engine import LOGITS, TOKENS
from aot.tools.oracles import ORACLES

DIVERGENCE = 0.01  # nats that may be between the two in the mean
TOKENS_READ = 512
SAMPLE = Path(__file__).with_name("sample_text.txt")  # Pride and Prejudice, 1813, its first pages
PIECE = 64  # tokens that a run takes where it gives the logits of all
LLAMA = "llama.cpp"

Logits = NDArray[np.floating[Any]]
_Run = Callable[[NDArray[np.int32]], Logits]


@dataclass(frozen=True)
class TextAgreement:
    """How one engine's predictions of a text agree with those of the model in f32.

    Attributes:
        engine: "aotc", or that whose own roundings stand beside ours.
        divergence: the KL divergence of the next token's distribution from the one in f32, in nats,
            in the mean over the tokens.
        tail: that of the token which 99 % of all are nearer than.
        same: the share of tokens after which both find the same one most probable, 0 to 1.
        perplexity: e to the mean of -log p of the text's own next tokens.
    """

    engine: str
    divergence: float
    tail: float
    same: float
    perplexity: float


@dataclass(frozen=True)
class TextVerification:
    """The outcome of `verify_text`.

    Attributes:
        target: the variant that ran.
        tokens: how many were read; `judged` of them had their logits compared.
        tolerance: the largest mean divergence that is allowed.
        perplexity: of the model in f32.
        found: the module's agreement.
        others: those of other engines that read the same file.
        remark: why there is no other engine; "" where there is one.
    """

    target: str
    tokens: int
    judged: int
    tolerance: float
    perplexity: float
    found: TextAgreement
    others: tuple[TextAgreement, ...] = ()
    remark: str = ""

    def __repr__(self) -> str:
        outcome = "agrees" if self.agrees else "does not agree"
        return (
            f"<TextVerification: {self.target} {outcome} with f32, KL divergence "
            f"{self.found.divergence:.2g}, tolerance {self.tolerance:g}, {self.judged} tokens>"
        )

    @property
    def agrees(self) -> bool:
        """Whether the module's mean divergence is within the tolerance; what is no number is
        not."""
        return self.found.divergence <= self.tolerance


def verify_text(
    module: Any,
    model: Any,
    *,
    text: str | None = None,
    tokens: int = TOKENS_READ,
    tolerance: float | None = None,
    device: DeviceName = "cpu",
    target: str | None = None,
    entry: str | None = None,
) -> TextVerification:
    """Lets a language module read a text, and compares its predictions with those in f32.

    What is compared with is the same file compiled with `activations="f32"` for this machine's CPU,
    which rounds keys and values to f16 alone; it can't see faults of the importer, which llama.cpp
    beside it does where llama-cpp-python is installed. A module that gives the logits of the last
    token only reads a piece of the text at once and the others token by token, as in a reply.

    Args:
        module: what was compiled, as `load` takes it; with a vocabulary, and of one sequence.
        model: the GGUF file that it was compiled from.
        text: that both read; by default the first pages of Pride and Prejudice.
        tokens: of the text that are read, as far as the module's context holds them.
        tolerance: the largest mean KL divergence that counts as agreement, in nats; by default
            DIVERGENCE.
        device: as `load` takes it.
        target: as `load` takes it.
        entry: as `load` takes it.

    Raises:
        CompileError: the model can't be compiled.
        RuntimeFailure: it is no language module, has no vocabulary, or the text is too short.
    """
    text = SAMPLE.read_text() if text is None else text
    with ExitStack() as stack:
        program = stack.enter_context(load(module, device, entry=entry, target=target))
        shape = language_program(program)
        ids = _ids(program, shape, text, tokens)
        exact = compile_model(
            model, targets=["host"], activations="f32", all_logits=True, context=len(ids)
        )
        wanted = stack.enter_context(load(exact, "cpu"))
        runs: dict[str, _Run] = {"aotc": lambda piece: np.asarray(program.run([piece])[0])}
        remark = _add_llama(runs, Path(model), len(ids))
        distances = {name: _Distance(ids) for name in runs}
        is_one = program.outputs[0].dims[0] == 1
        for at, piece in _pieces(ids, min(PIECE, shape.most)):
            expected = np.asarray(wanted.run([piece])[0])
            for name, run in runs.items():
                found, rows = _read(run, piece, is_one=is_one and name == "aotc", is_first=at == 0)
                distances[name].add(found, expected[rows], at + rows)
        variant = program.target
    ours, *others = (distance.agreement(name) for name, distance in distances.items())
    measured = distances["aotc"]
    return TextVerification(
        *(variant, len(ids), measured.count, DIVERGENCE if tolerance is None else tolerance),
        measured.expected_perplexity,
        ours,
        others=tuple(others),
        remark=remark,
    )


def can_verify_text(program: Program) -> bool:
    """Whether a program is one that `verify_text` takes."""
    try:
        Tokeniser(program)
        return language_program(program).sequences == 1
    except RuntimeFailure:
        return False


def _ids(program: Program, shape: LanguageProgram, text: str, most: int) -> NDArray[np.int32]:
    if shape.sequences > 1:
        raise RuntimeFailure(
            f"a text is read by one sequence, and the module has {shape.sequences}: compile the "
            "model without --sequences",
            "unsupported",
        )
    ids = raw_tokens(Tokeniser(program), text, is_first=True)
    ids = ids[: min(most, program.state_capacity)]
    if len(ids) < 2:
        raise RuntimeFailure(
            f"{len(ids)} token of the text is read, expected 2 at least", "argument"
        )
    return ids


def _add_llama(runs: dict[str, _Run], model: Path, context: int) -> str:
    """Adds llama.cpp to the engines; returns why it is left out, or "" where it is not."""
    oracle = ORACLES[LLAMA]
    if not oracle.is_installed:
        return f"{LLAMA} is not installed: pip install {oracle.package}"
    from aot.tools.llama_engine import open_llama

    try:
        opened = open_llama(model, context, all_logits=True)
    except CompileError as error:
        return str(error)
    runs[LLAMA] = lambda piece: opened({TOKENS: piece})[LOGITS]
    return ""


def _pieces(ids: NDArray[np.int32], size: int) -> Iterator[tuple[int, NDArray[np.int32]]]:
    for at in range(0, len(ids), size):
        yield at, ids[at : at + size]


def _read(
    run: _Run, piece: NDArray[np.int32], *, is_one: bool, is_first: bool
) -> tuple[Logits, NDArray[np.int64]]:
    """Runs one piece of the text: (logits f32[N, V], i64[N]: places of their tokens in the piece).

    With `is_one`, a run gives logits for its last token only; then each token is a run, except in
    the first piece."""
    every = np.arange(len(piece))
    if not is_one:
        return run(piece), every
    if is_first:
        return run(piece), every[-1:]
    return np.concatenate([run(piece[n : n + 1]).copy() for n in every]), every


def _log_probabilities(logits: Logits) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))


class _Distance:
    """How far an engine's predictions of a text are from the expected ones, piece by piece."""

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self._ids = ids
        self._divergences: list[float] = []
        self._same = 0
        self._surprise = [0.0, 0.0]  # of the text's next tokens: found, expected
        self._next = 0

    @property
    def count(self) -> int:
        return len(self._divergences)

    @property
    def expected_perplexity(self) -> float:
        return self._perplexity(1)

    def add(self, found: Logits, expected: Logits, at: NDArray[np.int64]) -> None:
        """Compares logits [N, V] behind the tokens number `at` of the text."""
        for row, number in enumerate(at):
            pair = [_log_probabilities(logits[row]) for logits in (found, expected)]
            with np.errstate(invalid="ignore"):
                terms = np.exp(pair[1]) * (pair[1] - pair[0])
            possible = np.isfinite(pair[1])  # a token that can't be has no term
            self._divergences.append(float(terms[possible].sum()))
            self._same += int(pair[0].argmax() == pair[1].argmax())
            if number + 1 < len(self._ids):
                self._next += 1
                for which, shares in enumerate(pair):
                    self._surprise[which] -= float(shares[self._ids[number + 1]])

    def agreement(self, engine: str) -> TextAgreement:
        each = np.asarray(self._divergences)
        return TextAgreement(
            engine,
            float(each.mean()),
            float(np.quantile(each, 0.99)),
            self._same / self.count,
            self._perplexity(0),
        )

    def _perplexity(self, which: int) -> float:
        return float(np.exp(self._surprise[which] / max(self._next, 1)))
