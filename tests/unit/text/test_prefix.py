"""A prefix in a module: conversations begin behind its state, which is what runs would make."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.driver.prefix import Prefix
from aot.errors import CompileError, PrefixWarning, RuntimeFailure
from aot.link.image import ModuleImage
from aot.link.reader import read_module
from aot.link.vocabulary import StoredPrefix, encode_vocabulary
from aot.options import no_progress
from aot.runtime.text import Tokeniser
from tests.support.gguf_files import data as gguf_data
from tests.support.gguf_models import MODELS
from tests.support.language_models import FORGETS, REPLY, TEMPLATE, language_module, vocabulary
from tests.support.runtime_build import build_tool

SYSTEM = "bcab"
# The system message's tokens with what the template writes around them, and before a message's.
TOKENS = (0, 10, 2, 3, 1, 2, 7, 0, 9)


@cache
def plain(template: str = TEMPLATE) -> ModuleImage:
    return language_module(48, template=template).image


def with_prefix(
    folder: Path, text: str = SYSTEM, template: str = TEMPLATE, image: ModuleImage | None = None
) -> bytes:
    path = folder / "prefix.txt"
    path.write_text(text)
    given = Prefix.read(path, vocabulary(template))
    made, _ = given.put_into(image or plain(template), no_progress)
    return aot.api.CompiledModule(made).to_bytes()


def logits(program: Any) -> np.ndarray[Any, Any]:
    return np.array(program.run([np.array([1], np.int32)])[0])


def test_a_chat_begins_behind_the_state_of_the_prefix(tmp_path: Path) -> None:
    with aot.load(with_prefix(tmp_path)) as own, aot.load(bytes_of(plain())) as other:
        chat, whole = aot.Chat(own), aot.Chat(other, system=SYSTEM)
        for message in ("a", "cb"):
            assert list(chat.reply(message)) == list(whole.reply(message))
        assert chat.messages == whole.messages
        assert (chat.last.prefix_tokens, whole.last.prefix_tokens) == (0, 0)
        assert own.state_length == other.state_length
        np.testing.assert_array_equal(logits(own), logits(other))
        chat.reset()
        assert "".join(chat.reply("a")) == REPLY
        assert (chat.last.prefix_tokens, chat.last.prompt_tokens) == (len(TOKENS), 4)
        chat.undo()
        assert own.state_length == 0
        assert "".join(chat.reply("a", max_tokens=1)) == "a"
        assert chat.last.prefix_tokens == len(TOKENS)


def bytes_of(image: ModuleImage) -> bytes:
    return aot.api.CompiledModule(image).to_bytes()


def test_the_tokeniser_tells_of_it_and_loads_it(tmp_path: Path) -> None:
    module = with_prefix(tmp_path, SYSTEM + "\n")  # the line end of the file is no part of it
    with aot.load(module) as program, aot.load(bytes_of(plain())) as other:
        tokeniser = Tokeniser(program)
        assert tokeniser.prefix is not None
        assert (tokeniser.prefix.text, tokeniser.prefix.is_raw) == (SYSTEM, False)
        assert tokeniser.prefix.tokens == TOKENS
        program.run([np.array([3, 3], np.int32)])
        tokeniser.load_prefix(program)
        assert program.state_length == len(TOKENS)
        for first in range(0, len(TOKENS), 4):
            other.run([np.array(TOKENS[first : first + 4], np.int32)])
        np.testing.assert_array_equal(logits(program), logits(other))
        assert Tokeniser(other).prefix is None


def test_what_does_not_begin_with_it_is_computed(tmp_path: Path) -> None:
    with aot.load(with_prefix(tmp_path)) as program:
        assert "".join(aot.generate(program, "a")) == REPLY
        other = aot.Chat(program, system="a")
        assert "".join(other.reply("a")) == REPLY
        assert other.last.prefix_tokens == 0
        same = aot.Chat(program, system=SYSTEM)
        assert "".join(same.reply("a")) == REPLY
        assert same.last.prefix_tokens == len(TOKENS)
        raw = aot.Chat(program, is_raw=True)
        assert "".join(raw.reply("a", max_tokens=2)) == "bc"
        assert raw.last.prefix_tokens == 0


def test_several_prompts_each_begin_behind_it(tmp_path: Path) -> None:
    from aot.text.batch import Batch

    with aot.load(with_prefix(tmp_path)) as program:
        batch = Batch(program, ["a", "cb"])
        pieces: dict[int, str] = {0: "", 1: ""}
        for number, piece in batch.replies():
            pieces[number] += piece
        assert pieces == {0: REPLY, 1: REPLY}
        assert [made.prefix_tokens for made in batch.made] == [len(TOKENS)] * 2


def test_text_without_a_template_goes_on_behind_it(tmp_path: Path) -> None:
    with (
        aot.load(with_prefix(tmp_path, "abca", "", raw_image())) as own,
        aot.load(bytes_of(raw_image())) as other,
    ):
        chat, whole = aot.Chat(own), aot.Chat(other)
        assert list(chat.reply("b", max_tokens=3)) == list(whole.reply("abcab", max_tokens=3))
        assert (chat.last.prefix_tokens, chat.last.prompt_tokens) == (4, 1)
        assert list(chat.reply("b", max_tokens=3)) == list(whole.reply("b", max_tokens=3))
        np.testing.assert_array_equal(logits(own), logits(other))


@cache
def raw_image() -> ModuleImage:
    return language_module(48, template="").image


def test_aot_run_begins_behind_it(tmp_path: Path) -> None:
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    for name, text, template, image in (
        ("chat", SYSTEM, TEMPLATE, plain()),
        ("raw", "abca", "", raw_image()),
    ):
        module = tmp_path / f"{name}.aotm"
        module.write_bytes(with_prefix(tmp_path, text, template, image))
        command = [str(tool), str(module), "--prompt", "b", "--json", "--max-tokens", "4"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text_, facts = found.splitlines()[0], json.loads(found.splitlines()[-1])
        with aot.load(module) as program:
            chat = aot.Chat(program)
            assert "".join(chat.reply("b", max_tokens=4)) == text_
            assert facts["prefix_tokens"] == chat.last.prefix_tokens > 0
            assert facts["prompt_tokens"] == chat.last.prompt_tokens


def test_a_prompt_that_fails_leaves_the_state_empty(tmp_path: Path) -> None:
    with aot.load(with_prefix(tmp_path)) as program:
        chat = aot.Chat(program)
        with pytest.raises(RuntimeFailure, match="the prompt is 6[0-9] tokens, and the context"):
            chat.reply("ab" * 24)
        assert program.state_length == 0
        assert "".join(chat.reply("a")) == REPLY


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "prefix .*: it is empty$"),
        (b"\n", "prefix .*: it is empty$"),
        (b"a\xff", "prefix .*: not UTF-8: byte 1 is wrong$"),
        (b"a\0b", "prefix .*: a zero character is in it$"),
        (
            b"ab" * 24,
            "prefix .*: it is 53 tokens, and the context holds 48; shorten it, or compile the "
            "model with a longer --context$",
        ),
    ],
)
def test_what_is_no_prefix_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "prefix.txt"
    path.write_bytes(content)
    with pytest.raises(CompileError, match=message):
        Prefix.read(path, vocabulary()).put_into(plain(), no_progress)


def test_a_file_that_is_not_there_and_a_model_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="^cannot read prefix .*: no such file"):
        Prefix.read(tmp_path / "none", vocabulary())
    with pytest.raises(CompileError, match="^prefix: it is for language models"):
        Prefix.read(tmp_path / "none", None)


def test_a_template_that_leaves_it_out_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="as the system message: .*leaves it out$"):
        with_prefix(tmp_path, SYSTEM, FORGETS)


def test_the_prefix_of_another_module_is_refused(tmp_path: Path) -> None:
    with aot.load(with_prefix(tmp_path)) as one, aot.load(with_prefix(tmp_path, "ab")) as other:
        one.run([np.array([1, 2], np.int32)])
        with pytest.raises(RuntimeFailure, match="^the prefix of another module"):
            Tokeniser(other).load_prefix(one)
        assert one.state_length == 2


def test_a_module_without_one_says_so() -> None:
    with aot.load(bytes_of(plain())) as program, pytest.raises(RuntimeFailure) as caught:
        Tokeniser(program).load_prefix(program)
    assert str(caught.value) == "the module was compiled without a prefix"


def test_a_state_that_no_run_leaves_is_refused(tmp_path: Path) -> None:
    """And chats compute what it stands for."""
    target = plain().variants[0].target
    for state in (b"", b"\xff" * 8, bytes(8), (5).to_bytes(8, "little") + bytes(20)):
        stored = StoredPrefix(SYSTEM, False, TOKENS, {target: state})
        image = replace(plain(), vocabulary=encode_vocabulary(vocabulary(), stored))
        with aot.load(bytes_of(image)) as program:
            with pytest.raises(RuntimeFailure, match="no run leaves such a state"):
                Tokeniser(program).load_prefix(program)
            chat = aot.Chat(program)
            assert "".join(chat.reply("a")) == REPLY
            assert (chat.last.prefix_tokens, chat.last.prompt_tokens) == (0, len(TOKENS) + 4)


def test_a_target_that_does_not_run_here_has_none(tmp_path: Path) -> None:
    image = language_module(48, target="riscv64-v").image
    path = tmp_path / "prefix.txt"
    path.write_text(SYSTEM)
    with pytest.warns(PrefixWarning, match="no state of it for target riscv64-v, whose prog"):
        made, facts = Prefix.read(path, vocabulary()).put_into(image, no_progress)
    assert facts == {"tokens": len(TOKENS), "state_bytes": {}}
    assert Tokeniser(made.vocabulary, is_segment=True).prefix is not None


DATED = "{{ 'a' if strftime_now('%Y') < '2000' else 'b' }}" + TEMPLATE


def test_a_template_that_writes_the_date_leaves_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "prefix.txt"
    path.write_text(SYSTEM)
    image = language_module(48, template=DATED).image
    with (
        pytest.raises(CompileError, match="no token of it is the same in all conversations"),
        pytest.warns(PrefixWarning, match="such as the date"),
    ):
        Prefix.read(path, vocabulary(DATED)).put_into(image, no_progress)


def gguf_model(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A GGUF file of a small llama with letters as tokens, and no chat template."""
    shape = MODELS["llama"]
    letters = ["<unk>", "<s>", "</s>", "\u2581", *map(chr, range(97, 123))]
    tokens = [*letters, *(f"<{n}>" for n in range(shape.vocabulary - len(letters)))]
    named = gguf.GGUFWriter.add_tokenizer_model

    def add(writer: gguf.GGUFWriter, _: str) -> None:
        named(writer, "llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(n) for n in range(len(tokens))])
        writer.add_token_types([2, 3, 3, *[1] * (len(tokens) - 3)])

    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_model", add)
    return gguf_data(shape)


def test_the_command_compiles_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prefix, output = tmp_path / "m.gguf", tmp_path / "p.txt", tmp_path / "m.aotm"
    model.write_bytes(gguf_model(monkeypatch))
    prefix.write_text("abba")
    runner = CliRunner()
    command = ["compile", str(model), "-o", str(output), "--prefix", str(prefix)]
    made = runner.invoke(cli, command)
    assert made.exit_code == 0, made.output
    facts = json.loads(runner.invoke(cli, ["inspect", str(output), "--json"]).output)
    prefix_facts = facts["vocabulary"]["prefix"]
    assert (prefix_facts["text"], prefix_facts["is_raw"]) == ("abba", True)
    assert list(prefix_facts["state_bytes"]) == [facts["variants"][0]["target"]]
    shown = runner.invoke(cli, ["inspect", str(output)]).output
    assert f"prefix: {prefix_facts['tokens']} tokens, text to continue: abba" in shown
    again = runner.invoke(cli, [*command[:3], str(tmp_path / "again.aotm"), *command[4:]])
    assert again.exit_code == 0
    assert (tmp_path / "again.aotm").read_bytes() == output.read_bytes()
    said = runner.invoke(cli, ["generate", str(output), "a", "--max-tokens", "2", "--json"])
    assert json.loads(said.output)["prefix_tokens"] == prefix_facts["tokens"]


def test_a_module_with_one_is_not_merged(tmp_path: Path) -> None:
    module = with_prefix(tmp_path)
    with pytest.raises(CompileError, match="has a prefix, which is of a module with one entry"):
        aot.merge({"a": module, "b": module})
    assert read_module(module).vocabulary
