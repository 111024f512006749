"""Snippets whose results Jinja2 writes into tests/fixtures/template_cases.json (template_random.py --fixture)."""

CONTEXT = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, Wörld!"},
                 {"role": "assistant", "content": "Hi", "tool_calls": [{"name": "f", "arguments": {"x": 1, "y": [1.5, None, True]}}]}],
    "n": 7, "f": 2.5, "s": "Hello World", "u": "naïve ÇA ß İ ΑΣ", "e": "", "none_value": None, "yes": True, "no": False,
    "l": [3, 1, 2], "words": ["foo", "Bar", "baz", "Foo"], "nested": [[1, 2], [3, [4, 5]]],
    "d": {"b": 2, "a": 1, "C": 3}, "users": [{"name": "bob", "age": 30, "on": True, "a": {"b": 1}},
                                            {"name": "Al", "age": 25, "on": False}, {"name": "cy", "age": 30, "on": True}],
    "html": "<a href=\"x\">it's & \"b\"</a>", "long": "foo bar baz qux quux corge grault", "ml": "one\n  two\n\nthree",
    "big": 9007199254740993, "neg": -5, "z": 0, "x.y": 1,
}

_EXPRESSIONS = """
1 + 2 * 3|2 ** 3 ** 2|-2 ** 2|7 // 2|-7 // 2|7 % 3|-7 % 3|7 % -3|7 / 2|6 / 2|7.5 // 2|-7.5 % 2|1e3|1.5e-7|1e16|123456789012345680.0
0.1 + 0.2|1/3|2**0.5|2 ** -1|10 ** 18|1_000|0x1F|0o17|0b101|1_0.5_0|true + 1|1 == 1.0|1 == true|'a' * 3|3 * 'ab'|[1] * 3
(1, 2) + (3,)|[1] + [2, [3]]|'a' 'b' "c"|'a' ~ 1 ~ 2.0 ~ none ~ true|s ~ undefined_thing|'%s is %d' % ('a', 5)|'%5.2f|%-5s|%05d' % (3.14159, 'ab', 42)
'%x %X %o %e %g %r' % (255, 255, 8, 12345.678, 0.0001, 'q')|'%(a)s-%(b)s' % {'a': 1, 'b': 2}|'100%%' % ()|'%s' % none|'%+d % d' % (3, 4)|'%c%c' % (65, 'z')
1 < 2 < 3|1 < 3 < 2|3 > 2 >= 2 != 1|'a' < 'b'|[1, 2] < [1, 3]|(1, 2) == (1, 2)|[1] == (1,)|1 in [1, 2]|1 not in [1, 2]|'ell' in s|'b' in d|2 in d|none == false
not true|not none|not '' and not []|0 or 'x'|'' and 'y'|1 and 2|none or none|1 or undefined_thing.foo|'a' if true else 'b'|'a' if false|('a' if false) is undefined
'a' if n > 5 else 'b' if n > 3 else 'c'|s[0]|s[-1]|s[1:4]|s[::-1]|s[::2]|s[-3:]|s[:-3]|s[100:]|s[5:1]|u[2]|u[2:6]|u[::-1]|l[0]|l[-1]|l[::-1]|l[1:]|l[:2]|l[::2]|l[10]|l[5:2:-1]
(1, 2, 3)[1:]|range(10)[2:8:3]|range(5)[-1]|range(5)|list(range(3)) if list is defined|range(2, 8, 2)|list is defined|d.a|d['a']|d.zzz|d['zzz'] is defined|d.items()|d.keys()|d.values()
d.get('a')|d.get('q')|d.get('q', 5)|d.copy()|d.get|default(1)|nested[1][1][0]|nested.1.0|users[0].name|users[0]['a'].b|users[1].a.b is defined|messages[0].role|messages[-1].tool_calls[0].arguments
[]|[1, 'a', 2.0, none, true]|{}|{'a': 1, 2: 'b', none: [], (1, 2): {}}|()|(1,)|(1, 2)|'it\\'s'|["it's"]|['say "hi"']|['both \\' and "']|['a\\nb\\t\\\\']|['é ü 日本 \\x00 \\x7f']
"\\x41\\u00e9\\U0001F600\\101"|'\\d+\\.'|'a\\
b'|true|false|none|True|False|None|1.0|100.0|1e22|1e-5|0.0001|123456.789|-0.0|1e308 * 10|[1e16, 1e15, 123.0]|big|big + 1.0|9223372036854775807
"""

_EXPRESSIONS_2 = """
s|upper;s|lower;s|title;s|capitalize;u|upper;u|lower;u|title;u|capitalize;"they're bill's friends-and foes"|title;"hELLO wORLD"|title;s|length;u|length;l|count;d|length;e|length
neg|abs;-2.5|abs;l|sum;users|sum(attribute='age');[[1],[2]]|sum(start=[]);l|sort;l|sort(reverse=true);words|sort;words|sort(case_sensitive=true);users|sort(attribute='age')|map(attribute='name')|list
users|sort(attribute='age,name')|map(attribute='name')|join(',');l|min;l|max;words|min;words|max;users|max(attribute='age');[]|max;[]|first;[]|last;l|first;l|last;s|first;s|last;d|first;d|last
l|reverse|list;s|reverse;d|list;s|list;l|join;l|join('-');l|join(', ');users|join(', ', attribute='name');[1, none, true]|join('|');d|join(',');d|dictsort;d|dictsort(true);d|dictsort(false, 'value');d|dictsort(reverse=true)
d|items|list;undefined_thing|items|list;words|unique|list;words|unique(true)|list;[1, 1.0, true, 2]|unique|list;words|map('upper')|list;words|map('length')|list;words|map('replace', 'o', '0')|join(' ')
users|map(attribute='a.b', default='-')|list;users|map(attribute='zz')|list;l|select('odd')|list;l|reject('odd')|list;[0, 1, '', 'a']|select|list;[0, 1, '', 'a']|reject|list;l|select('gt', 1)|list;l|select('in', [1, 3])|list
users|selectattr('on')|map(attribute='name')|list;users|rejectattr('on')|map(attribute='name')|list;users|selectattr('age', 'eq', 30)|list|length;users|selectattr('a', 'defined')|list;messages|selectattr('role', 'equalto', 'user')|list
users|groupby('age')|list;users|groupby('age')|map(attribute='grouper')|list;users|groupby('a.b', default=0)|map('first')|list;(users|groupby('age'))[0].list;l|batch(2)|list;l|batch(2, 'x')|list;range(10)|batch(3, 0)|list;range(10)|slice(3)|list;range(10)|slice(3, 'f')|list
none_value|default('x');undefined_thing|default('x');undefined_thing|d;''|default('x');''|default('x', true);false|default('x', boolean=true);undefined_thing|default;0|default(3, true)
'42'|int;'42.9'|int;'abc'|int;'abc'|int(9);'0x1F'|int(0, 16);'ff'|int(base=16);'0b11'|int(0, 2);42.9|int;-42.9|int;none|int;true|int;' 7 '|int;'1_000'|int;'1e3'|int;'1e3'|float;'3.14'|float;'x'|float;'x'|float(1.5);7|float;'nan'|float;'inf'|float;'-inf'|float
42.55|round;42.55|round(1);42.55|round(1, 'floor');42.51|round(1, 'ceil');2.5|round;3.5|round;-2.5|round;2.675|round(2);1234.5|round(-2);1234|round(-2);1250|round(-2);42|round;42|round(2);5|round(0, 'ceil')
html|escape;html|e;html|safe;html|escape|escape;(html|safe) ~ html;(html|safe) + '<b>';html|forceescape;html|striptags;'a <!-- c --> b  <i>c</i>'|striptags;'<a>'|e|length;html|escape is escaped;'x' is escaped
long|truncate(9);long|truncate(9, true);long|truncate(11);long|truncate(11, false, '...', 0);long|truncate(15, true, '', 0);'short'|truncate(9);u|truncate(5, true, '…', 0);long|wordcount;u|wordcount;'a-b c_d'|wordcount
ml|indent;ml|indent(2);ml|indent(2, true);ml|indent(2, true, true);ml|indent('> ', first=true);'x'|indent;''|indent(2, true);s|center(20);s|center(21)|length;'  x '|trim;'xxaxx'|trim('x');s|replace('l', 'L');s|replace('l', 'L', 1);s|replace('', '-');12321|replace(2, 'x');'aaa'|replace('a', 'b', 0)
'%s-%s'|format('a', 1);'%(x)s'|format(x=5);'a b/c?d=é'|urlencode;{'a b': 'c&d', 'x': 1}|urlencode;[('a', 1), ('b', 'ü')]|urlencode;5|urlencode;5|string;none|string;[1, 'a']|string;d|xmlattr;{'class': 'a<b', 'id': none}|xmlattr;{'id': 1}|xmlattr(false)
1|filesizeformat;999|filesizeformat;1000|filesizeformat;1500000|filesizeformat;1024|filesizeformat(true);123456789|filesizeformat(true);d|attr('items') is callable;d|attr('a');users[0]|attr('name') is defined
d|tojson;l|tojson;none|tojson;true|tojson;1.5|tojson;1e100|tojson;'a"b\\\\c\\n\\t\\x01/é<>&'|tojson;'é日本😀'|tojson;'é日本😀'|tojson(ensure_ascii=true);d|tojson(indent=2);messages|tojson(indent=4);[]|tojson(indent=2);{}|tojson(indent=2);[[], {}]|tojson(indent=1);d|tojson(sort_keys=true);d|tojson(separators=(',', ':'))
{1: 2, none: 3, true: 4, 1.5: 5}|tojson;(1, 2)|tojson;nested|tojson(indent='--');nested|tojson(indent=0);big|tojson;messages[2]|tojson;range(3)|list|tojson
"""

_EXPRESSIONS_3 = """
n is odd;n is even;n is divisibleby 7;n is divisibleby(2);n is defined;zz is defined;zz is undefined;zz is not defined;none is none;n is none;n is number;f is number;true is number;f is float;n is integer;true is integer;true is boolean;n is boolean
s is string;l is string;l is sequence;s is sequence;d is sequence;d is mapping;l is mapping;l is iterable;n is iterable;d.items() is sequence;(l|map('upper')) is iterable;n is eq 7;n is ==(7);n is ne 7;n is lt 8;n is le 7;n is gt 7;n is ge 7;n is in [1, 7];n is not in [1, 7];'a' is in 'abc'
true is true;false is true;false is false;1 is true;n is sameas n;l is sameas l;[] is sameas [];none is sameas none;'upper' is filter;'nope' is filter;'odd' is test;'nope' is test;s is lower;s|lower is lower;s|upper is upper;'' is lower;'123' is upper;range is callable;s is callable;s.upper is callable
s.upper();s.lower();s.title();s.swapcase();s.capitalize();u.upper();u.title();u.swapcase();u.casefold() is defined;s.split();s.split('o');s.split('o', 1);s.rsplit('o', 1);'a  b c'.split(' ');' a  b '.split();' a b c '.split(none, 1);' a b c '.rsplit(none, 1);''.split();''.split(',')
s.startswith('He');s.startswith(('x', 'H'));s.startswith('l', 2);s.endswith('ld');s.endswith(('x', 'd'));s.find('o');s.find('o', 5);s.find('z');s.rfind('o');s.index('W');s.count('l');s.count('');s.replace('o', '0');s.replace('o', '0', 1);s.strip('Hd');s.lstrip('H');s.rstrip('d')
'  x '.strip();'  x '.lstrip() ~ '|';'  x '.rstrip();s.partition(' ');s.rpartition('o');s.partition('z');s.rpartition('z');s.removeprefix('Hello ');s.removesuffix('World');s.removeprefix('x');'a\\nb\\r\\nc\\n'.splitlines();'a\\nb'.splitlines(true);''.splitlines();'ab'.center(7, '*');'abc'.center(6, '*');'ab'.ljust(4) ~ '|';'ab'.rjust(4, '.')
'-42'.zfill(6);'42'.zfill(5);'a\\tb'.expandtabs(4);', '.join(words);''.join([]);'-'.join('abc');'abc'.isalpha();'ab1'.isalnum();'12'.isdigit();'²'.isdigit();'²'.isdecimal();'½'.isnumeric();' \\t'.isspace();''.isspace();'Ab C'.istitle();'ab'.islower();'AB'.isupper();'a1_'.isidentifier();'é'.isascii();'a\\n'.isprintable()
'{} {}'.format(1, 'a');'{1} {0}'.format('a', 'b');'{x} {y!r}'.format(x=1, y='q');'{:>8}|{:<8}|{:^8}|'.format('a', 'b', 'c');'{:*^9}'.format('mid');'{:05d} {:+d} {:x} {:#x} {:b} {:,}'.format(42, 3, 255, 255, 5, 1234567);'{:.2f} {:8.3f} {:e} {:g} {:%}'.format(3.14159, 2.5, 12345.678, 0.5, 0.25)
'{0[a]} {0[b]}'.format(d);'{{}} {}'.format(5);'{:{}}|'.format('a', 5);'{:s}'.format('x');'{:.2}'.format('abc');'{}'.format(none);'{} {}'.format([1], {'a': 2});'{!s:>5}'.format('ab');'{m.role}'.format(m=messages[0]);'{:,.2f}'.format(1234567.891);'{:_}'.format(1234567);'{a}'.format_map({'a': 3})
l.count(1);l.index(2);l.copy();(1, 2, 1).count(1);d.items()|list;d.keys()|list;d.values()|list;d.items()|length;'a' in d.keys();2 in d.values();('a', 1) in d.items();n.real;f.is_integer();(4.0).is_integer();n.bit_length();n.numerator
dict(a=1, b=2);dict({'a': 1}, c=3);dict([('x', 1), ('y', 2)]);namespace(a=1).a;namespace(a=1);namespace({'q': 2}).q;namespace().zz is defined;range(0);range(5, 0, -2)|list;range(1, 10, 3)|list;cycler('a', 'b').next();cycler(1, 2).current;joiner is callable
s['upper']();d['items']()|list;d['missing'] is undefined;l.append is defined;d.pop is undefined;s.__class__ is defined;none.x is defined;n.foo is defined;l['x'] is defined;l[1.5] is defined;(none|default(1)) is none;undefined_thing == undefined_other;undefined_thing == none;[undefined_thing];undefined_thing|list;undefined_thing|length;undefined_thing|upper;undefined_thing|string ~ 'x'
'a' < 'B';'é' > 'z';true > false;1 < 2.5;-1 < big;big < 9007199254740993.0;big == 9007199254740992.0;[1, 'a'] == [1.0, 'a'];{'a': 1} == {'a': 1.0};{'a': 1, 'b': 2} == {'b': 2, 'a': 1};[[1, 2], [1]]|sort;[(2, 'a'), (1, 'b')]|sort;[true, false, 2]|sort;[none]|sort;['b', 'A', 'a', 'B']|sort
1 if 0 else 2 if 0 else 3;(1 if 1 else 2) + 1;not 1 == 2;not (1 in [1]);1 in [1] == true;-1|abs;(-1)|abs;- 1 + 2;+ 5;-n;2 * -3;'a' ~ 'b' * 2;1 ~ 2 + 3;1 + 2 ~ 3;'x' ~ 1 + 1 if true else 'q';[1, 2][0] + 1;{'a': 1}['a'];{'a': [1, 2]}.a[1];(s|upper)[0];s|upper|lower|first;'a,b'.split(',')[1];[s, s|lower]|join;d.a + d['b'] * 2
"""

_STATEMENTS = [
    "{% for i in l %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}", "{% for i in l %}{{ i }}{% else %}empty{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}",
    "{% for i in l if i > 9 %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3)), (4, (5, 6))] %}{{ a }}{{ b }}{{ c }} {% endfor %}",
    "{% for i in l %}{{ loop.index }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.length }} {{ loop.depth }} {{ loop.depth0 }} {{ loop.previtem }} {{ loop.nextitem }}\n{% endfor %}",
    "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}", "{% for c in 'añb' %}[{{ c }}]{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l|map('string') %}{{ i }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for i in [1, [2, [3]], 4] recursive %}{% if i is sequence %}({{ loop(i) }}){% else %}{{ i }}.{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for u in users recursive %}{{ u.name }}{% if u.kids %}{{ loop(u.kids) }}{% endif %}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in l %}{% set outer = loop %}{% for j in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }} {% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b), c = (1, 2), 3 %}{{ a }}{{ b }}{{ c }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set y | replace('a', zz) %}{% set zz = 'W' %}abc{{ zz }}{% endset %}{{ y }}", "{{ z }}{% set y | replace('a', z) %}abc{{ z }}{% endset %}{{ y }}",
    "{% set w = 'V' %}{% set y | replace('a', w) %}abc{% set w = 'W' %}{% endset %}{{ y }}{{ w }}",
    "{% set w = 'V' %}{% filter replace('a', w) %}abc{% set w = 'W' %}{% endfilter %}{{ w }}",
    "{% set ns = namespace(a=1) %}{% set ns.a, ns.b = 5, 6 %}{{ ns.a }}{{ ns.b }}",
    "{% set b %}x{{ n }}y{% endset %}[{{ b }}]", "{% set b | upper %}x{{ s }}y{% endset %}[{{ b }}]", "{% set b | replace('x', 'q') | title %}x y{% endset %}{{ b }}",
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}", "{% if zz %}a{% elif d.a %}b{% endif %}", "{% if not messages %}x{% else %}y{% endif %}",
    "{% if true %}{% set q = 5 %}{% endif %}{{ q }}", "{% if false %}{% set n = 5 %}{% endif %}{{ n }}", "{% if false %}{% set q = 5 %}{% endif %}{{ q is defined }}",
    "{% for i in l %}{% if loop.first %}{% set n = 99 %}{% endif %}{{ n }} {% endfor %}{{ n }}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(b=5, a=6) }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m.name }}{{ m.arguments }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(x) %}{{ caller() }}{{ x }}{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %}",
    "{% macro m() %}{% for i in l %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(a, b=0) m() %}<{{ a }}-{{ b }}>{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ m() }}{% call m() %}c{% endcall %}",
    "{% macro fact(k) %}{{ 1 if k < 2 else k * (fact(k - 1)|int) }}{% endmacro %}{{ fact(5) }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{% set x = 5 %}{{ x }}{% endmacro %}{{ m() }}{{ x is defined }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ m is defined }}{% macro m() %}{% endmacro %}{{ m is defined }}",
    "{% macro n() %}x{% endmacro %}{{ n() }}", "{% macro m(messages) %}{{ messages }}{% endmacro %}{{ m(1) }}{{ messages|length }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aaa{% endfilter %}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with n = n + 1 %}{{ n }}{% endwith %}{{ n }}", "{% with a = 1, b = a %}{{ b is defined }}{% endwith %}",
    "{% raw %}{{ x }} {% if %}{% endraw %}", "a {%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}\n x\n  {% endraw %}\n y", "{# comment #}a{#- c -#} b", "a\n  {# c #}\n  b",
    "  {% if true %}\n  x\n  {% endif %}\ny", "  {%- if true -%}\n  x\n  {%- endif -%}\ny", "  {%+ if true +%}\n  x\n  {%+ endif +%}\ny", "a {{- n -}} b", "a {{ n }} b\n", "a\n{{ n }}\nb\n\n",
    "{% for i in l %}\n  {{ i }}\n{% endfor %}\n", "{% for i in l -%}\n  {{ i }}\n{%- endfor %}\n", "x {% if true %} y {% endif %} z", "x\n\t {% if true %}\n y\n \t{% endif %}\n z", "{{ '\n' }}{% if true %}\n\n{% endif %}x",
    "a\r\nb\rc", "{{ 'a\r\nb' }}", "{{ \"{{ x }}\" }}{{ '%}' }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {}}}}", "{% print 1, 2 %}", "{%- set x = 1 -%} {{ x }}", "{% generation %}abc{{ n }}{% endgeneration %}d",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}", "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q is defined }}",
    "{% autoescape false %}{{ html }}{% endautoescape %}", "{% set j = joiner('; ') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set it = l|map('string') %}{{ it|first }}{{ it|list }}{{ it|list }}", "{% set seen = namespace(v=[]) %}{% for i in [1, 1, 2] if i not in seen.v %}{% set seen.v = seen.v + [i] %}{{ i }}{% endfor %}",
    "{% set x = [] %}{{ x.append(1) }}", "{{ d.update({'q': 1}) }}", "{{ zz.foo }}", "{{ d.zz.foo }}", "{{ zz + 1 }}", "{{ 'a' + 1 }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ n() }}", "{{ zz() }}", "{{ l|sort(attribute='x') }}", "{{ [1, 'a']|sort }}",
    "{{ raise_exception('no: ' ~ n) }}", "{{ range(1000000) }}", "{{ none + 1 }}", "{{ s.index('zz') }}", "{{ '%d' % 'x' }}", "{{ '{}'.format() }}", "{{ {[]: 1} }}", "{% for i in 5 %}{% endfor %}", "{% set a, b = [1] %}", "{% set n.x = 1 %}",
    "{{ 'a' if }}", "{% if %}{% endif %}", "{% for %}{% endfor %}", "{% endif %}", "{% if true %}", "{{ 1 + }}", "{{ (1 }}", "{{ [1, }}", "{% unknown %}", "{{ x|nofilter }}", "{{ x is notest }}", "{% if false %}{{ x|nofilter }}{% endif %}ok", "{{ 'abc }}", "{# open", "{% raw %}", "{{ 1 2 }}", "{% set true = 1 %}", "{% break %}", "{% set x %}", "{{ a.b.c }}", "{{ 'x' is odd }}", "{{ undefined_thing|int }}", "{{ undefined_thing|abs }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ d|map('upper', 1)|list }}", "{{ l|map('nofilter')|list }}", "{{ l|batch(0)|list }}", "{{ l|slice(0)|list }}", "{{ zz|tojson }}", "{{ {(1,2): 3}|tojson }}", "{{ namespace(a=1)|tojson }}", "{{ s|attr('upper')() }}",
    "{% set x = namespace() %}{% set x.y = namespace(z=3) %}{{ x.y.z }}", "{% for k, v in d|dictsort %}{{ k }}{{ v }}{% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}", "{% for age, us in users|groupby('age') %}{{ age }}{{ us|map(attribute='name')|join }}{% endfor %}",
    "{% set a = 1 if false %}{{ a is defined }}", "{{ foo.bar if foo is defined else 'no' }}", "{% for x in undefined_thing %}{{ x }}{% else %}e{% endfor %}", "{{ loop is defined }}", "{% for i in l %}{{ loop }}{% endfor %}", "{{ 'a'.join }}x" if False else "{{ s.upper() if s }}",
    "{% set tools = none %}{{ tools is none }}{{ tools is defined }}", "{{ messages[0]['content'] | trim }}", "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{{ loop_messages|length }}",
    "{% for message in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{{ index }}{% endfor %}", "{{ '</think>' in messages[0].content }}", "{{ ('a</think>b'.split('</think>')|last).lstrip('\\n') }}", "{{ messages[2].tool_calls[0] | tojson(indent=4) }}", "{% for tc in messages[2].tool_calls %}{{ tc.name }}({{ tc.arguments | items | map('join', '=') | join(', ') }}){% endfor %}",
]

_STATEMENTS += ["{{ " + e + " }}" for e in r"""
d.items().x.y
(l|map('upper')).x.y
namespace().x.y
loop.x.y
joiner().x.y
cycler(1).x.y
s.x.y
(1, 2).x.y
n.x.y
f.x.y
yes.x.y
range.x.y
range(2).x.y
l[9].x
none.x.y
([]|first).x
5|length
1.5 and 2
range(3) == range(0, 3)
range(3) == range(4)
range == range
namespace() == namespace()
5 in 'abc'
{1: 2}[1]
{1: 2, none: 3, 1.5: 4}[1.5]
{1: 2}[2] is defined
2.5 < 3
2.5 == f
f < 2.4
'%.5d' % 42
'%.5000d' % 1
'%f %F %G' % (1e400, -1e400, 1e400)
'{:10}|{:<10}|'.format(1.5, 2.5)
'%r' % [1]
'%*d' % (5, 3)
'%*d' % ('a', 3)
'%c' % 1.5
'%q' % 1
'{:=5}'.format('a')
'{:05}'.format('a')
'{:5}'.format([1])
'{} {0}'.format(1)
'{x}'.format()
'{0[1]}'.format([1, 2])
'{0.x}'.format(1)
'{!z}'.format(1)
'{'.format()
'}'.format()
'{:.}'.format(1.5)
'{:5q}'.format(1)
'{:.2d}'.format(1)
'{:x}'.format(1.5)
s.replace('a', 'b', q=1)
s.replace('a')
s.split(sep='o')
'a b'.split(sep=none, maxsplit=1)
s|replace('a', old='b', new='c')
dict(a=1, a=2)
dict(*[[('a', 1)]])
dict(**{'a': 1})
dict(**5)
dict(**{1: 2})
dict(1)
dict([1])
dict([(1, 2, 3)])
dict({}, {})
namespace(1, 2)
range()
range(0, 5, 0)
range(zz)
range('a')
cycler()
raise_exception(zz)
range(1, 2, 3).count(1)
range(10).index(4)
range(10).index(40)
'\x00\x1f\u200b'|string|list
['\x00\x1f\u200b\U000e0001']
s.nope()
l.index(99)
l.index(3, 1)
l.index(2, -2, -1)
n.bit_length
f.bit_length()
n.is_integer()
s|int(0, 99)
'9' * 30|int
'99999999999999999999'|int
1e30|int
'inf'|int
'nan'|int
2 ** 63
2 ** 64
(-1) ** 5
0 ** 0
0 ** -1
(-8) ** 0.5
2.0 ** 2000
-7.5 // 2
7 // -2.0
0.0 % 3
-0.0 // 5
9223372036854775807 * 2
-9223372036854775807 - 2
'abc' - 1
l[::0]
l['a':]
l[none:2]
s[::-2]
u[::-2]
{}.x[1:2]
zz[1:]
'abc'.center(10, 'xy')
'abc'.join([1])
''.join(zz)
s.find(1)
s.count('')
s.find('o', -4)
s.find('o', -4, -1)
s.find('x', 50)
'a'.split('')
'a'.partition('')
s.startswith(1)
s.zfill(-1)
{'a': 1}|dictsort(by='x')
5|dictsort
zz|dictsort
5|xmlattr
{'a b': 1}|xmlattr
{1: 1}|xmlattr
[1]|urlencode
[(1, 2, 3)]|urlencode
'a'|round
2.5|round(method='x')
1e308|round(2, 'ceil')
12345|round(-20)
15|round(-1)
25|round(-1)
-15|round(-1)
1.5|round(400)
123.0|round(-400)
zz|round
zz|float
none|float
'1_0'|float
'0x10'|float
'0b101'|int(0)
'0o17'|int(8)
'010'|int(0)
'+5'|int
'-5'|int
'5 5'|int
''|int
5|indent
zz|indent
'a'|truncate(2)
'abcdefghij'|truncate(3, leeway=none)
12345|truncate(1)
5|items|list
l|sum('x')
words|sum
[]|sum(start='')
l|max(attribute='x')
l|map|list
l|map(5)|list
l|map(foo=1)|list
l|map(attribute='a', foo=1)|list
none|map('upper')|list
5|map('upper')|list
l|select(5)|list
l|select('nope')|list
l|selectattr|list
none|select|list
5|reverse
d|reverse|list
(l|map('string'))|reverse
(l|map('string'))|last
d.items()|last
5|last
5|first
5|join
'x'|join(zz)
l|join(5)
users|unique|list
s|attr(5)
s|attr('nope') is defined
s|format(1, a=2)
'a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q'|map(attribute='a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q')|list
l|tojson(separators=5)
l|tojson(indent='x')
l|tojson(indent=1.5)
range(2)|tojson
1e400|tojson
-1e400|tojson
{1e400: 1}|tojson
'a'|filesizeformat
1e30|filesizeformat
(-5)|filesizeformat
'<p>a &amp; b</p> <!-- x'|striptags
'a < b'|striptags
5|batch('a')|list
""".strip().split("\n")]
_STATEMENTS += [
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}{{ m.zz is defined }}{{ m(*[1]) }}{{ m(**{'a': 2}) }}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{% endmacro %}{{ m() }}{{ m(1) }}", "{% macro m() %}{{ caller }}{% endmacro %}{% call m() %}x{% endcall %}", "{% call n() %}{% endcall %}", "{% call range(3) %}{% endcall %}", "{% filter length %}a{% endfilter %}",
    "{% for i in l %}{{ loop(l) }}{% endfor %}", "{% for i in l recursive %}{{ loop() }}{% endfor %}", "{% for i in l %}{{ loop.cycle() }}{% endfor %}", "{% for i in l %}{{ loop.zz is defined }}{{ loop|length }}{{ loop is iterable }}{% endfor %}",
    "{% for i in l %}{% for a, b in loop %}{{ a }}{{ b.index }}{{ loop.length }}{{ loop.revindex }}{% endfor %}{% endfor %}", "{% for i in l|map('int') if i > 0 %}{{ loop.revindex }}{{ loop.nextitem }}{% endfor %}", "{% for i in l %}{% continue %}{% else %}e{% endfor %}",
    "{% for i in range(20)|map('int') %}{{ loop.length }}{% endfor %}", "{% set (a, b) = 5 %}", "{% set a, b = d %}{{ a }}", "{% set a, b, c = d.items() %}{{ b }}", "{% set ns = namespace() %}{% set ns.a %}x{% endset %}{{ ns.a }}", "{% set zz.a = 1 %}",
    "{% set x | nofilter %}{% endset %}", "{% with 1 = 2 %}{% endwith %}", "{% call 5 %}{% endcall %}", "{% autoescape true %}{% endautoescape %}", "{{ '\\ud800' }}", "{{ '\\x4' }}", "{{ '\\é\\€\\😀' }}", "{{ 1.5.2 }}", "{{ a.. }}", "{{ a[1, 2] is defined }}", "{{ a[1:2, 3] }}", "{{ 0x }}", "{{ 007 }}", "{{ 99999999999999999999 }}", "{{ ] }}", "{{ (] }}", "{{ ! }}", "{{ $ }}", "{{ é }}", "{{ f(a=1, 2) }}", "{{ f(**a, *b) }}", "{{ f(*a, *b) }}", "{{ x is defined is none }}", "{{ x is }}", "{{ x| }}", "{{ }}", "{% 5 %}", "{% set %}", "{% for x on y %}{% endfor %}", "{% macro %}", "{% macro m(5) %}{% endmacro %}", "{% filter %}{% endfilter %}", "{{ x.a.b|a.b }}", "{% block x %}{% endblock %}", "{% elif x %}",
]

_STATEMENTS += ["{{ " + e + " }}" for e in r"""
'{:.4}|{:.3}|{:.3}|{:.1}|{:.0}'.format(1000.0, 100.0, 12345.678, 5.0, 5.0)
'{:#.3}|{:.3}|{:.12}'.format(123.0, 0.000012345, 0.1)
'{:010,}|{:012,}|{:012,.2f}|{:+012,.2f}|{:09,}|{:08_}|{:010_x}|{:#010_x}'.format(1234, 1234567, 1234.5, 1234.5, -1234, 1234, 123456789, 255)
'{:010,}|{:015,e}|{:010,%}|{:0=10,}|{:>010,}'.format(1e16, 12345.0, 50.0, 5, 5)
'{:<05d}|{:^05d}|{:>05d}|{:*<05d}|{:<05}|{:>05}|{:05}'.format(42, 42, 42, 42, 'a', 'a', 'ab')
'{:=05}'.format('ab')
'{:c}|{:5c}|{:05c}|{:c}'.format(65, 65, 65, 128512)
'{:+c}'.format(65)
'{:c}'.format(-1)
'{:,x}'.format(255)
'{:,n}'.format(255)
'{:_b}|{:_o}'.format(255, 25555)
'{!a} {!r}'.format(['é'], 'é')
'{:5}'.format(undefined_thing)
'{:5}|{:>8}|'.format(true, false)
'{:.2}'.format(5)
'%(a)s %s' % {'a': 1}
'%s %(a)s' % {'a': 1}
'%5%' % (1,)
'%a %r' % ('é', ['é'])
'%d %d' % (1e22, -3.99)
'%.5d|%08.3d|%+.3d' % (42, 5, 7)
'%d' % ('inf'|float)
('<b>%s %r %d</b>'|safe) % ('<i>', '<', 5)
('<b>%(a)s</b>'|safe) % {'a': '<i>'}
('<b>%c</b>'|safe) % 65
('<b>{} {a:>4} {c}</b>'|safe).format('<i>', a='<', c='<'|safe)
('{:5}'|safe).format('<'|safe)
('<b>%s</b>'|safe)|format('<i>')
('<b>'|safe).join(['<a>', 1, '<c>'|safe])
[('<b>'|safe).replace('b', '<'), ('<b>'|safe).center(7, '*'), ('<b>'|safe)[0], ('<b>'|safe)[:2], ('<b>'|safe).partition('b')]
('<b>'|safe).center(9, '<')
['a'|e|title, 'a'|e|upper, 'a'|e|indent, 'a'|e|replace('a', 'b'), ['a'|e]|join, 'a'|e|truncate(3), 'a'|e|list]
'ß ŉ ǰ ΐ ſ ς Σ'.casefold()
'٣٤'|int + '１２'|int
'٣.٤'|float
'1_0_0'|int + ('1__0'|int) + ('_1'|int) + ('1_'|int)
'abc'.startswith(prefix='a')
'abc'.replace(old='a', new='b')
d.get('zz', default=5)
l.index(value=3)
d.fromkeys(['x', 'y'])
dict.fromkeys('ab', 0)
range(5)[::2]
range(5, 0, -2)
range(0)[::-1]
range(5, 3)
range(10, 0, -3).stop
range(10)[2:8:3].stop
[5e-324, 2.2250738585072014e-308, 5.6843418860808015e-14, 9.5367431640625e-07, 1.5e-323, 8.673617379884035e-19]
5.684341886080802e-14
[5e-324, 1e23, 1e22, 123456789012345680.0]|tojson
'\x7fé'|tojson(true)
'\x7fé'|tojson
range(7)|batch(2.0)|list
range(7)|batch(2.0, 1)|list
range(7)|batch(2.5)|list
[1, none]|map('abs')|first
[1, none]|map('abs')|list
['a', 1]|map('upper')|first
[[1, 2], 5]|map('first')|first
[1, 'x']|select('odd')|first
2.5|round(none, 'ceil')
[-0.5|round(0, 'ceil'), -0.0|round(1, 'floor')]
[(-0.5)|filesizeformat, 1e24|filesizeformat, 1e27|filesizeformat]
'<!-- <b> -->x<<!-- y -->i>z<!-->w'|striptags
'a <!-- b <i> c'|striptags
'a < b > c'|striptags
'a &amp b &copy 2024 &eacute; &notit &nbsp;| &apos;&frac12;'|striptags
'&#65;&#x42;&#0;&#128;&#x110000;&#xD800;&#1;&#13;&#65x&#;&#x;&;&'|striptags
'&amp;lt; &ampamp'|striptags
d.keys() == d.keys()
d.items() == d.copy().items()
d.values() == d.values()
d.keys() == ['b', 'a', 'C']
{'a': [1]}.items() == {'a': [1]}.items()
7 // -2.0
1e16 // -1.5
-7.5 // 0.3
big / 7
big / -3
-9007199254740993 / 9007199254740992
1 / 9223372036854775807
9223372036854775807 / 9223372036854775806
""".strip().split("\n")]
_STATEMENTS += [
    "{% for loop in l %}x{% endfor %}", "{% for i in l %}{% set loop = 5 %}{% endfor %}", "{% for i in l %}{% macro m() %}{% set loop = 5 %}{% endmacro %}{% endfor %}",
    "{% for i in l %}{% macro m(loop) %}{{ loop }}{% endmacro %}{{ m(1) }}{% endfor %}", "{% set loop = 9 %}{% for i in l %}{{ loop.index }}{% endfor %}{{ loop }}",
    "{% for i, in [[1], [2]] %}{{ i }}{% endfor %}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}", "{% macro m(caller=none) %}{{ caller() if caller else 'n' }}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}",
    "{% macro m() %}{{ varargs }}{% set varargs = 1 %}{{ varargs }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{% macro k() %}{{ varargs }}{% endmacro %}{{ k(5) }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{% filter upper %}{{ kwargs }}{% endfilter %}{% endmacro %}{{ m(a='b') }}", "{% macro m(a, a) %}{% endmacro %}", "{% macro true() %}{% endmacro %}", "{% macro m(none) %}{% endmacro %}",
    "{% macro m() %}{% generation %}{{ caller() }}{% endgeneration %}{% endmacro %}{% call m() %}x{% endcall %}", "{% generation %}{{ varargs }}{{ kwargs }}{{ caller is defined }}{% endgeneration %}", "{% macro m(a, b=a, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=5) }}",
    "{% set a = 9 %}{% macro m(b=a, a=1) %}{{ b }}{{ a }}{% endmacro %}{{ m() }}", "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(y) m(3) %}{{ y }}{% call(z) m(y + 1) %}{{ y }}{{ z }}{% endcall %}{% endcall %}",
    "{% macro o() %}{% set c = caller %}{% call i() %}{{ c() }}{% endcall %}{% endmacro %}{% macro i() %}[{{ caller() }}]{% endmacro %}{% call o() %}x{% endcall %}",
    "{% set g = range(6)|map('string') %}{% set h = g|map('int') %}{{ h|first }}{{ g|first }}{{ h|list }}", "{% set g = range(6)|map('int') %}{% for i in g %}{{ i }}{{ g|first }}{% endfor %}", "{% set g = [1, 1, 2]|unique %}{{ g|first }}{{ g|list }}", "{% set g = range(6)|select('odd') %}{{ 3 in g }}{{ g|list }}",
    "{% for i in range(6)|select('odd') %}{% if loop.index == 2 %}{{ loop.length }}{{ loop.revindex }}{% endif %}{{ i }}{{ loop.last }}{% endfor %}", "{% for i in [1, none]|map('abs') %}{{ i }}{% break %}{% endfor %}",
    "{% for i in range(6) if i % 2 %}{{ loop.index }}/{{ loop.length }} {{ loop.revindex }} {{ loop.previtem }} {{ loop.nextitem }} {{ loop.last }};{% endfor %}", "{% for x in [[1, 2], [3]] if x recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{{ loop.length }}{% endfor %}",
    "{% for x in [[[]]] recursive %}<{{ loop(x) }}>{% else %}E{% endfor %}", "{% for x in [[1], 2] recursive %}{% set q = loop %}{% if x is iterable %}{% for y in x %}{{ q([5]) }}{% endfor %}{% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for b in l %}{% for a in [] %}{% else %}{{ b }}{% break %}{% endfor %}{% endfor %}", "{% for a in l %}q{% set x %}a{% continue %}{% endset %}b{% endfor %}x", "{% for i in l %}{{ loop.changed(i > 1) }}{{ loop.changed() }}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.x | upper %}abc{% endset %}{{ ns.x }}", "{% for ns.x in l %}{% endfor %}", "{% with a, b = [1, 2] %}{{ a }}{{ b }}{% endwith %}", "{% if n %}{% else %}{% elif s %}{% endif %}", "{% for i in l if i > 1 else %}x{% endfor %}",
    "{{ 'a' if n else 'b'\n   if z }}{{ ('a' if n) ~ ('b' if zz) }}{{ 'x' if n else 'y' * 2 }}", "{{ n is defined if n else 1 }}", "{{ 4 is divisibleby(num=2) }}{{ 1 is eq 1 + 1 }}", "{{ dict(if=1, true=2) }}", "{{ d.if is defined }}{{ else is defined }}", "{{ 変数 is defined }}{{ a$b }}", "{{ 1_ }}", "{{ 5.real }}", "{{ 1.0.real }}{{ 1 .real }}",
    "{% set ns = namespace(_x=1, y=2) %}[{{ ns._x }}{{ ns['_x'] }}{{ ns._x is defined }}{{ ns.y }}]", "{% set d = {'_x': 1} %}{{ d._x }}", "{{ namespace(_x=1)._x.y }}",
    "{{ strftime_now('%z|%Z|%f|%%f|%#Z|%Y') }}", "{{ strftime_now() }}",
]

# Results that differ between systems, or refusals on purpose: only for the fuzzer; a pair also has its own variables.
CORPUS_ONLY = [("{{ big is integer }}{{ zero }}{{ big }}", {"big": 18446744073709551615, "zero": -0.0}), "{{ strftime_now('%Y-%m-%d %c') }}", "{{ strftime_now(5) }}", "{{ strftime_now('%9999Y') }}{{ strftime_now('%9999Y%9999Y') }}", "{{ d.get }}", "{{ strftime_now('%Y\\0') }}", "{{ s.encode() }}", "{{ n.hex() }}", "{{ d.keys() - d.keys() }}", "{{ '&euro;'|striptags }}", "{% for i in range(99999) %}{% for j in range(999) %}{% endfor %}{% endfor %}", "{{ 'x' * 99999999 }}",
               "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{{ ns == ns }}", "{{ '\\N{DASH}' }}", "{{ '(' * 9 }}{{ '%999999999d' % 1 }}",
               "{% set ns = namespace(l=[]) %}{% for i in range(2000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}", "{{ " + "(" * 300, "{% if 1 %}" * 300, "{{ 1" + "+1" * 300 + " }}", "\xff"]


def snippets():
    out = []
    for block, separator in ((_EXPRESSIONS, "|"), (_EXPRESSIONS_2, ";"), (_EXPRESSIONS_3, ";")):
        text = block.strip().replace("\\\n", "\0")
        for line in text.split("\n"):
            parts = _split(line, separator)
            out += ["{{ " + part.replace("\0", "\\\n").replace("\\\\", "\\") + " }}" for part in parts if part.strip()]
    return out + _STATEMENTS


def _split(line, separator):
    """Splits at separators outside of quotes."""
    parts, quote, part, i = [], None, "", 0
    while i < len(line):
        c = line[i]
        if quote:
            if c == "\\":
                part += c + line[i + 1]
                i += 2
                if part.endswith("\\\\") and i < len(line) and line[i] in "'\"":
                    part += line[i]
                    i += 1
                continue
            if c == quote:
                quote = None
        elif c in "'\"":
            quote = c
        if c == separator and not quote:
            parts.append(part)
            part = ""
        else:
            part += c
        i += 1
    return parts + [part]
