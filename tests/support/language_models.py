"""A language model of a few tokens whose reply is known, as a module with a vocabulary.

Behind each token comes the next one of `TOKENS`: the reply to any message is "abc é",
then a token that ends it. It sums what it has seen, as a state, so that a forgotten token shows.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

import aot
from aot.frontends.onnx.importer import import_onnx
from aot.link import module_fbs as fbs
from aot.text.pre_tokenisers import CUTS
from aot.text.vocabulary import Scheme, TokenType, Vocabulary
from tests.support.runtime_modules import with_structure

# Two bytes are one character, and in byte merges' alphabet a space is U+0120.
TOKENS = (
    *("<|s|>", "a", "b", "c", "\u0120", "\u00c3", "\u00a9", "<|e|>"),
    *("\n", "u", "y", "<", "|", ">"),
)
CONTROL = (0, 7)
REPLY = "abc \u00e9"
TEMPLATE = (
    "{% for m in messages %}<|s|>{% if m.role == 'user' %}u{% else %}y{% endif %}"
    "{{ m.content }}<|e|>{% endfor %}{% if add_generation_prompt %}<|s|>y{% endif %}"
)
# Drops all but the first two characters of earlier replies, knows no system message, and has a
# variable.
FORGETS = (
    "{% for m in messages if m.role != 'system' %}<|s|>{{ 'u' if m.role == 'user' else 'y' }}"
    "{{ m.content if m.role == 'user' else m.content[:2] }}<|e|>{% endfor %}"
    "{% if add_generation_prompt %}<|s|>{{ 'cc' if long is defined and long }}y{% endif %}"
)
UNKEPT = "{{ messages|groupby('role') }}"
NOT_KEPT = (
    "the module does not keep the model's chat template, which conversations need: line 1 has the "
    'filter "groupby"; it takes text to be continued only'
)
LEFT_OUT = "the chat template cannot be rendered: it knows no system message, and leaves it out"
MOST = 4  # tokens of one call
NO_ROWS = "the model gave logits of shape [0, 14], expected a row for a token or more"

_SOURCE = """
<ir_version: 8, opset_import: ["": 17]>
model (int32[T] tokens, float[P, 1] past) => (float[1, V] logits, float[Q, 1] present) {
  one = Constant<value = int64[1] {1}>()
  zero = Constant<value = int64[1] {0}>()
  last = Constant<value = int64[1] {-1}>()
  f = Cast<to = 1>(tokens)
  new = Unsqueeze(f, one)
  present = Concat<axis = 0>(past, new)
  token = Gather<axis = 0>(tokens, last)
  row = Gather<axis = 0>(table, token)
  total = ReduceSum<keepdims = 0>(present)
  tiny = Mul(total, scale)
  logits = Add(row, tiny)
}
"""

# Its first rows count as padding, which leaves nothing but a trace in the logits.
_SEQUENCES = """
<ir_version: 8, opset_import: ["": 17]>
model (int32[S, T] tokens, int32[S] starts, float[S, P] past)
    => (float[S, V] logits, float[S, Q] present) {
  one = Constant<value = int64[1] {1}>()
  last = Constant<value = int64 {-1}>()
  f = Cast<to = 1>(tokens)
  present = Concat<axis = 1>(past, f)
  token = Gather<axis = 1>(tokens, last)
  row = Gather<axis = 0>(table, token)
  padding = Cast<to = 1>(starts)
  column = Unsqueeze(padding, one)
  tiny = Mul(column, scale)
  logits = Add(row, tiny)
}
"""


def vocabulary(template: str = TEMPLATE) -> Vocabulary:
    types = [TokenType.CONTROL if n in CONTROL else TokenType.NORMAL for n in range(len(TOKENS))]
    names = tuple("\u010a" if text == "\n" else text for text in TOKENS)
    return Vocabulary(
        *(Scheme.BYTE_MERGES, names, tuple(types)),
        cuts=CUTS["gpt-2"],
        eos=7,
        end_tokens=frozenset({7}),
        chat_template=template,
    )


def language_module(
    context: int = 16,
    *,
    most: int = MOST,
    target: str = "host",
    sequences: int = 1,
    template: str = TEMPLATE,
) -> aot.CompiledModule:
    """The module, of which the state holds `context` tokens and a call takes `most`."""
    model = parser.parse_model(_SOURCE if sequences == 1 else _SEQUENCES)
    tokens = f"1<=T<={most}"
    shapes = {"tokens": [tokens] if sequences == 1 else [sequences, tokens]}
    if sequences > 1:
        shapes |= {"starts": [sequences], "past": [sequences, "?"]}
    table = np.zeros((len(TOKENS), len(TOKENS)), np.float32)
    following = [*range(1, len(TOKENS)), 0]
    following[0], following[10] = 1, 1  # <|s|> and y: then a
    table[np.arange(len(TOKENS)), following] = 1
    for name, array in (("table", table), ("scale", np.array(1e-6, np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    module = import_onnx(model)
    module.vocabulary = vocabulary(template)
    return aot.compile(
        module,
        input_shapes=shapes,
        states={"past": ("present", context)},
        targets=[target],
    )


def without_rows(file: bytes) -> bytes:
    """The file of `language_module` with a program whose logits have no rows, as no compile makes
    one: their number, which may be any, is a register that nothing sets. It runs no kernel, for
    which there is no memory then."""

    def change(root: fbs.ModuleT) -> None:
        entry = root.variants[0].entryPoints[0]
        program, entry.outputs[0].dims[0] = entry.program, fbs.DimT(-1, 0, -1, "N")
        at = 0
        while at < len(program.code):
            opcode, size = program.code[at] & 0xFF, program.code[at] >> 8
            if opcode == fbs.Opcode.DISPATCH:
                program.code[at : at + size] = [fbs.Opcode.NOP | 1 << 8] * size
            elif program.code[at : at + 3] == [fbs.Opcode.OUTPUT_DIM | size << 8, 0, 0]:
                program.code[at + 3] = program.registerCount
            at += size
        program.registerCount += 1

    return with_structure(file, change)
