"""Small templates that take every expression, statement, filter, test and method of Jinja that a
module keeps, with the variables that they are rendered with."""

from __future__ import annotations

from typing import Any

VARIABLES: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": " H\u00e9llo <b>\n"},
        {
            "role": "assistant",
            "content": "ab\"c'd\\",
            "tool_calls": [
                {"function": {"name": "f", "arguments": {"x": 1.5, "y": [True, None, "\u2028"]}}}
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "T"}, {"type": "image"}]},
    ],
    "n": 7,
    "f": 2.5,
    "z": 0,
    "s": "  The quick-brown fox  ",
    "u": "stra\u00dfe \u01c5 \u039f\u0394\u039f\u03a3 \u00e9\u00c0",
    "e": "",
    "l": [3, 1, 2],
    "ls": ["b", "A", "a", "B"],
    "d": {"b": 2, "A": 1, "c": {"k": [1, 2]}},
    "t": True,
    "no": None,
    "items": [{"n": "x", "v": 2}, {"n": "y"}, {"n": "X", "v": 0}],
    "bos_token": "<s>",
    "eos_token": "ab",
}

# Each is rendered, or fails, as Jinja does.
SNIPPETS: tuple[str, ...] = (
    (
        "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ "
        "2 ** 10 }} {{ 6 / 3 }} {{ 1e20 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 100000.0 }}"
        " {{ 1.5e300 * 1e10 }} {{ 123456789012345680.0 }}"
    ),
    (
        "{{ f }} {{ f * 2 }} {{ f + 1 }} {{ 1 / 3 }} {{ -f }} {{ n / f }} {{ 0.00001"
        "234 }} {{ 1e16 }} {{ 9999999999999998.0 }}"
    ),
    (
        "{{ s|trim }}|{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s.strip('"
        " ehTx') }}|{{ s|trim(' T') }}"
    ),
    (
        "{{ u|upper }}|{{ u|lower }}|{{ u|title }}|{{ u.title() }}|{{ u|capitalize }"
        "}|{{ u.capitalize() }}|{{ s.title() }}|{{ s|title }}"
    ),
    (
        "{{ s.split() }}|{{ s.split(' ') }}|{{ s.split(' ', 2) }}|{{ s.split(None, 1"
        ") }}|{{ s.rsplit(' ', 1) }}|{{ s.rsplit(None, 1) }}|{{ 'a,b,,c'.split(',') "
        "}}|{{ ''.split(',') }}|{{ ''.split() }}|{{ 'a--b--c'.rsplit('--', maxsplit="
        "1) }}"
    ),
    "{% set least = -9223372036854775807 - 1 %}{{ 'a,b,c'.split(',', least) }}"
    "{{ 'a b c'.split(None, least) }}{{ 'a,b,c'.rsplit(',', least) }}"
    "{{ 'a b c'.rsplit(None, least) }}{{ 'aaa'.replace('a', 'b', least) }}",
    "{{ 'a\\nb\\r\\nc\\n\\n'.splitlines() }} {{ 'a\\nb'.splitlines(True) }}",
    (
        "{{ s.replace('q', 'Q') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace"
        "('', '-') }} {{ 'abc'|replace('b', 'x') }} {{ 'aaa'|replace('a','b',1) }} {"
        "{ ''.replace('', 'x') }}"
    ),
    (
        "{{ l }} {{ l|sort }} {{ l|sort(reverse=true) }} {{ ls|sort }} {{ ls|sort(ca"
        "se_sensitive=true) }} {{ l|first }} {{ l|last }} {{ l|length }} {{ l|sum }}"
        " {{ l|max }} {{ l|min }} {{ ls|max }} {{ ls|min }} {{ ls|unique|list }}"
    ),
    (
        "{{ d }} {{ d|tojson }} {{ d|tojson(indent=2) }} {{ d.items()|list }} {{ d.k"
        "eys()|list }} {{ d.values()|list }} {{ d|dictsort }} {{ d|length }} {{ d|li"
        "st }} {{ d|items|list }}"
    ),
    ("{{ d|dictsort(true) }} {{ {'b':1,'a':3}|dictsort(by='value', reverse=true) }}"),
    (
        "{{ messages|tojson }} {{ messages|tojson(ensure_ascii=true) }} {{ messages|"
        "tojson(separators=(',', ':')) }} {{ d|tojson(sort_keys=true, indent=4) }} {"
        "{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ [[],{}]|tojson(indent"
        "=1) }}"
    ),
    "{{ messages }}",
    (
        "{{ (-0.0)|abs }} {{ 0.0|abs }} {{ '-9223372036854775808'|int }} {{ -9.2e18|int }} "
        "{{ ((1e308 * 10) - (1e308 * 10))|int }} {{ 'x9'|int }} "
        "{{ items|map(attribute='v', default=none)|list }}"
    ),
    (
        "{{ messages[0]['content'] is string }} {{ messages[2].content is string }} "
        "{{ messages[2].content is iterable }} {{ messages[2].content is sequence }}"
        " {{ messages[2].content is mapping }} {{ d is mapping }} {{ n is number }} "
        "{{ t is number }} {{ f is float }} {{ n is integer }} {{ t is integer }} {{"
        " no is none }} {{ x is defined }} {{ x is undefined }} {{ x is none }} {{ t"
        " is boolean }} {{ t is true }} {{ 1 is true }} {{ n is odd }} {{ n is even "
        "}} {{ n is divisibleby 7 }} {{ n is eq 7 }} {{ n is lt 8 }} {{ n is in [7] "
        "}} {{ 'a' is lower }} {{ 'A' is upper }} {{ no is sameas none }} {{ n is no"
        "t none }} {{ x is iterable }} {{ x is sequence }} {{ x is callable }} {{ ra"
        "nge is callable }} {{ raise_exception is defined }}"
    ),
    (
        "{{ items|map(attribute='n')|list }} {{ items|map(attribute='v', default=9)|"
        "list }} {{ items|map(attribute='n')|map('upper')|join('+') }} {{ items|sele"
        "ctattr('v')|list }} {{ items|selectattr('v', 'defined')|map(attribute='n')|"
        "join }} {{ items|rejectattr('v', 'equalto', 2)|list|length }} {{ l|select('"
        "odd')|list }} {{ l|reject('odd')|list }} {{ l|select|list }} {{ items|sort("
        "attribute='n')|map(attribute='n')|list }} {{ items|join(',', attribute='n')"
        " }} {{ items|sum(attribute='zz', start=1) if false }} {{ [1,2]|sum(start=3)"
        " }}"
    ),
    ("{{ items|unique(attribute='n')|list }} {{ items|selectattr('n','in',['x','X'])|list }}"),
    (
        "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop"
        ".revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previt"
        "em }}{{ loop.nextitem }}{{ loop.cycle('a','b') }}{{ loop.depth }};{% endfor"
        " %}"
    ),
    (
        "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{% else %}none{% endfor %}{"
        "% for i in [] %}x{% else %}none{% endfor %}{% for i in x %}{% else %}U{% en"
        "dfor %}"
    ),
    (
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k"
        " }}{% endfor %}{% for a, (b, c) in [(1,(2,3))] %}{{ a }}{{ b }}{{ c }}{% en"
        "dfor %}{% for c in 'h\xe9y' %}[{{ c }}]{% endfor %}"
    ),
    ("{% set a = 1 %}{% for i in l %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}"),
    (
        "{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i "
        "%}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.zz is defined }}"
    ),
    (
        "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}"
        "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}E{% e"
        "ndfor %}"
    ),
    (
        "{% macro m(a, b='d', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m() "
        "}}{{ m(1) }}{{ m(1, c=2) }}{{ m(b=3, a=4) }}{{ m(1)|upper }}{{ m('x') ~ 'y'"
        " }}"
    ),
    ("{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}"),
    (
        "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body {{ n }}{% e"
        "ndcall %}{% macro q(x) %}[{{ caller(x, 2) }}]{% endmacro %}{% call(a, b) q("
        "5) %}{{ a }}-{{ b }}{% endcall %}"
    ),
    (
        "{% macro f() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ f() }}{% set "
        "later = 4 %}{{ f() }}"
    ),
    (
        "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}{% set y | upper %}abc"
        "{% endset %}{{ y }}{% filter upper %}abc{{ n }}{% endfilter %}"
    ),
    ("{% with a = 1, b = 2 %}{{ a + b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a }}"),
    (
        "{{ 'a' if t else 'b' }}{{ 'a' if z }}{{ ('a' if z) is defined }}{{ t and 'x"
        "' }}{{ z or 'y' }}{{ not z }}{{ e or no or 'k' }}{{ 0 and 1 }}"
    ),
    (
        "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b"
        "' }} {{ [1,2] < [1,3] }} {{ 'x' in 'xyz' }} {{ 1 in l }} {{ 9 not in l }} {"
        "{ 'b' in d }} {{ 'q' in x }} {{ (1,2) == (1,2) }} {{ [1] == (1,) }} {{ t =="
        " 1 }} {{ 'a' == 1 }} {{ none == none }} {{ x == y }}"
    ),
    (
        "{{ s[2:5] }}|{{ s[::-1] }}|{{ s[-3:] }}|{{ u[0] }}|{{ u[-1] }}|{{ u[99] }}|"
        "{{ u[4:6] }}|{{ l[1:] }}|{{ l[::-1] }}|{{ l[-1] }}|{{ l[5] }}|{{ l[:99] }}|"
        "{{ l[2:0:-1] }}|{{ u[::2] }}|{{ (1,2,3)[1:] }}"
    ),
    (
        "{{ '\xe9' ~ 1 ~ none ~ t ~ 2.0 }} {{ 'a' * 3 }} {{ [1] * 2 }} {{ 'a' + 'b' "
        "}} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 3 * 'x' }}"
    ),
    ("{{ '%s-%d' % ('a', 3) }} {{ '%s' % 'b' }} {{ '%s' % l }} {{ '100%% %s' % 1 }}"),
    (
        "{{ d.b }} {{ d['b'] }} {{ d.zz }} {{ d['zz'] is defined }} {{ d.c.k[1] }} {"
        "{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.items is defined "
        "}} {{ d['items'] is defined }} {{ d.update is defined }} {{ s.strip is defi"
        "ned }} {{ s.zz is defined }} {{ l.append is defined }} {{ l.index(1) }} {{ "
        "l.count(3) }}"
    ),
    (
        "{{ x|default('D') }} {{ e|default('D') }} {{ e|default('D', true) }} {{ x|d"
        " }} {{ no|default('D') }} {{ no|default('D', boolean=true) }} {{ x.y|defaul"
        "t('z') if false }}"
    ),
    (
        "{{ x }}|{{ x|length }}|{{ x|upper }}|{{ x|trim }}|{{ x ~ 'a' }}|{{ x|list }"
        "}|{{ x|join }}|{{ x|first }}|{{ x|string }}|{{ x|int }}"
    ),
    (
        "{{ '12'|int + 1 }} {{ ' 12 '|int }} {{ '1.9'|int }} {{ 'q'|int }} {{ 'q'|in"
        "t(5) }} {{ 3.9|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ -3"
        "|abs }} {{ t|int }} {{ no|int }}"
    ),
    (
        "{{ l|reverse|list }} {{ 'h\xe9y'|reverse }} {{ (l|reverse) is defined }} {{"
        " l|join(', ') }} {{ 'abc'|join('-') }} {{ 'abc'|list }} {{ 'abc'|first }} {"
        "{ 'abc'|last }} {{ []|first }} {{ d|first }} {{ d|last }} {{ []|max }}"
    ),
    (
        "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb\\n\\nc'|indent(2, true) }}|{{ 'a\\nb\\"
        "n\\nc'|indent(2, true, true) }}|{{ 'a\\nb'|indent('> ') }}|{{ ''|indent }}"
    ),
    ("{{ \"<&>'\\\"\"|e }} {{ \"<a>\"|escape }} {{ '<b>'|safe }} {{ 5|string + 'x' }}"),
    (
        "{{ range(3)|list }} {{ range(1, 7, 2)|list }} {{ range(5, 0, -2)|list }} {%"
        " for i in range(3) %}{{ i }}{% endfor %} {{ range(4)|length }} {{ range(4)["
        "1] }} {{ 2 in range(3) }}"
    ),
    (
        "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ s"
        "trftime_now('%A %B %a %j %I %p %y %-d %e %F %T %w %u %%') }}"
    ),
    (
        "{{ dict(a=1, b=2) }} {{ {'a': 1, 'a': 2} }} {{ {1: 'x', none: 2, true: 3} }"
        "} {{ {} }} {{ () }} {{ (1,) }} {{ [none, true, 1.0, 'it\\'s', \"q\\\"\", '"
        "b\\\\', 'n\\n', '\\x07\xe9\\u200b\\U0001f600'] }}"
    ),
    (
        "{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.en"
        "dswith('bc') }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'h\xe9y'.fin"
        "d('y') }} {{ 'abab'.rfind('ab') }} {{ 'abab'.count('ab') }} {{ 'a-b-c'.part"
        "ition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ '"
        "abc'.rpartition('-') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix"
        "('c') }} {{ '-'.join(['a','b']) }} {{ 'aXb'.lower() }} {{ 'aXb'.upper() }}"
    ),
    (
        "{% if n > 5 and t %}A{% elif z %}B{% else %}C{% endif %}{% if z %}A{% elif "
        "t %}B{% else %}C{% endif %}{% if z %}x{% endif %}"
    ),
    "a  \n   {% if t %}   \n  b\n   {% endif %}\nc",
    "{%- if t -%}  a  {%- endif -%}  b {{- ' c ' -}}  d",
    (
        "{{ (items|map(attribute='n')) and 'gen' }}{% set g = l|map('string') %}{% f"
        "or i in g %}{{ i }}{% endfor %}{% for i in g %}{{ i }}{% endfor %}{{ g|list"
        " }}"
    ),
    (
        "{% for m in messages %}{% generation %}{% set q = 1 %}{{ m.role }}{% endgen"
        "eration %}{{ q is defined }}{% endfor %}"
    ),
    (
        "{% if false %}{% set v = 1 %}{% endif %}{{ v is defined }}{% if true %}{% s"
        "et n = 99 %}{% endif %}{{ n }}{% if false %}{% set f = 1 %}{% endif %}{{ f "
        "}}"
    ),
    ("{% for i in l %}{% if loop.first %}{% set q = 'a' %}{% endif %}{{ q }}{% endfor %}"),
    ("{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = (3, 4) %}{{ c }}{{ d2 }}"),
    "{{ x.y }}",
    "{{ n() }}",
    "{{ l + 'a' }}",
    "{{ no + 1 }}",
    "{{ no|length }}",
    "{% for i in n %}{% endfor %}",
    "{{ raise_exception('boo') }}",
    "{{ 1 < 'a' }}",
    "{{ 5 in 'abc' }}",
    "{{ n // 0 }}",
    "{{ x + 'a' }}",
    "{{ l.append(4) }}",
    "{{ x|tojson }}",
    "{% set ns = {} %}{% set ns.x = 1 %}",
    (
        "{{ [1, 2, 3]|tojson ~ {'a': none}|tojson }}{{ 1.0|tojson }}{{ 1e100|tojson "
        "}}{{ true|tojson }}{{ 'a\"\\\\\\n\\t\\x01/'|tojson }}{{ '\\x7f \xe9 \U0001f600"
        "'|tojson(ensure_ascii=true) }}"
    ),
    (
        "{% macro a(x) %}{{ x }}{% endmacro %}{% macro b(x) %}{{ a(x) }}!{% endmacro"
        " %}{% for i in l %}{{ b(i) }}{% endfor %}"
    ),
    (
        "{% for i in l %}{% for j in l %}{{ loop.index }}{{ i }}{{ j }}{% endfor %}{"
        "{ loop.index }}{% endfor %}"
    ),
    (
        "{% set loop_messages = messages[1:] %}{% for message in loop_messages %}{{ "
        "message.role }}{% endfor %}{% set messages = messages[::-1] %}{{ messages|l"
        "ength }}{{ messages[0].role }}"
    ),
    (
        "{{ messages|length - 1 }}{{ messages[-1].content[0].text }}{{ messages[-1]["
        "'content']|selectattr('type', 'equalto', 'text')|map(attribute='text')|join"
        "('\\n') }}"
    ),
    "{{ \"a\" \"b\" }}{{ 'x' 'y' ~ 'z' }}{{ 1_000 }}{{ 0x1f }}{{ 1.5e3 }}",
    ("{{ [1,[2,[3]]] }}{{ [(1,2),{'a':(3,)}] }}{{ d == {'A':1,'b':2,'c':{'k':[1,2]}} }}"),
    (
        "{{ items|map(attribute='n')|sort|join }}{{ ls|map('lower')|unique|join }}{{"
        " ls|map('default','q')|list }}{{ [[1,2],[3]]|map('length')|list }}{{ [[1,2]"
        ",[3]]|map('first')|list }}{{ ls|map('replace','a','z')|join }}"
    ),
    (
        "{{ items|selectattr('v','gt',1)|map(attribute='n')|list if false }}{{ d.c['"
        "k']|first }}{{ messages|map(attribute='role')|list }}{{ messages|map(attrib"
        "ute='content.0.text')|list }}"
    ),
    (
        '{% set content = messages[1].content %}{% if "\'" in content %}Y{% endif %}'
        "{{ content.split(\"'\")[0] }}{{ content|replace('\\\\', '/') }}"
    ),
    (
        "{{ l|map('string')|first }}{{ ([]|map('string')|first) is defined }}{% set g = l"
        "|map('string') %}{{ g|first }}{{ g|first }}{{ g|list }}"
    ),
    (
        "{{ items|sum(attribute='v', start=1) if false }}{{ [{'a': 1}, {'a': 2.5}]|sum(at"
        "tribute='a') }}"
    ),
    (
        "{{ 'y' if f else 'n' }}{{ 'y' if f - 2.5 else 'n' }}{% macro m() %}{% endmacro %"
        "}{{ 'y' if m else 'n' }}{{ 'y' if range else 'n' }}"
    ),
    (
        "{% set a = namespace(x=1) %}{% set b = namespace(x=1) %}{% macro m() %}{% endmac"
        "ro %}{{ a == a }}{{ a == b }}{{ m == m }}{{ range == range }}{{ range == dict }}"
        "{% for i in l %}{{ loop == loop }}{% endfor %}"
    ),
    "{{ [1] < [1, n] }}{{ [n, 1] < [n] }}{{ n <= 7 }}{{ n <= 6 }}{{ n >= 8 }}",
    "{{ n % -1 }}{{ n // -1 }}{{ (-9223372036854775807 - z) % -1 }}",
    "{{ {n: 2, 'a': t}|tojson }}",
    "{{ {f: 1}|tojson }}",
    "{{ {no: 1}|tojson }}",
    "{{ {t: 1}|tojson }}",
    "{{ (f * 1e308 * 10)|tojson }}",
    "{{ (f * -1e308 * 10)|tojson }}",
    "{{ (f * 1e308 * 10 - f * 1e308 * 10)|tojson }}",
    "{{ f * 1e308 * 10 - f * 1e308 * 10 }}{{ f * 1e308 * 10 }}",
    "{{ f / 1000 }} {{ f / 1e5 }} {{ f / 1e4 }} {{ f * 1e15 }} {{ f * 1e17 }}",
    "{{ dict(d, z=n).z }}{{ dict({'a': n}).a }}",
    "{{ namespace({'a': n}).a }}",
    "{{ '%s-%d' % (s, n) }}",
    "{{ s.startswith(('a', '  T')) }}{{ s.startswith(('a', 'b')) }}",
    "{{ d.get('q', n) }}{{ d.get('q') }}{{ d.get('b') }}",
    "{{ l == [3, 1, 2] }}{{ l != [3, 1] }}{{ d == d }}",
    "{{ n ** 0 }}{{ n ** 2 }}{{ n ** 3 }}",
)
