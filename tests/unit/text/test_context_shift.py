"""A context shift forgets the older half of a full context; the model then answers as if it had
read the newer half alone."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.driver.prefix import Prefix
from aot.errors import RuntimeFailure
from aot.options import no_progress
from aot.runtime.loader import Program
from aot.runtime.text import Sampler
from tests.support.language_models import MOST, language_module, vocabulary
from tests.support.runtime_build import build_tool

CAPACITY = 24


@cache
def module(template: str = "") -> bytes:
    """A small language module, for raw text if `template` is empty. Token 7 ends replies, so a bias
    against it lets them go on."""
    return language_module(CAPACITY, template=template).to_bytes()


def endless(program: Program, **options: object) -> aot.Chat:
    sampler = Sampler(logit_bias={7: -np.inf})
    return aot.Chat(program, sampler=sampler, **options)  # type: ignore[arg-type]


def logits_behind(tokens: list[int]) -> np.ndarray:
    with aot.load(module()) as program:
        for first in range(0, len(tokens), MOST):
            (found,) = program.run([np.array(tokens[first : first + MOST], np.int32)])
    return np.array(found)


def test_a_reply_goes_on_behind_a_full_context() -> None:
    with aot.load(module()) as program:
        chat = endless(program, shifts_context=True)
        text = "".join(chat.reply("abcabc", max_tokens=60))
        assert (chat.last.stopped_by, chat.last.tokens) == ("tokens", 60)
        assert program.state_length <= CAPACITY
        read = list(chat._read)
        assert read[0] == 1 and len(read) == program.state_length
        with aot.load(module()) as other:
            whole = endless(other)
            assert text.startswith("".join(whole.reply("abcabc")))
            assert whole.last.stopped_by == "context"
        program.rewind(len(read) - 1)
        found = program.run([np.array(read[-1:], np.int32)])[0]
        np.testing.assert_array_equal(found, logits_behind(read))
        with pytest.raises(RuntimeFailure, match="^there is no message to take back$"):
            chat.undo()


def test_prompts_push_earlier_ones_out() -> None:
    with aot.load(module()) as program:
        chat = endless(program, shifts_context=True)
        for message in ("abc", "bca", "cab", "abc", "cba", "bbb"):
            "".join(chat.reply(message, max_tokens=5))
            assert len(chat._read) == program.state_length <= CAPACITY
        with pytest.raises(RuntimeFailure, match="the prompt is 3[0-9] tokens, and the context"):
            chat.reply("abc" * 10)
        assert "".join(chat.reply("abc", max_tokens=2))


TURNS = (
    "{% for m in messages %}<|s|>{{ 'u' if m.role == 'user' else 'y' }}{{ m.content }}<|e|>"
    "{% endfor %}<|s|>y"
)


def test_conversations_go_on_and_their_beginning_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "prefix.txt"
    path.write_text("cc")
    image = language_module(40, template=TURNS).image
    made, _ = Prefix.read(path, vocabulary(TURNS)).put_into(image, no_progress)
    with aot.load(aot.api.CompiledModule(made).to_bytes()) as program:
        chat = aot.Chat(program, shifts_context=True)
        prefix = chat.tokeniser.prefix
        assert prefix is not None
        for number in range(8):
            assert "".join(chat.reply("abca", max_tokens=6)).startswith("abc")
            assert tuple(chat._read[: len(prefix.tokens)]) == prefix.tokens
            assert (chat._forgotten > 0) == (number > 1)
        plain = aot.Chat(program)
        with pytest.raises(RuntimeFailure, match="the context holds 40, of which"):
            for _ in range(8):
                "".join(plain.reply("abca", max_tokens=6))


@pytest.mark.parametrize("template", ["", TURNS])
def test_aot_run_and_the_command_shift_alike(tmp_path: Path, template: str) -> None:
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "m.aotm"
    path.write_bytes(module(template))
    options = ["--max-tokens", "50", "--logit-bias", "7=-inf", "--context-shift", "--json"]
    command = [str(tool), str(path), "--prompt", "ab", *options]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    facts = json.loads(CliRunner().invoke(cli, ["generate", str(path), "ab", *options]).output)
    assert found.splitlines()[0] == facts["text"]
    own = json.loads(found.splitlines()[-1])
    for key in ("tokens", "stopped_by", "context_used"):
        assert own[key] == facts[key]
    assert own["tokens"] == 50
    run = CliRunner().invoke(cli, ["generate", str(path), "ab", "c", "--context-shift"])
    assert "--context-shift is of one conversation: give one prompt" in run.output
