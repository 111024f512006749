"""Random expressions that know their types, so that few are errors: for template_random.py --typed."""
import random

CONTEXT = {
    "s": "Hello World", "u": "naïve ÇA ß İ ΑΣ 日本", "e": "", "w": "  \tpad \n", "ml": "one\n  two\r\n\nthree\n", "html": "<a href=\"x\">it's & \"b\"</a>",
    "n": 7, "neg": -5, "z": 0, "big": 9007199254740993, "f": 2.5, "tiny": 1e-7, "huge": 1.5e300, "third": 0.3333333333333333, "t": True, "no": False, "none_value": None,
    "l": [3, 1, 2], "fs": [0.1, -2.75, 1e16, 3.0], "words": ["foo", "Bar", "baz", "Foo", ""], "nested": [[1, 2], [3], []], "mixed": [1, "a", None, True, 2.5, [1], {"a": 1}],
    "d": {"b": 2, "a": 1, "C": 3}, "deep": {"x": {"y": [{"z": "é"}, 5]}, "k v": "<&>", "": None, "list": [1, {"q": []}]},
    "users": [{"name": "bob", "age": 30, "on": True, "tags": ["x", "y"]}, {"name": "Al", "age": 25, "on": False, "tags": []}, {"name": "cy", "age": 30, "on": True}],
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image"}]},
                 {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": [1.5, None, True]}}}]}],
}


class Typed:
    context = CONTEXT

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *items):
        return self.r.choice(items)

    def text(self, d=0):
        p, T, I = self.pick, lambda: self.text(d + 1), lambda: self.int(d + 1)
        if d > 2 or self.r.random() < .3:
            return p("s", "u", "w", "ml", "html", "words[1]", "users[0].name", "messages[0].content", "deep['k v']", "'a,b,,c'", "'x=1;y=2'", "' a  b '", "'%'", "'é\\n\"q\"'", "\"it's\"", "'{}'",
                     "'ab' 'cd'", "'\\u00e9\\t\\x41'", "'<b>x</b>&amp;'", "'12'", "'-3.5'", "'0x1F'", "'Title Case here'", "'a/b?c=d e'", "''", "'😀x'", "('<i>' ~ n)")
        k = self.r.randrange(34)
        if k == 0:
            return f"({T()} ~ {self.any(d + 1)})"
        if k == 1:
            return f"({T()} + {T()})"
        if k == 2:
            return f"{T()}[{self.slice()}]"
        if k == 3:
            return f"({T()}).{p('upper', 'lower', 'title', 'capitalize', 'strip', 'lstrip', 'rstrip')}()"
        if k == 4:
            return f"({T()}).{p('strip', 'lstrip', 'rstrip')}({p(repr('Hd '), repr('<>'), 'none', repr('é'), T())})"
        if k == 5:
            return f"({T()}).replace({self.short()}, {self.short()}{p('', '', ', 1', ', 0', ', -1', ', 2')})"
        if k == 6:
            return f"({T()}).strip({p('', repr('*'), repr('é'))})"
        if k == 7:
            return f"({T()}).removeprefix({p(repr('a'), repr('Ti'), repr(''))})"
        if k == 8:
            return f"({self.short()}).join({self.texts(d + 1)})"
        if k == 9:
            return f"({T()}).{p('removeprefix', 'removesuffix')}({self.short()})"
        if k == 10:
            return f"({T()}).{p('partition')}({p(repr('o'), repr(' '), repr(','), repr('xx'))})[{p('0', '1', '2', '-1')}]"
        if k == 11:
            return f"({self.texts(d + 1)}|{p('first', 'last', 'join', 'join(' + repr(', ') + ')', 'min', 'max')}|default('none'))"
        if k < 15:
            return f"({T()})|{p('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'escape', 'forceescape', 'reverse', 'indent', 'trim(' + repr('d.') + ')')}"
        if k == 15:
            return f"({T()})|indent({p('0', '2', repr('> '), 'width=3')}{p('', ', true', ', true, true', ', blank=true', ', first=true')})"
        if k == 16:
            return f"({T()})|indent({p('3', '1')}{p('', ', true', ', false, true', ', first=true')})"
        if k == 17:
            return f"({T()})|replace({self.short()}, {self.short()}{p('', ', 1', ', 2')})"
        if k == 18:
            return f"({T()})|replace({p(repr('a'), repr(' '))}, '_')"
        if k < 21:
            return f"({self.any(d + 1)})|tojson{p('', '', '(indent=2)', '(indent=' + repr('--') + ')', '(ensure_ascii=true)', '(separators=(' + repr(',') + ', ' + repr(':') + '))', '(sort_keys=true)', '(indent=0)')}"
        if k == 21:
            return f"({self.any(d + 1)})|string"
        if k == 22:
            spec = p("%s", "%5s|", "%-6s|", "%.2s", "%r", "%a", "%%%s", "%05s")
            return f"({spec!r} % {p('(' + self.any(d + 1) + ',)', '[' + T() + '][0]')})"
        if k == 23:
            spec = p("%d", "%5d", "%05d", "%+d", "% d", "%-5d|", "%x", "%X", "%#x", "%o", "%i", "%.3d", "%e", "%.2f", "%g", "%08.3f", "%+.1e", "%c")
            return f"({spec!r} % ({I()}|abs % 1000,))"
        if k == 24:
            spec = p("%f", "%.0f", "%.3f", "%e", "%g", "%.10g", "%G", "%8.2f|", "%-9.1f|", "%+f", "%s", "%r", "%d")
            return f"({spec!r} % ({self.float(d + 1)},))"
        if k == 25:
            spec = self.pick("", ">", "<", "^", "*^", "é<", "0>") + self.pick("", "8", "12", "3") + self.pick("", ".2", ".5")
            return f"({('{:' + spec + '}')!r}.format({T()}))"
        if k == 26:
            spec = self.pick("", ">", "<", "^", "=", "*=", "0<") + self.pick("", "+", " ", "-") + self.pick("", "#") + self.pick("", "0") + self.pick("", "6", "14") + self.pick("", ",", "_") + self.pick("", "d", "x", "b", "o", "X", "n", "e", "f", "g", "%")
            return f"({('{:' + spec + '}')!r}.format({I()}))"
        if k == 27:
            spec = self.pick("", ">", "<", "^", "=", "*=", "0^") + self.pick("", "+", " ") + self.pick("", "0") + self.pick("", "9", "16") + self.pick("", ",", "_") + self.pick("", ".0", ".1", ".3", ".12") + self.pick("", "e", "f", "g", "G", "%", "E")
            return f"({('{:' + spec + '}')!r}.format({self.float(d + 1)}))"
        if k == 28:
            return f"({p(repr('{} {}'), repr('{1}{0}'), repr('{0!r}:{1!s}'), repr('{{{}}} {:>5}'))}.format({T()}, {T()}))"
        if k == 29:
            return f"({T()} if {self.bool(d + 1)} else {T()})"
        if k == 30:
            return f"({p('zz', 'd.zz', 'none_value', T())}|{p('default', 'd')}({T()}{p('', ', true')}))"
        if k == 31:
            return f"({T()} * {p('0', '1', '2', '3', 'true', '-1')})"
        if k == 32:
            return f"({I()}|abs)|string"
        return f"({T()})|format({self.any(d + 1)})" if self.r.random() < .1 else f"({T()})|safe|string"

    def short(self):
        return self.pick("'o'", "' '", "''", "'l'", "','", "'ll'", "'\\n'", "'é'", "'a'", "'<'", "'x'")

    def slice(self):
        part = lambda: self.pick("", "", "0", "1", "2", "-1", "-3", "9", "-99", "none", "n - 5")
        return f"{part()}:{part()}" + self.pick("", "", ":", ":1", ":2", ":-1", ":-2", ":none")

    def int(self, d=0):
        p, I = self.pick, lambda: self.int(d + 1)
        if d > 2 or self.r.random() < .3:
            return p("n", "neg", "z", "1", "2", "3", "10", "100", "-7", "big", "users[0].age", "l[0]", "true", "loop_free|default(4)")
        k = self.r.randrange(13)
        if k < 4:
            return f"({I()} {p('+', '-', '*')} {p('1', '2', '-3', 'n', 'z', '10')})"
        if k == 4:
            return f"({I()} {p('//', '%')} {p('2', '3', '-3', '7', 'n', '1', '-1')})"
        if k == 5:
            return f"(({self.text(d + 1)})|{p('length', 'count')})"
        if k == 6:
            return f"(({self.many(d + 1)})|length)"
        if k == 7:
            return f"(({self.text(d + 1)}).{p('find', 'count')}({self.short()}))"
        if k == 8:
            return f"(({p(self.text(d + 1), self.float(d + 1), 'none')})|int{p('', '(3)', '(default=1)')})" if self.r.random() < .7 else f"({self.pick('third', 'f', 'tiny', '2.675')}|int)"
        if k == 9:
            return f"({I()}|abs)"
        if k == 10:
            return f"({p('l', '[1, 2.5]', '[true, 2]', 'users|map(attribute=' + repr('age') + ')', '[]')}|{p('sum', 'max|default(0)', 'min|default(0)')})"
        if k == 11:
            return f"({I()}|round({p('0', '1')}))"
        return f"(-{I()})"

    def float(self, d=0):
        p = self.pick
        if d > 2 or self.r.random() < .4:
            return p("f", "tiny", "huge", "third", "0.1", "1e16", "1e22", "123456789.125", "-0.0", "2.675", "fs[1]", "1e-5", "100.0", str(self.r.uniform(-1e3, 1e3)), repr(self.r.random() * 10 ** self.r.randrange(-20, 25)))
        k = self.r.randrange(8)
        if k < 3:
            return f"({self.float(d + 1)} {p('+', '-', '*')} {p(self.float(d + 1), self.int(d + 1))})"
        if k == 3:
            return f"({self.int(d + 1)} / {p('2', '3', '7', '-4', '0.5')})"
        if k == 4:
            return f"({self.float(d + 1)} {p('+', '-')} {p('2', '0.3', '-1.5', '7')})"
        if k == 5:
            return f"({self.float(d + 1)}|round({p('0', '1', '2', '3', '5')}))"
        if k == 6:
            return f"({p(repr('3.14'), repr(' 1e5 '), repr('abc'), repr('1_0.5'), self.int(d + 1))}|float)"
        return f"(fs|{p('sum', 'max', 'min', 'first', 'last')})"

    def bool(self, d=0):
        p, B = self.pick, lambda: self.bool(d + 1)
        if d > 2 or self.r.random() < .2:
            return p("t", "no", "s", "e", "none_value", "l", "zz", "users[1].on", "z", "[]", "{}", "0.0")
        k = self.r.randrange(12)
        if k == 0:
            return f"({B()} {p('and', 'or')} {B()})"
        if k == 1:
            return f"(not {B()})"
        if k == 2:
            return f"({self.int(d + 1)} {p('<', '<=', '>', '>=', '==', '!=')} {p(self.int(d + 1), self.float(d + 1))})"
        if k == 3:
            return f"({self.text(d + 1)} {p('<', '<=', '>', '>=', '==', '!=', 'in', 'not in')} {self.text(d + 1)})"
        if k == 4:
            return f"({self.any(d + 1)} {p('==', '!=')} {self.any(d + 1)})"
        if k == 5:
            return f"({p(self.int(d + 1), self.text(d + 1), 'none')} {p('in', 'not in')} {self.many(d + 1)})"
        if k < 8:
            return f"({p(self.any(d + 1), 'zz', 'd.zz', 'users[1].tags')} is {p('', '', 'not ')}{p('defined', 'undefined', 'none', 'string', 'number', 'integer', 'float', 'boolean', 'mapping', 'sequence', 'iterable', 'callable', 'true', 'false')})"
        if k == 8:
            return f"({self.int(d + 1)} is {p('', 'not ')}{p('odd', 'even', 'divisibleby 3', 'eq 1', 'ne 2', 'lt 5', 'ge 2', 'in [1, 2, 3]', 'divisibleby(2)')})"
        if k == 9:
            return f"({self.text(d + 1)}).{p('startswith', 'endswith')}({p(self.short(), '(' + self.short() + ', ' + self.short() + ')')})"
        if k == 10:
            return f"({self.text(d + 1)}).{p('isdigit', 'isspace')}()"
        return f"({self.text(d + 1)} is {p('', 'not ')}{p('in words', 'eq s')})"

    def texts(self, d=0):
        p = self.pick
        if d > 2 or self.r.random() < .3:
            return p("words", "['b', 'a']", "users|map(attribute='name')|list", "messages|map(attribute='role')|list", "d|list", "d.keys()", "[s, u]", "'abc'", "[]", "('x', 'Y')")
        k = self.r.randrange(9)
        if k == 0:
            return f"({self.text(d + 1)}).{p('split', 'rsplit')}({p('', '', self.short_sep(), 'none', self.short_sep() + ', 1', 'none, 1', 'none, 0', self.short_sep() + ', maxsplit=2')})"
        if k == 1:
            return f"({self.text(d + 1)}).splitlines({p('', 'true', 'keepends=true')})"
        if k == 2:
            return f"({self.texts(d + 1)}|map({p(repr('upper'), repr('title'), repr('trim'), repr('replace') + ', ' + repr('o') + ', ' + repr('0'), repr('default') + ', ' + repr('-') + ', true')})|list)"
        if k == 3:
            return f"({self.texts(d + 1)}|{p('sort', 'sort(true)', 'sort(reverse=true, case_sensitive=true)', 'unique|list', 'reverse|list', 'list', 'select|list', 'unique(true)|list')})"
        if k == 4:
            return f"({self.texts(d + 1)}|{p('select', 'reject')}({p(repr('lower'), repr('upper'), repr('eq') + ', ' + repr('foo'), repr('in') + ', ' + repr('foobar'), repr('string'), repr('ne') + ', ' + repr(''))})|list)"
        if k == 5:
            return f"({self.texts(d + 1)}|list)[{self.slice()}]"
        if k == 6:
            return f"({self.any(d + 1)}, 5)|map('string')|list"
        if k == 7:
            return f"({self.text(d + 1)})|list"
        return f"({self.text(d + 1)}).{p('partition')}({self.short_sep()})"

    def short_sep(self):
        return self.pick("'o'", "' '", "','", "'ll'", "'\\n'", "'x'")

    def many(self, d=0):
        p = self.pick
        if d > 2 or self.r.random() < .35:
            return p("l", "fs", "words", "nested", "mixed", "users", "messages", "range(5)", "range(7, 0, -2)", "[]", "(1, 2)", "d", "deep", "d.items()", "d.values()", "{'k': [1]}", "'añb'", "[none, 1.0]")
        k = self.r.randrange(16)
        if k == 0:
            return self.texts(d + 1)
        if k == 1:
            return f"({p('l', 'fs', 'words', 'nested', 'users', 'range(9)', '(1, 2, 3)', 'mixed')})[{self.slice()}]"
        if k == 2:
            return f"([{self.any(d + 1)}] + [{self.any(d + 1)}, {self.any(d + 1)}])"
        if k == 3:
            return f"({p('l', 'fs', 'words', 'range(5)', 'd', 'users', 'mixed')}|{p('list', 'reverse', 'unique', 'sort')}|list)"
        if k == 4:
            return f"({p('l', 'fs', 'nested', 'd.values()', '[[2, 1], [1, 5]]', '[true, 0]')}|sort{p('', '(reverse=true)')})"
        if k == 5:
            return f"(users|sort(attribute={p(repr('age'), repr('name'), repr('age,name'))}{p('', ', reverse=true', ', case_sensitive=true')}))"
        if k == 6:
            return f"(users|sort(attribute={p(repr('age'), repr('on'), repr('name'))}{p('', ', case_sensitive=true', ', reverse=true')})|map(attribute='name')|list)"
        if k == 7:
            return f"({p('d', '{' + repr('b') + ': 1, ' + repr('A') + ': 2}')}|dictsort{p('', '(true)', '(reverse=true)', '(by=' + repr('value') + ')')})"
        if k == 8:
            return f"(users|{p('selectattr', 'rejectattr')}({p(repr('on'), repr('age') + ', ' + repr('gt') + ', 26', repr('name') + ', ' + repr('in') + ', ' + repr('bob'), repr('tags') + ', ' + repr('defined'), repr('tags.0') + ', ' + repr('defined') if self.r.random() < .2 else repr('age') + ', ' + repr('eq') + ', 30')})|list)"
        if k == 9:
            return f"({p('users', 'messages')}|map(attribute={p(repr('name'), repr('tags'), repr('content'), repr('role'))}{p('', ', default=' + repr('-'))})|list)"
        if k == 10:
            return f"({p('l', 'mixed', 'fs', 'nested', 'words')}|{p('select', 'reject')}({p(repr('string'), repr('number'), repr('none'), repr('defined'), repr('iterable'), repr('sameas') + ', true', repr('eq') + ', 1', repr('in') + ', [1, ' + repr('a') + ']')})|list)"
        if k == 11:
            return f"({self.many(d + 1)}|{p('list', 'reverse|list')})"
        if k == 12:
            return f"[{self.any(d + 1)}]"
        if k == 13:
            return "{" + f"{p(self.text(d + 1), self.int(d + 1), 'none', '(1, 2)', '1.5')}: {self.any(d + 1)}, 'k': {self.any(d + 1)}" + "}"
        if k == 14:
            return f"dict({p('d', 'a=1', '[[1, 2]]', 'd.items()', '')}{p('', '', ', zz=' + self.any(d + 1))})".replace("(, ", "(")
        return f"({p('l', 'mixed', '[1, 1.0, true]', '[' + repr('a') + ', ' + repr('A') + ']')}|unique|list)" if self.r.random() < .4 else f"({p('nested', 'words', '[[1], [2, 3]]')}|map({p(repr('length'), repr('list'), repr('first'), repr('join') + ', ' + repr('-'), repr('last'))})|list)"

    def any(self, d=0):
        k = self.r.randrange(12)
        if k < 4:
            return self.text(d)
        if k < 6:
            return self.int(d)
        if k == 6:
            return self.float(d)
        if k == 7:
            return self.bool(d)
        if k < 10:
            return self.many(d)
        return self.pick("none", "none_value", "true", "d.zz|default(none)", "deep.x.y[0].z", "messages[-1].tool_calls[0].function.arguments")

    def template(self):
        return " | ".join("{{ " + self.any() + " }}" for _ in range(self.r.randrange(1, 5)))
