"""The prefix of a language module: a text that conversations begin with, and the state behind it.

Runs the compiled program on the prefix's tokens, once for each variant that this machine runs, and
puts text, tokens and states into the module's vocabulary. What a chat does with them is
`aot.text.generation`'s and runtime/text/chat.c's.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aot.base.records import dataclass
from aot.errors import CompileError, PrefixWarning, RuntimeFailure
from aot.ir import input_files
from aot.link.image import Device, ModuleImage, VariantImage
from aot.link.module import write_module
from aot.link.vocabulary import StoredPrefix, encode_vocabulary
from aot.options import Progress
from aot.runtime.loader import Program, load
from aot.runtime.text import Tokeniser
from aot.text.language_program import check_language_program, raw_tokens
from aot.text.vocabulary import Vocabulary

STATE_HEADER_BYTES = 48  # of a state file: runtime/state/state.c

# Messages that begin unlike each other: the tokens before all of them are those before any.
_MESSAGES = ("a", "Z", "1", " a", "\n", "\n\n", "\u00e9", ".", "<", "")
_CLOCKS = (0, 1 << 30)  # a template may write the date


@dataclass(frozen=True)
class Prefix:
    """The text of the option `prefix`.

    Attributes:
        path: of its file, for messages.
        text: without the line end that ends the file.
        vocabulary: the model's.
    """

    path: Path
    text: str
    vocabulary: Vocabulary

    @staticmethod
    def read(path: Path, vocabulary: Vocabulary | None) -> Prefix:
        """Reads the file of a prefix.

        Raises:
            CompileError: it cannot be read, is not UTF-8, or has no text; or the model is no
                language model.
        """
        if vocabulary is None:
            raise CompileError(
                "prefix: it is for language models, and the model has no vocabulary (a GGUF file "
                "has one)"
            )
        try:
            text = input_files.text(path)
        except UnicodeDecodeError as error:
            raise CompileError(f"prefix {path}: not UTF-8: byte {error.start} is wrong") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CompileError(f"cannot read prefix {path}: {reason.lower()}") from error
        text = text.removesuffix("\n").removesuffix("\r")
        if not text:
            raise CompileError(f"prefix {path}: it is empty")
        if "\0" in text:
            raise CompileError(f"prefix {path}: a zero character is in it")
        return Prefix(path, text, vocabulary)

    def put_into(
        self, image: ModuleImage, progress: Progress
    ) -> tuple[ModuleImage, dict[str, object]]:
        """(a module with this prefix, statistics of it).

        A variant that this machine does not run has no state, which is a `PrefixWarning`: programs
        of it run the prefix's tokens.

        Raises:
            CompileError: the module has several entry points or is no language model's; the chat
                template refuses the prefix, or the prefix is longer than the context.
        """
        tokeniser = Tokeniser(image.vocabulary, is_segment=True)
        is_raw = not tokeniser.keeps_chat
        _check_module(image, self)
        tokens = _tokens(tokeniser, self, is_raw=is_raw)
        for variant in image.variants:
            _check_room(variant, self, len(tokens))
        states: dict[str, bytes] = {}
        with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
            file = Path(folder) / "model.aotm"
            write_module(image, file)
            for variant in image.variants:
                state = _state(file, variant, tokens, self, progress)
                if state is not None:
                    states[variant.target] = state
        stored = StoredPrefix(self.text, is_raw, tuple(tokens.tolist()), states)
        facts = {
            "tokens": len(tokens),
            "state_bytes": {target: len(state) for target, state in states.items()},
        }
        return replace(image, vocabulary=encode_vocabulary(self.vocabulary, stored)), facts


def _check_module(image: ModuleImage, given: Prefix) -> None:
    entries = image.variants[0].entry_points
    if len(entries) > 1:
        names = ", ".join(e.name for e in entries)
        raise CompileError(
            f"prefix {given.path}: it is of one entry point, and the module has {names}; compile "
            "the models into files of their own"
        )


def _check_room(variant: VariantImage, given: Prefix, count: int) -> None:
    """Checks that a message fits behind the prefix."""
    growths = variant.entry_points[0].program.growths
    rows = [g.stride_bytes // g.row_bytes for g in growths if not g.window]
    capacity = min(rows, default=0)
    if growths and count >= capacity:
        raise CompileError(
            f"prefix {given.path}: it is {count} tokens, and the context holds {capacity}; shorten "
            "it, or compile the model with a longer --context"
        )


def _tokens(tokeniser: Tokeniser, given: Prefix, *, is_raw: bool) -> NDArray[np.int32]:
    """The tokens that each conversation with the prefix begins with."""
    try:
        if is_raw:
            return raw_tokens(tokeniser, given.text, is_first=True)
        found, needed = _shared_tokens(tokeniser, given)
    except RuntimeFailure as error:
        raise CompileError(f"prefix {given.path}: as the system message: {error}") from error
    if len(found) < needed:
        warnings.warn(
            f"prefix {given.path}: the chat template writes other text into it, such as the date: "
            f"the module has the state of its first {len(found)} tokens of {needed} only",
            PrefixWarning,
            stacklevel=2,
        )
    if not len(found):
        raise CompileError(f"prefix {given.path}: no token of it is the same in all conversations")
    return found


def _shared_tokens(tokeniser: Tokeniser, given: Prefix) -> tuple[NDArray[np.int32], int]:
    """(tokens that conversations with this system message begin with, how many there are up to the
    system message's end)."""
    known: list[list[int]] = []
    needed = 0
    for seconds in _CLOCKS:
        for message in _MESSAGES if seconds == 0 else _MESSAGES[:1]:
            messages = [
                {"role": "system", "content": given.text},
                {"role": "user", "content": message},
            ]
            variables = {"messages": messages, "add_generation_prompt": True}
            rendered = tokeniser.render(variables, seconds=seconds, is_strict=True)
            known.append(tokeniser.chat_tokens(rendered).tolist())
            end = rendered.marks.rfind(1) + 1
            head = replace(rendered, data=rendered.data[:end], marks=rendered.marks[:end])
            needed = max(len(tokeniser.chat_tokens(head)) - 1, 1)
    shared = 0
    while all(len(t) > shared and t[shared] == known[0][shared] for t in known):
        shared += 1
    return np.array(known[0][:shared], np.int32), needed


def _state(
    file: Path, variant: VariantImage, tokens: NDArray[np.int32], given: Prefix, progress: Progress
) -> bytes | None:
    """What a program of a variant keeps that has read the tokens; None where none runs here."""
    target = variant.target
    why = "the state of a program on a GPU cannot be saved"
    if variant.device is Device.CPU:
        try:
            program = load(file, target=target, threads="auto")
        except RuntimeFailure as error:
            why = str(error)
        else:
            with program:
                return _run(program, tokens, given, file.with_suffix(".state"), progress)
    warnings.warn(
        f"prefix {given.path}: the module has no state of it for target {target}, whose programs "
        f"compute it when a conversation begins: {why}",
        PrefixWarning,
        stacklevel=2,
    )
    return None


def _run(
    program: Program,
    tokens: NDArray[np.int32],
    given: Prefix,
    path: Path,
    progress: Progress,
) -> bytes:
    try:
        _, most = check_language_program(program)
        for begin in range(0, len(tokens), most):
            progress("prefix", begin, len(tokens))
            program.run([tokens[begin : begin + most]])
        if program.state_length != len(tokens):
            raise RuntimeFailure(
                f"a state of {program.state_length} rows is behind {len(tokens)} tokens"
            )
        program.save_state(path)
    except RuntimeFailure as error:
        raise CompileError(f"prefix {given.path}: {error}") from error
    state = path.read_bytes()[STATE_HEADER_BYTES:]
    path.unlink()
    return state
