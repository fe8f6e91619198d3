"""`aotc upgrade` rewrites vocabularies of version 0, and leaves the corpus of stored modules as it
is.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import flatbuffers
import pytest

from aot.cli import main as cli
from aot.errors import CompileError, RuntimeFailure
from aot.link import module_fbs as fbs
from aot.link.module import module_bytes
from aot.link.reader import read_module
from aot.link.upgrade import _NAMES, upgrade_image
from aot.link.vocabulary import IDENTIFIER, encode_vocabulary, read_vocabulary
from aot.runtime.text import Tokeniser
from aot.text.pre_tokenisers import CUTS
from aot.tools.upgrading import upgrade
from tests.support.stored_modules import CORPUS, FOLDER
from tests.support.vocabularies import byte_vocabulary

TEXT = "It's 12345 o'clock,\n\n  naïve DON'T  "
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
HEADER_VERSION = slice(4, 8)


def module_with(vocabulary: bytes) -> bytes:
    """A module that has this vocabulary."""
    image = read_module((FOLDER / "dense.aotm").read_bytes())
    return module_bytes(replace(image, vocabulary=vocabulary))


def old_vocabulary(kind: int, template: str | None = None) -> bytes:
    """As version 0 had it: the number of a pre-tokeniser, and roles beside a template."""
    table = read_vocabulary(encode_vocabulary(byte_vocabulary()))
    table.version, table.preTokeniser, table.cuts = 0, kind, None
    table.chatTemplate = template
    table.chatCode = table.chatTexts = table.chatTextEnds = table.chatRefusal = None
    if template is not None:
        table.chatRoles = [fbs.ChatRoleT(name="user", before="<user>", after="")]
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(table.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


@pytest.mark.parametrize("kind", sorted(_NAMES))
def test_a_pre_tokeniser_becomes_its_patterns(kind: int, tmp_path: Path) -> None:
    path = tmp_path / "old.aotm"
    path.write_bytes(module_with(old_vocabulary(kind)))
    with pytest.raises(RuntimeFailure, match="compile the model again"):
        Tokeniser(path)
    made, changes = upgrade(str(path))
    assert len(changes) == 2 and _NAMES[kind] in changes[0]
    expected = encode_vocabulary(byte_vocabulary(cuts=CUTS[_NAMES[kind]]))
    path.write_bytes(made.to_bytes())
    fresh = tmp_path / "fresh.aotm"
    fresh.write_bytes(module_with(expected))
    with closing(Tokeniser(path)) as found, closing(Tokeniser(fresh)) as wanted:
        assert found.encode(TEXT).tolist() == wanted.encode(TEXT).tolist()


def test_a_chat_template_gets_code(tmp_path: Path) -> None:
    path = tmp_path / "old.aotm"
    path.write_bytes(module_with(old_vocabulary(fbs.PreTokeniser.GPT2, TEMPLATE)))
    made, changes = upgrade(str(path))
    assert "the chat template has code" in changes
    path.write_bytes(made.to_bytes())
    with closing(Tokeniser(path)) as tokeniser:
        rendered = tokeniser.render({"messages": [{"role": "user", "content": "hi"}]})
    assert rendered.data == b"<user>hi"


def test_a_template_that_has_no_code_says_why(tmp_path: Path) -> None:
    path = tmp_path / "old.aotm"
    path.write_bytes(module_with(old_vocabulary(fbs.PreTokeniser.NONE, "{% include 'x' %}")))
    made, changes = upgrade(str(path))
    assert changes[0].startswith("the chat template stays without code: ")
    assert read_vocabulary(bytes(made.image.vocabulary)).chatRefusal


def test_every_number_of_version_0_has_a_name() -> None:
    numbers = {value for name, value in vars(fbs.PreTokeniser).items() if name.isupper()}
    assert numbers == {*_NAMES, fbs.PreTokeniser.NONE}


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_stays(name: str) -> None:
    """What is of now is copied, byte for byte as this version writes it."""
    image = read_module((FOLDER / f"{name}.aotm").read_bytes())
    made, changes = upgrade_image(image)
    is_old = name == "every-field"  # its vocabulary is of version 0
    assert (made is image) == (changes == []) == (not is_old)
    again, more = upgrade_image(made)
    assert more == [] and module_bytes(again) == module_bytes(made)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.aotm", tmp_path / "new.aotm"
    old.write_bytes(module_with(old_vocabulary(fbs.PreTokeniser.QWEN2)))
    assert cli.main(["upgrade", str(old), "-o", str(new)]) == 0
    said = capsys.readouterr().err
    assert "qwen2" in said and "version 1, it had 0" in said
    assert cli.main(["upgrade", str(new), "-o", str(old)]) == 0
    assert "nothing was to be rewritten" in capsys.readouterr().err
    assert old.read_bytes() == new.read_bytes()
    assert cli.main(["upgrade", str(new), "-o", str(new)]) != 0
    assert "the module itself" in capsys.readouterr().err


def test_what_cannot_be_rewritten_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "other.aotm"
    data = bytearray((FOLDER / "dense.aotm").read_bytes())
    data[HEADER_VERSION] = (7).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(CompileError, match="compile the model again.*format version 7"):
        upgrade(str(path))
    path.write_bytes(b"AOTM")
    with pytest.raises(CompileError, match="compile the model again"):
        upgrade(str(path))
    with pytest.raises(CompileError):
        upgrade(str(tmp_path / "missing.aotm"))
