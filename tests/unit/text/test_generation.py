"""Text from a language module, in Python, in the command and in aot-run: one loop, and one error
for whatever can't be."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.errors import RuntimeFailure, TemplateWarning
from aot.packaging import PackageOptions, package
from aot.packaging.executable import ExecutableOptions
from aot.runtime.loader import Program
from aot.text.batch import Batch
from aot.text.language_program import check_language_program
from tests.support.control_lowering import program
from tests.support.control_sources import CACHE
from tests.support.language_models import (
    FORGETS,
    LEFT_OUT,
    MOST,
    NO_ROWS,
    NOT_KEPT,
    REPLY,
    TOKENS,
    UNKEPT,
    language_module,
    without_rows,
)
from tests.support.paths import ROOT
from tests.support.runtime_build import build, build_tool, library_sources


@cache
def data(context: int = 16) -> bytes:
    return language_module(context).to_bytes()


@cache
def forgetting() -> bytes:
    return language_module(40, template=FORGETS).to_bytes()


@cache
def unkept() -> bytes:
    with pytest.warns(TemplateWarning):
        return language_module(16, template=UNKEPT).to_bytes()


@pytest.fixture
def loaded() -> Iterator[Program]:
    with aot.load(data(32)) as found:
        yield found


def test_a_reply_comes_in_pieces_of_whole_characters(loaded: Program) -> None:
    assert list(aot.generate(loaded, "a")) == ["a", "b", "c", " ", "\u00e9"]
    assert list(aot.generate(loaded, b"a", max_tokens=2)) == ["a", "b"]
    # a character that was cut off is not made up
    assert "".join(aot.generate(loaded, "a", max_tokens=5)) == "abc \ufffd"


def test_a_chat_keeps_the_conversation_and_makes_no_plan_for_it(loaded: Program) -> None:
    chat = aot.Chat(loaded)
    assert "".join(chat.reply("ab")) == REPLY
    assert chat.last.stopped_by == "end"
    assert (chat.last.prompt_tokens, chat.last.tokens) == (7, 6)
    assert loaded.state_length == 13  # the token that ended the reply was not run
    plans = loaded.prepare_count
    assert plans <= 3  # pieces of four tokens, of three, and one by one
    assert "".join(chat.reply("ab")) == REPLY
    assert chat.last.prompt_tokens == 8  # what ends the reply before comes first
    assert loaded.prepare_count == plans
    assert [m["role"] for m in chat.messages] == ["user", "assistant"] * 2
    tokens = np.array([0, 9, 1, 2, 7, 0, 10, 1, 2, 3, 4, 5, 6, 7] * 2, np.int32)[:27]
    again = expected_logits(tokens)
    chat.program.rewind(26)
    np.testing.assert_array_equal(loaded.run([tokens[26:]])[0], again)
    chat.reset()
    assert (loaded.state_length, chat.messages) == (0, [])


def test_a_reply_that_was_cut_off_is_remembered(loaded: Program) -> None:
    chat = aot.Chat(loaded)
    assert "".join(chat.reply("a", max_tokens=2)) == "ab"
    assert loaded.state_length == 7  # b is run with what comes next
    assert "".join(chat.reply("c", max_tokens=1)) == "a"
    assert (chat.last.prompt_tokens, loaded.state_length) == (8, 15)
    chat.undo()
    assert (loaded.state_length, len(chat.messages)) == (7, 2)
    assert "".join(chat.reply("c", max_tokens=1)) == "a"
    tokens = [0, 9, 1, 7, 0, 10, 1, 2, 7, 0, 9, 3, 7, 0, 10, 1]
    chat.settle()
    assert loaded.state_length == len(tokens)
    loaded.rewind(15)
    again = expected_logits(np.array(tokens, np.int32))
    np.testing.assert_array_equal(loaded.run([np.array([1], np.int32)])[0], again)
    chat.reset()
    with pytest.raises(RuntimeFailure, match="^there is no message to take back$"):
        chat.undo()


def names(*tokens: int) -> str:
    return "".join(TOKENS[t] for t in tokens).replace("\u0120", " ")


@pytest.mark.parametrize(
    "stop",
    [["c"], ["b", "ab"], ["c \u00e9"], ["bcd", "\u00e9"], [" \u00e9!", "abd"], ["bc", "abcd"]],
)
def test_stop_strings_end_a_reply_wherever_tokens_cut_them(
    loaded: Program, stop: list[str]
) -> None:
    """The text ends where the first of them begins that the tokens have made whole."""
    expected = REPLY
    for end in range(len(REPLY) + 1):
        places = [REPLY[:end].find(text) for text in stop if text in REPLY[:end]]
        if places:
            expected = REPLY[: min(places)]
            break
    chat = aot.Chat(loaded)
    assert "".join(chat.reply("a", stop=stop)) == expected
    assert chat.last.stopped_by == ("end" if expected == REPLY else "stop")
    assert chat.messages[-1]["content"] == expected
    assert "".join(chat.reply("a")) == REPLY  # the conversation goes on behind what was said
    replies = {0: "", 1: ""}
    for number, piece in aot.generate(loaded, ["a", "b"], stop=stop):
        replies[number] += piece
    assert replies == {0: expected, 1: expected}


def test_what_waits_for_a_stop_string_is_not_lost(loaded: Program) -> None:
    chat = aot.Chat(loaded)
    assert list(chat.reply("a", max_tokens=3, stop=["bcx"])) == ["a", "bc"]
    assert chat.last.stopped_by == "tokens"
    assert list(chat.reply("a", stop=["bcx"])) == ["a", "bc ", "\u00e9"]


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ([""], "stop string 1 has 0 bytes, expected 1 to 1024"),
        (["a", "b" * 1025], "stop string 2 has 1025 bytes, expected 1 to 1024"),
        (["a\0"], "a stop string has a zero character: b'a\\x00'"),
        (["\ud800"], "stop string 1 is not UTF-8: byte 0 is 0xed"),
        ("ab", "expected a list of stop strings, not the text 'ab'"),
    ],
)
def test_a_stop_string_that_is_none_leaves_the_conversation(
    loaded: Program, stop: list[str], message: str
) -> None:
    chat = aot.Chat(loaded)
    "".join(chat.reply("a"))
    length = loaded.state_length
    with pytest.raises(RuntimeFailure) as failure:
        chat.reply("b", stop=stop)
    assert str(failure.value) == message
    assert (loaded.state_length, len(chat.messages)) == (length, 2)


def test_logprobs(loaded: Program) -> None:
    chat = aot.Chat(loaded)
    assert "".join(chat.reply("a", logprobs=3)) == REPLY
    assert [one.token for one in chat.last.logprobs] == [1, 2, 3, 4, 5, 6]  # and not what ended it
    total = np.log(np.e + len(TOKENS) - 1)  # one logit is 1, the others are 0
    for one in chat.last.logprobs:
        assert one.logprob == pytest.approx(1 - total, abs=1e-4)
        assert one.top[0] == (one.token, one.logprob)
        assert [x for _, x in one.top[1:]] == pytest.approx([-total, -total], abs=1e-4)
    "".join(chat.reply("a"))
    assert chat.last.logprobs == []


def test_biases_penalties_and_seeds(loaded: Program) -> None:
    assert "".join(aot.generate(loaded, "a", logit_bias={2: -np.inf}, max_tokens=2)) == "a<|s|>"[:1]
    assert "".join(aot.generate(loaded, "a", logit_bias={7: 9.0})) == ""
    for options, message in (
        ({"logit_bias": {14: 1.0}}, "a bias is of token 14, expected 0 to 13"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616, expected 0 to 2^64 - 1"),
        (
            {"dry_multiplier": 1.0, "dry_breakers": ["\u2620"]},
            'the DRY breaker "\u2620" is in no token',
        ),
    ):
        with pytest.raises(RuntimeFailure, match=f"^{re.escape(message)}$"):
            aot.generate(loaded, "a", **options)


def test_a_template_that_forgets_is_asked_what_it_writes() -> None:
    """The program is rewound to where the conversation is another one now, and has then read what
    the template writes of all of it; taking back goes behind that."""
    with aot.load(forgetting()) as loaded:
        chat = aot.Chat(loaded)
        assert "".join(chat.reply("ab")) == REPLY
        assert (chat.last.prompt_tokens, loaded.state_length) == (7, 13)
        assert "".join(chat.reply("c")) == REPLY
        # <s>uab<e><s>yab stays, and <e><s>uc<e><s>y is read; then the reply
        assert (chat.last.prompt_tokens, loaded.state_length) == (7, 9 + 7 + 6)
        assert names(*chat._read) == "<|s|>uab<|e|><|s|>yab<|e|><|s|>uc<|e|><|s|>yabc \u00c3\u00a9"
        tokens = np.array(chat._read, np.int32)
        again = expected_logits_of(forgetting(), tokens)
        loaded.rewind(len(tokens) - 1)
        np.testing.assert_array_equal(loaded.run([tokens[-1:]])[0], again)
        chat.undo()
        assert loaded.state_length == 9
        assert "".join(chat.reply("c")) == REPLY
        assert (chat._read, loaded.state_length) == (tokens.tolist(), 22)


def test_windows_that_have_moved_on_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with aot.load(forgetting()) as loaded:
        chat = aot.Chat(loaded)
        "".join(chat.reply("ab"))

        def rewind(_: int) -> None:
            raise RuntimeFailure("cannot rewind", "unsupported")

        monkeypatch.setattr(loaded, "rewind", rewind)
        assert "".join(chat.reply("c")) == REPLY
        assert (chat.last.prompt_tokens, loaded.state_length) == (9 + 7, 22)


def test_variables_of_the_chat_template() -> None:
    with aot.load(forgetting()) as loaded:
        assert "".join(aot.generate(loaded, "a", variables={"long": True})) == REPLY
        assert loaded.state_length == 14
        assert "".join(aot.generate(loaded, "a", variables={"long": False})) == REPLY
        assert loaded.state_length == 12
        for how in ({"variables": {"a": 1}}, {"system": "a"}):
            with pytest.raises(RuntimeFailure, match="raw text has none$"):
                aot.generate(loaded, "a", is_raw=True, **how)
        with pytest.raises(RuntimeFailure) as caught:
            aot.generate(loaded, ["a"], system="c")
        assert str(caught.value) == LEFT_OUT
    for text, message in (("[1]", "expected a JSON object"), ("{", "no JSON: ")):
        found = CliRunner().invoke(cli, ["generate", "x", "a", "--variables", text])
        assert found.exit_code == 2 and f"--variables: {message}" in found.output


def test_a_template_that_is_not_kept_is_no_raw_prompt(tmp_path: Path) -> None:
    path = tmp_path / "chat.aotm"
    path.write_bytes(unkept())
    tool = build_tool()
    with aot.load(unkept()) as loaded:
        for prompt in ("a", ["a", "b"]):
            with pytest.raises(RuntimeFailure) as caught:
                list(aot.generate(loaded, prompt))  # type: ignore[call-overload]
            assert str(caught.value) == NOT_KEPT
        assert "".join(aot.generate(loaded, "a", is_raw=True)) == REPLY[1:]
    if tool is None:
        pytest.skip("gcc is not installed")
    for arguments, code, out, message in (
        ((), 1, "", NOT_KEPT),
        (("--raw",), 0, f"{REPLY[1:]}\n", ""),
        (("--raw", "--system", "a"), 1, "", "raw text has none"),
        (("--raw", "--variables", "{}"), 1, "", "raw text has none"),
    ):
        command = [tool, path, "--prompt", "a", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (found.returncode, found.stdout) == (code, out)
        assert message in found.stderr


def test_a_system_message_begins_a_conversation(tmp_path: Path) -> None:
    """Behind a state that has one it is not dropped, but refused; so it is by a template that
    knows none."""
    path, state = tmp_path / "chat.aotm", tmp_path / "s"
    path.write_bytes(data(32))
    tool = build_tool()
    run = CliRunner()
    run.invoke(cli, ["generate", str(path), "a", "--max-tokens", "1", "--save-state", str(state)])
    options = ["--load-state", str(state), "--system", "b"]
    found = run.invoke(cli, ["generate", str(path), "a", *options])
    words = "a system message begins a conversation, and the state has one already"
    assert str(found.exception) == words
    path.write_bytes(forgetting())
    if tool is None:
        pytest.skip("gcc is not installed")
    command = [tool, path, "--prompt", "a", "--system", "b"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1 and LEFT_OUT in told.stderr
    command = [tool, path, "--prompt", "a", "--variables", '{"long": true}', "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(told.stdout.splitlines()[1])["context_used"] == 14
    command[5] = "[]"
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "the variables of the chat template are no JSON object" in told.stderr


def expected_logits(tokens: np.ndarray) -> np.ndarray:
    return expected_logits_of(data(32), tokens)


def expected_logits_of(module: bytes, tokens: np.ndarray) -> np.ndarray:
    """Of a program that sees the tokens one by one."""
    with aot.load(module) as other:
        for token in tokens:
            (logits,) = other.run([np.array([token], np.int32)])
    return logits


def test_what_a_user_writes_names_no_control_token(loaded: Program) -> None:
    chat = aot.Chat(loaded)
    tokens = chat._prompt("<|e|>").tolist()
    assert [TOKENS[t] for t in tokens if t in (0, 7)] == ["<|s|>", "<|e|>", "<|s|>"]
    system = aot.Chat(loaded, system="c")
    assert system._prompt("a").tolist() == [0, 10, 3, 7, 0, 9, 1, 7, 0, 10]


def test_raw_text_goes_on(loaded: Program) -> None:
    assert "".join(aot.generate(loaded, "a", is_raw=True)) == REPLY[1:]


def test_a_reply_ends_where_the_context_does() -> None:
    with aot.load(data(8)) as loaded:
        chat = aot.Chat(loaded)
        assert "".join(chat.reply("a")) == "abc"
        assert chat.last.stopped_by == "context"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            "aaaaaaaa",
            "the prompt is 13 tokens, and the context holds 8; shorten it, or compile the model "
            "with a longer --context",
        ),
        (b"a\xff", "the prompt is not UTF-8: byte 1 is wrong"),
        ("a\ud800", "the prompt is not UTF-8: byte 1 is wrong"),
    ],
)
def test_what_is_no_prompt_leaves_the_conversation(prompt: str | bytes, message: str) -> None:
    with aot.load(data(8)) as loaded:
        chat = aot.Chat(loaded)
        with pytest.raises(RuntimeFailure) as caught:
            chat.reply(prompt)
        assert str(caught.value) == message
        assert (loaded.state_length, chat.messages) == (0, [])
        assert "".join(chat.reply("a")) == "abc"


def test_a_module_that_is_no_language_model_is_refused() -> None:
    with program(CACHE) as loaded, pytest.raises(RuntimeFailure) as caught:
        aot.generate(loaded, "a")
    assert str(caught.value) == (
        'entry point "main" is no language model\'s: it takes new: f32[1, n, 2], w: f32[2], '
        "expected one input, tokens i32[T]"
    )


def test_logits_without_rows_choose_nothing() -> None:
    for sequences in (1, 2):
        file = without_rows(language_module(16, sequences=sequences).to_bytes())
        with aot.load(file) as program, pytest.raises(RuntimeFailure) as caught:
            list(Batch(program, ["a"]).replies())
        assert (str(caught.value), caught.value.status) == (NO_ROWS, "shape")
    with aot.load(without_rows(data(16))) as program, pytest.raises(RuntimeFailure) as caught:
        list(aot.Chat(program).reply("a"))
    assert (str(caught.value), caught.value.status) == (NO_ROWS, "shape")


def test_what_a_language_model_gives_and_keeps(loaded: Program) -> None:
    """A program that is one in all but one respect."""

    class Other:
        def __init__(self, **changes: Any) -> None:
            self.__dict__.update(changes)

        def __getattr__(self, name: str) -> Any:
            return getattr(loaded, name)

    for changes, fault in (
        ({"outputs": ()}, "it gives nothing, expected one output, logits f32[N, V]"),
        (
            {"state_capacity": 0},
            "it has no state that grows, expected keys and values",
        ),
    ):
        with pytest.raises(RuntimeFailure) as caught:
            check_language_program(Other(**changes))  # type: ignore[arg-type]
        assert str(caught.value) == f'entry point "main" is no language model\'s: {fault}'
    assert check_language_program(Other()) == (1, MOST)  # type: ignore[arg-type]


def test_a_prompt_of_nothing_is_refused(loaded: Program) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        aot.generate(loaded, "", is_raw=True)
    assert str(caught.value) == "the prompt has no tokens"


def test_a_run_that_fails_leaves_the_state(
    loaded: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = aot.Chat(loaded)
    "".join(chat.reply("a"))
    length = loaded.state_length

    def run(*_: Any) -> Any:
        raise RuntimeFailure("the device is gone", "device")

    with monkeypatch.context() as patch:
        patch.setattr(chat, "_run", run)
        with pytest.raises(RuntimeFailure, match="^the device is gone$"):
            "".join(chat.reply("b"))
    assert loaded.state_length == length
    assert "".join(chat.reply("a"))


def test_a_program_of_one_file_replies(tmp_path: Path) -> None:
    """Without a module beside it, and without Python."""
    path = tmp_path / "chat.aotm"
    path.write_bytes(data(32))
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    options = PackageOptions((), "chat", ExecutableOptions("gcc"))
    made = package(path, "executable", tmp_path / "made", options)
    command = [made.folder / "chat", "--prompt", "a"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{REPLY}\n", "")


def test_sources_of_a_language_model_have_what_text_needs(tmp_path: Path) -> None:
    path = tmp_path / "chat.aotm"
    path.write_bytes(data(32))
    made = package(path, "source", tmp_path / "made", PackageOptions())
    text = [name for name in made.files if name.startswith("text/")]
    facts = (made.folder / "package.cmake").read_text()
    assert "text/encoder.h" in text
    assert all(f"  {name}\n" in facts for name in text if name.endswith(".c"))


def test_the_command_and_aot_run_write_the_same(tmp_path: Path) -> None:
    path = tmp_path / "chat.aotm"
    path.write_bytes(data(32))
    run = CliRunner()
    found = run.invoke(cli, ["generate", str(path), "a"])
    assert (found.exit_code, found.output) == (0, f"{REPLY}\n")
    found = run.invoke(cli, ["generate", str(path), "--json"], input=b"a")
    facts = json.loads(found.output)
    assert facts["text"] == REPLY
    assert (facts["prompt_tokens"], facts["tokens"], facts["stopped_by"]) == (6, 6, "end")
    assert (facts["context"], facts["context_used"]) == (32, 12)
    found = run.invoke(cli, ["generate", str(path), "a" * 40])
    assert str(found.exception).startswith("the prompt is 45 tokens, and the context holds 32;")


def several() -> bytes:
    return language_module(16, sequences=2).to_bytes()


def test_several_prompts_are_replied_to_at_once_or_in_turn() -> None:
    """The reply goes on from the prompt's last token; sequences of unlike lengths end together."""
    prompts = ["a", b"abcab", "ab"]
    with aot.load(several()) as loaded:
        pieces = list(aot.generate(loaded, prompts))
        assert [n for n, _ in pieces] == [0, 1] * 5 + [2] * 5
        assert loaded.state_length == 13
        assert "".join(aot.generate(loaded, "a")) == REPLY
        cut = list(aot.generate(loaded, prompts[:2], max_tokens=5))  # half a character
        assert cut[-2:] == [(0, "\ufffd"), (1, "\ufffd")]
        raw = list(aot.generate(loaded, ["a", "b"], is_raw=True))
        assert ["".join(p for n, p in raw if n == k) for k in (0, 1)] == [REPLY[1:], REPLY[2:]]
        with pytest.raises(RuntimeFailure, match="the prompt is 17 tokens, and the context holds"):
            aot.generate(loaded, ["a", "a" * 12])
        with pytest.raises(RuntimeFailure) as caught:
            aot.Chat(loaded)
        assert str(caught.value) == (
            'entry point "main" continues 2 texts at once: give `aot.generate` a list of prompts, '
            "or compile the model without --sequences"
        )
    with aot.load(data(32)) as loaded:
        alone = list(aot.generate(loaded, prompts))
        assert [n for n, _ in alone] == [0] * 5 + [1] * 5 + [2] * 5
        assert sorted(alone) == sorted(pieces)


def test_a_context_that_ends_all_sequences() -> None:
    with aot.load(several()) as loaded:
        batch = Batch(loaded, ["a" * 9, "a"])
        texts = ["", ""]
        for number, piece in batch.replies():
            texts[number] += piece
        assert texts == ["abc", "abc"]
        assert [made.stopped_by for made in batch.made] == ["context"] * 2


def test_the_command_replies_to_several_prompts(tmp_path: Path) -> None:
    path = tmp_path / "chat.aotm"
    path.write_bytes(several())
    run = CliRunner()
    found = run.invoke(cli, ["generate", str(path), "a", "ab", "b"])
    assert (found.exit_code, found.output) == (
        0,
        f"1.\n{REPLY}\n2.\n{REPLY}\n3.\n{REPLY}\n",
    )
    found = run.invoke(cli, ["generate", str(path), "a", "--json"])
    facts = json.loads(found.output)
    assert facts["replies"] == [
        {"text": REPLY, "stopped_by": "end", "prefix_tokens": 0, "prompt_tokens": 6, "tokens": 6}
    ]
    assert run.invoke(cli, ["generate", str(path)], input=b"a").output == f"{REPLY}\n"
    found = run.invoke(cli, ["generate", str(path), "a", "--save-state", "s"])
    assert "a state is of one conversation: give one prompt" in found.output
    path.write_bytes(language_module(200, sequences=2).to_bytes())
    found = run.invoke(cli, ["bench", str(path), "--generate", "--rounds", "1"])
    assert ", then 24 one by one, 2 texts at once; context 200, " in found.output


def test_aot_run_writes_what_python_does(tmp_path: Path) -> None:
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    path, state = tmp_path / "chat.aotm", tmp_path / "s"
    path.write_bytes(data(32))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [tool, path, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert run("--prompt", "a").stdout == f"{REPLY}\n"
    assert run("--prompt", "a", "--raw").stdout == f"{REPLY[1:]}\n"
    text, facts = run("--prompt", "a", "--max-tokens", "5", "--json").stdout.splitlines()
    assert text == "abc \ufffd"
    found = json.loads(facts)
    assert (found["prompt_tokens"], found["tokens"], found["context_used"]) == (6, 5, 10)
    assert run("--prompt", "a", "--stop", "x", "--stop", "c ").stdout == "ab\n"
    assert run("--prompt", "a", "--logit-bias", "2=-inf", "--max-tokens", "1").stdout == "a\n"
    assert run("--prompt", "a", "--logit-bias", "7=9").stdout == "\n"
    *lines, facts = run("--prompt", "a", "--logprobs", "2", "--json").stdout.splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert [one["token"] for one in told] == [1, 2, 3, 4, 5, 6]
    assert all(one["top"][0] == {key: one[key] for key in ("token", "logprob")} for one in told)
    assert json.loads(facts)["stopped_by"] == "end"
    assert run("--prompt", "a", "--max-tokens", "1", "--save-state", str(state)).stdout == "a\n"
    _, facts = run("--prompt", "b", "--load-state", str(state), "--json").stdout.splitlines()
    assert json.loads(facts)["context_used"] == 7 + 7 + 6
    command = ["generate", str(path), "b", "--load-state", str(state), "--json"]
    assert json.loads(CliRunner().invoke(cli, command).output)["context_used"] == 7 + 7 + 6
    for arguments, message in (
        (("--prompt", "a", "--stop", ""), "stop string 1 has 0 bytes, expected 1 to 1024"),
        (("--prompt", "a", "--logit-bias", "14=1"), "a bias is of token 14, expected 0 to 13"),
        (("--prompt", "a", "--typical-p", "2"), "typical_p is 2, expected 0 to 1"),
        (("--prompt", "a" * 40), "the prompt is 45 tokens, and the context holds 32, of which 0"),
        (("--prompt", "a", "--system", "b", "--load-state", str(path)), "is not a state file"),
    ):
        failed = run(*arguments)
        assert failed.returncode == 1
        assert message in failed.stderr


def test_a_state_file_is_a_prompt_that_was_paid_for(tmp_path: Path) -> None:
    path, state = tmp_path / "chat.aotm", tmp_path / "s"
    path.write_bytes(data(32))
    run = CliRunner()
    found = run.invoke(
        cli, ["generate", str(path), "a", "--max-tokens", "1", "--save-state", str(state)]
    )
    assert (found.exit_code, found.output) == (0, "a\n")
    found = run.invoke(cli, ["generate", str(path), "b", "--load-state", str(state), "--json"])
    facts = json.loads(found.output)
    assert facts["text"] == REPLY
    # <|s|> u a <|e|> <|s|> y, and a; <|e|> <|s|> u b <|e|> <|s|> y, and all of the reply
    assert (facts["prompt_tokens"], facts["context_used"]) == (7, 7 + 7 + 6)
    assert facts["prompt_tokens"] > MOST


def test_the_sample_talks(loaded: Program, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("chat", ROOT / "samples" / "05-chat" / "run.py")
    assert spec is not None and spec.loader is not None
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    converse = sample.converse
    chat = aot.Chat(loaded)
    converse(chat, ["a\n", "/undo\n", "a" * 40 + "\n", "b\n", "/reset\n", "\n", "a\n"])
    assert capsys.readouterr().out == (
        f"{REPLY}\n> > (the prompt is 45 tokens, and the context holds 32; shorten it, or compile "
        f"the model with a longer --context)\n> {REPLY}\n> > "
    )
    assert (chat.messages, loaded.state_length) == ([], 0)
    converse(chat, ["a\n", "\n"], stop=["c "])
    assert capsys.readouterr().out == "ab\n> "


def test_generation_is_timed_by_threads(tmp_path: Path) -> None:
    path = tmp_path / "chat.aotm"
    path.write_bytes(data(200))
    run = CliRunner()
    command = ["bench", str(path), "--generate", "--threads", "2", "--rounds", "1"]
    found = run.invoke(cli, [*command, "--json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.output)
    assert [row["threads"] for row in rows] == [1, 2]
    assert all(row["prompt_tokens_per_s"] > 0 < row["decode_tokens_per_s"] for row in rows)
    machine, text = run.invoke(cli, command).output.split("\n", 1)
    assert " cores, " in machine or " core, " in machine
    assert text.startswith("128 tokens of a prompt, then 24 one by one; context 200, arena ")
    path.write_bytes(data(32))
    found = run.invoke(cli, command)
    assert str(found.exception) == "128 tokens and 24 more: the context holds 32"


def test_the_sample_in_c_replies(tmp_path: Path) -> None:
    source = ROOT / "samples" / "05-chat" / "chat.c"
    tool = build("chat", [source, *library_sources()], ["-O1"], libraries=["-lpthread", "-lm"])
    if tool is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "chat.aotm"
    path.write_bytes(language_module(16, most=16).to_bytes())
    command = [tool, path, "a"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == f"{REPLY}\n"
    command = [tool, path, "a" * 20]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == (
        "the prompt is 25 tokens, and the context holds 16, of which 0 are in use"
    )
