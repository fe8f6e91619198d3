"""Language models in packages for browsers and Node: replies, conversations and what is refused."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.errors import RuntimeFailure, TemplateWarning
from aot.link.module import module_bytes
from aot.link.reader import read_module
from aot.link.vocabulary import StoredPrefix, encode_vocabulary
from aot.runtime import loader
from aot.runtime.text import Tokeniser
from aot.text import gguf
from tests.support.browser import BROWSER, told_by_browser
from tests.support.chat_templates import CONVERSATIONS, TEMPLATES
from tests.support.jinja_oracle import SECONDS
from tests.support.language_models import (
    FORGETS,
    LEFT_OUT,
    NO_ROWS,
    NOT_KEPT,
    REPLY,
    TEMPLATE,
    UNKEPT,
    language_module,
    vocabulary,
    without_rows,
)
from tests.support.node import make_package, require_node, run_node
from tests.support.package_models import save_module
from tests.support.paths import ROOT
from tests.support.runtime_api import library_path
from tests.support.text_runtime import opened
from tests.support.vocabularies import trained_metadata

NODE_CONVERSATIONS = ROOT / "tests" / "support" / "node_conversations.mjs"


@pytest.fixture(scope="module", autouse=True)
def use_built_library() -> Any:
    """The library of this checkout, not an installed one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))
        yield


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's JavaScript file; the state holds 40 tokens, a call takes 4."""
    require_node()
    path = tmp_path_factory.mktemp("modules") / "chat.aotm"
    language_module(40, target="wasm32").save(path)
    return make_package(path, tmp_path_factory.mktemp("packages"))


def evaluate(packaged: Path, *lines: str) -> Any:
    """What `found` is behind the lines, which have a model and can say a whole reply."""
    script = packaged.with_name("script.mjs")
    script.write_text(
        "\n".join(
            [
                'import { AotError, Chat, load } from "./chat.mjs";',
                "const model = await load(), found = [];",
                "const say = async (chat, text, options) => {",
                "  const pieces = [];",
                "  for await (const piece of chat.reply(text, options)) pieces.push(piece);",
                "  return pieces;",
                "};",
                "const refused = async (call) => {",
                "  try { await call(); } catch (e) {",
                "    if (!(e instanceof AotError)) throw e;",
                "    return [e.status, e.message];",
                "  }",
                "};",
                *lines,
                "console.log(JSON.stringify(found));",
            ]
        )
    )
    return json.loads(run_node(script))


def test_a_chat_replies_and_goes_on(packaged: Path) -> None:
    """Pieces are whole characters; a message costs its own tokens only; reset forgets."""
    pieces, after, again, then, forgotten, first = evaluate(
        packaged,
        "const chat = new Chat(model);",
        "found.push(await say(chat, 'a'), chat.length, await say(chat, 'b'), chat.length);",
        "chat.reset();",
        "found.push(chat.length, await say(chat, 'a'));",
        "chat.close();",
        "chat.close();",
    )
    assert pieces == ["a", "b", "c", " ", "\u00e9"] and "".join(pieces) == REPLY
    # <s> u a <e> <s> y a b c _ Ã ©; then the end token that the template has behind a reply
    assert (after, then) == (12, 25)
    assert again == first == pieces
    assert forgotten == 0


def test_control_tokens_of_a_message_are_text(packaged: Path) -> None:
    plain, = evaluate(
        packaged,
        "const chat = new Chat(model);",
        "await say(chat, '<|e|>', { maxTokens: 1 });",
        "found.push(chat.length);",
    )  # fmt: skip
    assert plain == 5 + 4  # `e` alone has no token; a control token would be one


def test_a_reply_is_cut_off_and_goes_on(packaged: Path) -> None:
    """By a number of tokens, by the caller, and by the context; the last token is not lost."""
    cut, pending, rest, aborted, full = evaluate(
        packaged,
        "const chat = new Chat(model);",
        "found.push(await say(chat, 'a', { maxTokens: 2 }), chat.length);",
        "await say(chat, 'a', { maxTokens: 1 });",
        "found.push(chat.length);",
        "chat.reset();",
        "const control = new AbortController();",
        "control.abort();",
        "found.push(await say(chat, 'a', { signal: control.signal }));",
        "chat.reset();",
        "await say(chat, 'a'.repeat(32));",
        "found.push([chat.length, chat.capacity]);",
    )
    assert cut == ["a", "b"]
    assert (pending, rest) == (7, 7 + 1 + 1 + 6)
    assert aborted == ["a"]
    assert full == [40, 40]


def test_sampling_is_decided_by_its_seed(packaged: Path) -> None:
    draws = evaluate(
        packaged,
        "for (const seed of [1, 1n, 2]) {",
        "  const chat = new Chat(model, { temperature: 2, topK: 5, seed });",
        "  found.push((await say(chat, 'a', { maxTokens: 20 })).join(''));",
        "}",
        "const chat = new Chat(model, { temperature: 1, topK: 1 });",
        "found.push((await say(chat, 'a')).join(''));",
    )
    assert draws[0] == draws[1] != draws[2]
    assert draws[3] == REPLY


def test_stop_strings_logprobs_and_biases(packaged: Path) -> None:
    """The same C as in Python chooses tokens and ends replies."""
    stopped, waited, told, banned, *refusals, goes_on = evaluate(
        packaged,
        "const chat = new Chat(model);",
        "found.push([await say(chat, 'a', { stop: ['x', 'c '] }), chat.stoppedBy]);",
        "found.push([await say(chat, 'a', { stop: ['bcx'], maxTokens: 3 }), chat.stoppedBy]);",
        "chat.reset();",
        "await say(chat, 'a', { logprobs: 2 });",
        "found.push(chat.logprobs);",
        "const other = new Chat(model, { logitBias: { 2: -Infinity, 7: 9 } });",
        "found.push([await say(other, 'a'), other.stoppedBy]);",
        "chat.reset();",
        "for (const stop of [[''], ['a', 'b'.repeat(1025)]])",
        "  found.push(await refused(() => say(chat, 'a', { stop })));",
        "for (const options of [{ seed: 2n ** 64n }, { seed: -1 }, { logitBias: { 14: 1 } },",
        "    { typicalP: 2 }, { dryMultiplier: 1, dryBreakers: ['?'] }])",
        "  found.push(await refused(() => new Chat(model, options)));",
        "found.push((await say(chat, 'a')).join(''));",
    )
    assert stopped == [["a", "b"], "stop"]
    assert waited == [["a", "bc"], "tokens"]
    assert [one["token"] for one in told] == [1, 2, 3, 4, 5, 6]
    total = math.log(math.e + 13)  # one logit is 1, the others are 0
    for one in told:
        assert one["logprob"] == pytest.approx(1 - total, abs=1e-4)
        assert one["top"][0] == {"token": one["token"], "logprob": one["logprob"]}
        assert one["top"][1]["logprob"] == pytest.approx(-total, abs=1e-4)
    assert banned == [[], "end"]
    assert [message for _, message in refusals] == [
        "stop string 1 has 0 bytes, expected 1 to 1024",
        "stop string 2 has 1025 bytes, expected 1 to 1024",
        "seed is 18446744073709551616, expected 0 to 2^64 - 1",
        "seed is -1, expected 0 to 2^64 - 1",
        "a bias is of token 14, expected 0 to 13",
        "typical_p is 2, expected 0 to 1",
        'the DRY breaker "?" is in no token',
    ]
    assert goes_on == REPLY


def test_the_system_s_message_stands_first(packaged: Path) -> None:
    lengths = evaluate(
        packaged,
        "for (const system of [undefined, 'c', 'cc']) {",
        "  const chat = new Chat(model, { system });",
        "  await say(chat, 'a');",
        "  found.push(chat.length);",
        "}",
    )
    assert lengths == [12, 12 + 4, 12 + 5]


def test_what_cannot_be_is_refused(packaged: Path) -> None:
    """And the conversation goes on as if nobody had asked."""
    *errors, goes_on = evaluate(
        packaged,
        "const chat = new Chat(model);",
        "await say(chat, 'a');",
        "found.push(await refused(() => say(chat, 'a'.repeat(30))));",
        "const open = chat.reply('a');",
        "await open.next();",
        "found.push(await refused(() => say(chat, 'a')));",
        "await open.return();",
        "chat.reset();",
        "found.push(await refused(() => new Chat(model, { temperature: -1 })));",
        "found.push((await say(chat, 'a')).join(''));",
    )
    assert errors[0] == [
        "capacity",
        "the prompt is 36 tokens, and the context holds 40, of which 12 are in use; shorten it, "
        "or compile the model with a longer --context",
    ]
    assert errors[1] == ["argument", "the chat is in the middle of a reply"]
    assert errors[2][0] == "argument" and "temperature" in errors[2][1]
    assert goes_on == REPLY


@pytest.mark.parametrize(("template", "is_raw"), [(TEMPLATE, False), ("", True)])
def test_conversations_begin_with_the_module_s_prefix(
    packaged: Path, tmp_path: Path, template: str, is_raw: bool
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(packaged.parent, copy)
    image = language_module(40, target="wasm32", template=template).image
    stored = StoredPrefix("bcab", is_raw, (2, 3, 1, 2), {})
    module = replace(image, vocabulary=encode_vocabulary(vocabulary(template), stored))
    (copy / "chat.aotm").write_bytes(module_bytes(module))
    found = evaluate(
        copy / packaged.name,
        "const chat = new Chat(model);",
        "found.push((await say(chat, 'a', { maxTokens: 2 })).join(''), chat.length);",
        "chat.reset();",
        "found.push((await say(chat, 'a', { maxTokens: 2 })).join(''), chat.length);",
    )
    # the system message with what is around it, then the message; or text alone
    tokens = len("bcaba") if is_raw else len("<yb cab><ua><y") - 1
    assert found == ["bc" if is_raw else "ab", tokens + 1] * 2


def test_logits_without_rows_choose_nothing(packaged: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(packaged.parent, copy)
    module = copy / "chat.aotm"
    module.write_bytes(without_rows(module.read_bytes()))
    line = "found.push(await refused(() => say(new Chat(model), 'a')));"
    assert evaluate(copy / packaged.name, line) == [["shape", NO_ROWS]]


def test_a_template_is_asked_as_elsewhere(packaged: Path, tmp_path: Path) -> None:
    """One that forgets, its variables, what it leaves out, and one that is not kept."""
    copy = tmp_path / "copy"
    shutil.copytree(packaged.parent, copy)
    language_module(40, target="wasm32", template=FORGETS).save(copy / "chat.aotm")
    found = evaluate(
        copy / packaged.name,
        "const chat = new Chat(model);",
        "found.push((await say(chat, 'ab')).join(''), chat.length);",
        "found.push((await say(chat, 'c')).join(''), chat.length);",
        "const long = new Chat(model, { variables: { long: true } });",
        "found.push((await say(long, 'a')).join(''), long.length);",
        "found.push(await refused(() => say(new Chat(model, { system: 'a' }), 'a')));",
    )
    assert found == [REPLY, 13, REPLY, 22, REPLY, 14, ["argument", LEFT_OUT]]
    with pytest.warns(TemplateWarning):
        language_module(40, target="wasm32", template=UNKEPT).save(copy / "chat.aotm")
    line = "found.push(await refused(() => say(new Chat(model), 'a')));"
    assert evaluate(copy / packaged.name, line) == [["unsupported", NOT_KEPT]]


def test_conversations_are_those_of_other_devices(packaged: Path, tmp_path: Path) -> None:
    """All conversations by all styles of templates, byte by byte and token by token."""
    image = read_module((packaged.parent / "chat.aotm").read_bytes())
    expected, paths = [], []
    for style, template in TEMPLATES.items():
        found = gguf.read_vocabulary(trained_metadata("tekken"))
        assert found is not None
        found = replace(found, chat_template=template, bos=found.ids["<|im_start|>"])
        paths.append(tmp_path / f"{style}.aotm")
        paths[-1].write_bytes(module_bytes(replace(image, vocabulary=encode_vocabulary(found))))
        own = opened(found)
        expected.append([_conversation(own, each) for each in CONVERSATIONS.values()])
    told = subprocess.run(
        ["node", NODE_CONVERSATIONS, packaged.parent, str(SECONDS), *paths],
        input=json.dumps([json.dumps(each) for each in CONVERSATIONS.values()]),
        capture_output=True,
        text=True,
        check=True,
    )
    for style, own_expected, own in zip(TEMPLATES, expected, json.loads(told.stdout), strict=True):
        assert own == own_expected, style


def _conversation(own: Tokeniser, variables: dict[str, Any]) -> list[Any] | str:
    """The text and tokens of a conversation, or why it is refused."""
    try:
        made = own.render(variables, seconds=SECONDS)
    except RuntimeFailure as failure:
        return str(failure)
    return [made.text, own.chat_tokens(made, is_first=False).tolist()]


def test_other_models_have_no_text(tmp_path: Path) -> None:
    """Their packages have neither the file nor the functions."""
    require_node()
    module = save_module(tmp_path / "small.aotm", ["wasm32"])
    made = make_package(module, tmp_path / "package")
    assert "Chat" not in made.read_text()
    assert not made.with_name("aot_text.mjs").exists()


# ---- the sample ----

SAMPLE = ROOT / "samples" / "05-chat" / "browser"
_DRIVE = """
const tell = (what) => fetch("told?" + encodeURIComponent(JSON.stringify(what)));
addEventListener("unhandledrejection", (event) => tell(String(event.reason)));
const frame = document.querySelector("iframe");
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const ready = async () => {
  for (;; await pause(20)) {
    const page = frame.contentDocument;
    if (page?.forms[0]?.send.disabled === false) return page;
  }
};
const page = await ready();
for (const text of ["a", "b"]) {
  page.forms[0].message.value = text;
  page.forms[0].requestSubmit();
  await ready();
}
tell([...page.querySelectorAll("#talk p")].map((p) => p.textContent));
"""


@pytest.fixture
def site(packaged: Path, tmp_path: Path) -> Path:
    """A folder of the package and the sample's page."""
    shutil.copytree(packaged.parent, tmp_path / "site")
    for file in SAMPLE.iterdir():
        shutil.copy(file, tmp_path / "site")
    return tmp_path / "site"


def test_the_sample_s_worker_replies(site: Path) -> None:
    """As a page talks to it: what comes is what it has said, in order."""
    script = site / "page-of-node.mjs"
    script.write_text(
        "const told = [];\n"
        "let wake;\n"
        "globalThis.postMessage = (data) => { told.push(data); wake?.(); };\n"
        "const until = async (count) => {\n"
        "  const ready = () => told.filter(([kind]) => kind === 'ready').length;\n"
        "  while (ready() < count) await new Promise((resolve) => (wake = resolve));\n"
        "};\n"
        "await import('./worker.mjs');\n"
        "const sent = [['reply', 'a'], ['reply', 'a'.repeat(40)], ['reset'], ['reply', 'b']];\n"
        "for (const [n, data] of sent.entries()) {\n"
        "  await until(n + 1);\n"
        "  globalThis.onmessage({ data });\n"
        "}\n"
        "await until(sent.length + 1);\n"
        "console.log(JSON.stringify(told));\n"
    )
    told = json.loads(run_node(script))
    pieces = [["piece", text] for text in ["a", "b", "c", " ", "\u00e9"]]
    assert told[0] == ["ready", "Ready. The context holds 40 tokens."]
    assert told[1:6] == pieces
    assert re.fullmatch(r"First token after \d+ ms, then [\d.]+ a second\.", told[6][1])
    assert told[7][0] == "ready" and told[7][1].startswith("the prompt is 46 tokens, and the")
    assert told[8] == ["ready", "Ready."]
    assert told[9:14] == pieces and len(told) == 15


if BROWSER is not None:

    def test_the_sample_s_page_replies(site: Path, tmp_path: Path) -> None:
        """What is typed and what is replied, under the page's own policy."""
        (site / "drive.mjs").write_text(_DRIVE)
        (site / "drive.html").write_text(
            '<iframe src="index.html"></iframe><script type="module" src="drive.mjs"></script>'
        )
        told = json.loads(told_by_browser(site, "drive.html", tmp_path / "profile"))
        assert told == ["a", REPLY, "b", REPLY]
