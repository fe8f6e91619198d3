"""Modules of an earlier vocabulary version, rewritten to the one of now.

Owns what each earlier version had in the place of what a vocabulary has now. Machine code, shaders,
programs and constants stay as they were compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flatbuffers
import numpy as np

from aot.link import module_fbs as fbs
from aot.link.image import ModuleImage
from aot.link.pattern_tables import encode_cuts
from aot.link.template_compiler import Unkept, compile_template
from aot.link.vocabulary import IDENTIFIER, VERSION, read_vocabulary
from aot.text.pre_tokenisers import CUTS

# Version 0 had the number of a pre-tokeniser where there are patterns now: one of its names.
_NAMES = {
    fbs.PreTokeniser.GPT2: "gpt-2",
    fbs.PreTokeniser.LLAMA3: "llama-bpe",
    fbs.PreTokeniser.QWEN2: "qwen2",
    fbs.PreTokeniser.SMOLLM: "smollm",
    fbs.PreTokeniser.GPT4O: "gpt-4o",
    fbs.PreTokeniser.TEKKEN: "tekken",
    fbs.PreTokeniser.SEED_CODER: "seed-coder",
}


def upgrade_image(image: ModuleImage) -> tuple[ModuleImage, list[str]]:
    """A module as this version writes it, and what was rewritten: nothing of one that is so.

    Raises:
        Malformed: the vocabulary is damaged.
    """
    if not image.vocabulary:
        return image, []
    table: Any = read_vocabulary(bytes(image.vocabulary))  # vectors may be lists or arrays
    changes = []
    if table.preTokeniser != fbs.PreTokeniser.NONE:
        name = _NAMES[table.preTokeniser]
        table.cuts = np.frombuffer(encode_cuts(CUTS[name]), np.uint8)
        table.preTokeniser = fbs.PreTokeniser.NONE
        changes.append(f"the patterns of {name}, by which text is cut, are in the vocabulary")
    if table.chatTemplate and not _count(table.chatCode) and not table.chatRefusal:
        changes.append(_compile_chat(table))
    if table.version == VERSION and not changes:
        return image, []
    changes.append(f"the vocabulary has version {VERSION}, it had {table.version}")
    table.version = VERSION
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(table.Pack(builder), file_identifier=IDENTIFIER)
    return replace(image, vocabulary=bytes(builder.Output())), changes


def _count(vector: Any) -> int:
    return 0 if vector is None else len(vector)


def _compile_chat(table: Any) -> str:
    """Gives the chat template its code in place of roles; what was done."""
    table.chatRoles = table.chatBegin = table.chatDefault = table.chatReply = None
    try:
        code = compile_template(table.chatTemplate)
    except Unkept as reason:
        table.chatRefusal = str(reason)
        return f"the chat template stays without code: {reason}"
    table.chatCode = np.array(code.words, np.uint32)
    table.chatTexts = np.frombuffer(b"".join(code.texts), np.uint8)
    table.chatTextEnds = np.cumsum([len(text) for text in code.texts]).astype(np.uint32)
    return "the chat template has code"
