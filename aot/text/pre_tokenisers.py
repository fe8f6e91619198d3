r"""Patterns by which text is cut, by the names that GGUF files give them in `tokenizer.ggml.pre`.

Owns the table of names, which are llama.cpp's, and what the names mean beside the patterns. These
cut text as llama.cpp does, which is not always as the models' own do: it knows letters and not
their cases (`[\p{L}&&[^a-z]]` for `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`), and for `\d` ASCII's digits.
"""

from __future__ import annotations

from aot.text.vocabulary import Cut

_SHORT = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = _SHORT + "|" + _WORDS + r"\p{N}" + _OTHERS
_LLAMA3 = _SHORT + "|" + _WORDS + r"\p{N}{1,3}" + _OTHERS
_FALLING = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
_KANA = r"[一-龥\x{3040}-ゟ゠-ヿ]+"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)


def _set(ranges: str) -> str:
    """The inside of a set: ranges of code points, in hexadecimal, as characters of a pattern."""
    return "".join("-".join(rf"\x{{{end}}}" for end in own.split("-")) for own in ranges.split())


# As far as blocks of Unicode say it.
_HAN = _set(
    "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF 2CEB0-2EBEF F900-FAFF "
    "2F800-2FA1F"
)
_LATIN = _set(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
    "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D "
    "1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 "
    "1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE "
    "2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 "
    "FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 "
    "118A0-118DF 1E900-1E943 "
)
_ASIAN = _set(
    "4E00-9FFF 3400-4DBF 8C48-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF "
    "1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF "
)
_CHINESE = rf"[{_set('4E00-9FA5 800-4E00 AC00-D7FF')}]+"


def _cased(letters: str, end: str) -> str:
    """Words whose small letters end them: letters of a set other than a to z, then those other than
    A to Z."""
    first, last = f"[{letters}&&[^a-z]]", f"[{letters}&&[^A-Z]]"
    begin = r"[^\r\n\p{L}\p{N}]?"
    return f"{begin}{first}*{last}+{end}|{begin}{first}+{last}*{end}|"


_BIG = r" ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_GPT4O = _cased(r"\p{L}", _SHORT + "?") + r"\p{N}{1,3}|" + _BIG

_PATTERNS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (
            *("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "a.x-4.0", "mellum", "mpt"),
            *("olmo", "jais", "exaone4", "trillion", "granite-docling", "jina-v2-es"),
            *("jina-v2-de", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe"),
        ),
        (_GPT2,),
    ),
    (
        (
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
            *("lfm2", "jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
        ),
        (_LLAMA3,),
    ),
    (
        (
            *("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan"),
            *("solar-open", "grok-2", "f2llmv2"),
        ),
        (_QWEN2,),
    ),
    (
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    ),
    (
        (
            *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
            "mellum2",
        ),
        (r"\p{N}", _GPT2),
    ),
    (("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (_GPT4O,)),
    (("granite-embed-multi-97m",), (_GPT4O.replace(r"[\p{L}&&", r"[\p{L}\p{M}&&"),)),
    (("tekken",), (_cased(r"\p{L}", "") + r"\p{N}|" + _BIG,)),
    (("seed-coder",), (_QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),)),
    (
        ("qwen35",),
        (
            _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
                r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]"
            ),
        ),
    ),
    (("ufakzeka",), (_WORDS + r"\p{N}" + _OTHERS,)),
    (("minicpm5",), (r"\p{N}{1,3}", _SHORT + "|" + _WORDS + r"\p{N}+" + _OTHERS)),
    (("laguna",), (r"[^\n]+|[\n]+", _QWEN2)),
    (
        ("exaone-moe",),
        (
            _SHORT + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    (
        ("jais-2",),
        (_LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + _FALLING + r"|\s{1,2}(?!\S)|\s{1}",),
    ),
    (
        ("deepseek-llm",),
        (
            *(r"[\r\n]", rf"\s?[{_LATIN}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+\z"),
            *(_CHINESE, r"\p{N}+"),
        ),
    ),
    (
        ("deepseek-coder",),
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}"),
    ),
    (
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        (r"\p{N}{1,3}", _KANA, _PUNCTUATED + r"[\r\n]*" + _SPACES),
    ),
    (
        ("spark2_5",),
        (r"\p{N}{1,3}", _KANA, _PUNCTUATED + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
    ),
    (
        ("afmoe",),
        (
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            f"[{_ASIAN}]+",
            _PUNCTUATED + r"[\r\n]*" + _SPACES,
        ),
    ),
    (
        ("youtu",),
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _KANA,
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" + _SHORT + r"?|\p{N}|" + _BIG,
        ),
    ),
    (
        ("tiny_aya", "cohere2moe"),
        (
            r"[0-9]{1,3}(?=(?:[0-9]{3})*(?![A-Za-z0-9_]))",
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" + _SHORT + r"?|\p{N}{1,3}|" + _BIG,
        ),
    ),
    (("superbpe",), (r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))")),
    (
        ("kimi-k2",),
        (
            rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_SHORT}?|\p{{N}}{{1,3}}"
            + _OTHERS,
        ),
    ),
    (("falcon",), (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    (("", "default"), (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    (("poro-chat", "bloom", "gpt3-finnish"), (r" ?[^(\s|.,!?…。，、।۔،)]+",)),
    (("viking",), (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")),
    (
        ("chameleon",),
        (
            *("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )"),
            *(r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
        ),
    ),
    (("gemma4", "granite-embed-multi-311m", "sarvam-moe"), (r"[^\n]+|[\n]+",)),
)
# The cuts of a name: "" of a file without one.
CUTS = {name: tuple(map(Cut, own)) for names, own in _PATTERNS for name in names}

_LLAMA3_NAMES = frozenset(_PATTERNS[1][0][:9])
# Of a file without the key: names whose text begins with bos.
BEGINS_WITH_BOS = _LLAMA3_NAMES | {"tekken", "chameleon"}
# A part that is a token is that token.
TAKES_WHOLE_PARTS = _LLAMA3_NAMES | {"tekken", "youtu", "minicpm5", "granite-embed-multi-97m"}
# Merges are of characters, in which a space is U+2581, and not of the alphabet of bytes.
OF_CHARACTERS = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
# Of those: text begins with bos, and a part of line ends that is a token is that token.
GEMMA4 = frozenset({"gemma4", "granite-embed-multi-311m"})
