"""Chat templates as code: what is refused, by name; the same bytes each time; the code's limits."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

import aot
from aot.errors import TemplateWarning
from aot.link import module_fbs as fbs
from aot.link.template_code import (
    ANY_ARGUMENTS,
    FILTER_NUMBERS,
    FILTERS,
    METHOD_NUMBERS,
    METHODS,
    TEST_ARGUMENTS,
    TEST_NUMBERS,
    names_mask,
)
from aot.link.template_compiler import Unkept, compile_template
from aot.tools.inspection import format_inspection, inspect
from tests.support.chat_templates import TEMPLATES
from tests.support.jinja_snippets import SNIPPETS
from tests.support.vocabularies import byte_vocabulary


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% if", "line 1: unexpected 'end of template'"),
        ("a\n{{ x|nothing }}", 'line 2 has the filter "nothing"'),
        ("{{ x|groupby('a') }}", 'line 1 has the filter "groupby"'),
        ("{{ x is nothing }}", 'line 1 has the test "nothing"'),
        ("{{ x.format(1) }}", 'line 1 has the method "format"'),
        ("{{ ''.__class__ }}", 'line 1 has the attribute "__class__"'),
        ("{% include 'x' %}", 'line 1 has the statement "include"'),
        ("{% extends 'x' %}", 'line 1 has the statement "extends"'),
        ("{% import 'x' as x %}", 'line 1 has the statement "import"'),
        ("{% block a %}{% endblock %}", 'line 1 has the statement "block"'),
        ("{% for a in b recursive %}{% endfor %}", "line 1 has a recursive loop"),
        ("{{ lipsum() }}", 'line 1 has the function "lipsum"'),
        ("{{ f(*a) }}", "line 1 has a call with arguments from a list"),
        ("{{ a|trim(*b) }}", 'line 1 has the filter "trim" with arguments from a list'),
        ("{{ a|trim(1, 2) }}", 'line 1 has the filter "trim" with 2 arguments'),
        ("{{ a|trim(x=2) }}", 'line 1 has the filter "trim" with the argument "x"'),
        ("{{ a|map(b) }}", 'line 1 has the filter "map" with a name that is computed'),
        ("{{ a|e ~ 'x' }}", 'line 1 has the filter "e" other than where its value is written'),
        ("{{ 99999999999999999999 }}", "line 1 has an integer of more than 64 bits"),
        (
            "{% macro f() %}{{ varargs }}{% endmacro %}",
            "line 1 has a macro with any number of arguments",
        ),
        (
            "{% for i in a %}{% set x %}{% break %}{% endset %}{% endfor %}",
            "line 1 has a break or continue out of a block that is kept as text",
        ),
        ("{{ '\\ud800' }}", "it has a text that is not UTF-8"),
        ("x" * (1 << 17) + "y", "it has more than 131072 bytes"),
        ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", "it is nested too deep"),
        ("{{ " + "-" * 9999 + "1 }}", "it is nested too deep"),
        ("{{ " + "1+" * 9999 + "1 }}", "it is nested too deep"),
        ("{% macro f() %}" * 70 + "{% endmacro %}" * 70, "it is nested too deep"),
        ("{{ [" + "1," * 2100 + "] }}", "it has more parts than a module keeps"),
    ],
)
def test_what_is_not_kept_is_said_by_name(template: str, reason: str) -> None:
    with pytest.raises(Unkept) as caught:
        compile_template(template)
    assert str(caught.value) == reason


def test_a_compile_says_that_a_template_is_not_kept() -> None:
    """As a warning; the module says it too."""
    builder = aot.builder.Builder()
    builder.output("y", builder.op("relu", builder.input("x", "f32[4]")))
    module = builder.module()
    module.vocabulary = byte_vocabulary(chat_template="{{ messages|groupby('role') }}")
    with pytest.warns(TemplateWarning) as caught:
        made = aot.compile(module)
    assert [str(w.message) for w in caught] == [
        "the module does not keep the model's chat template, so that it takes text to be continued "
        'and no conversations: line 1 has the filter "groupby"'
    ]
    lines = format_inspection(inspect(made.to_bytes())).splitlines()
    assert '  which the module does not keep: line 1 has the filter "groupby"' in lines
    module.vocabulary = byte_vocabulary()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TemplateWarning)
        aot.compile(module)


def test_the_code_is_the_same_in_every_process() -> None:
    script = (
        "import hashlib\nfrom aot.link.template_compiler import compile_template\n"
        "from tests.support.chat_templates import TEMPLATES\n"
        "for t in TEMPLATES.values():\n"
        "    c = compile_template(t)\n"
        "    print(hashlib.sha256(repr((c.words, c.texts)).encode()).hexdigest())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0].split()) == len(TEMPLATES)


def test_templates_take_every_instruction() -> None:
    """Those of the tests: an instruction that none of them has would not be tested."""
    found: set[int] = set()
    for template in (*TEMPLATES.values(), *SNIPPETS):
        words = compile_template(template).words
        count = words[0]
        begin = words[1]
        assert all(words[1 + 8 * n] < words[2 + 8 * n] <= len(words) for n in range(count))
        found |= {word & 0xFF for word in words[begin:]}
    assert found >= set(range(fbs.TemplateOp.METHOD + 1))


def test_tables_name_what_there_is() -> None:
    assert FILTERS.keys() <= FILTER_NUMBERS.keys()
    assert TEST_ARGUMENTS.keys() <= TEST_NUMBERS.keys()
    assert {*METHODS, *ANY_ARGUMENTS} <= METHOD_NUMBERS.keys()
    kinds = (("TEXT", ""), ("LIST", []), ("TUPLE", ()), ("MAP", {}))
    for kind, value in kinds:
        bit = 1 << getattr(fbs.TemplateNames, kind)
        changing = {
            "list": ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"]
        }
        changing["dict"] = ["clear", "pop", "popitem", "setdefault", "update"]
        for name in dir(value):
            if name.startswith("_"):
                continue
            changes = name in changing.get(type(value).__name__, set())
            assert bool(names_mask(name) & bit) != changes, name
            assert bool(names_mask(name) >> 8 & bit) == changes, name
    assert names_mask("content") == 0
