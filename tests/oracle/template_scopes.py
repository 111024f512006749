"""Random statements for template_random.py: --scopes sets, passes and hides names; --layout varies the signs of
tags and the blanks around them."""
import random


class Scopes:
    context = {"n": 7, "l": [1, 2], "d": {"x": 1}, "a": "A"}
    names = ["a", "b", "c", "n"]

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.macros = self.in_macro = 0

    def show(self):
        return "".join("{{ %s|default('-') }}" % x if self.r.random() < .9 else "{{ %s is defined }}" % x for x in self.r.sample(self.names, self.r.randrange(1, 4)))

    def value(self):
        values = ["1", "2", "a", "b", "c", "n", "a|default('z') ~ 'q'", "n", "[a, b]", "(loop.index if loop is defined else 0)"]
        return self.r.choice(values + ["varargs", "kwargs", "caller is defined"] * (self.in_macro > 0))

    def body(self, depth, loop):
        return "".join(self.statement(depth, loop) for _ in range(self.r.randrange(1, 4)))

    def loop(self, depth):
        r, x, y = self.r, self.r.choice(self.names), self.r.choice(self.names)
        target = r.choice([x, x, f"{x}, {y}"])
        source = r.choice(["d.items()", "[(1, 2), (3, 4)]"] if "," in target else ["l", "range(2)", "[a, b]", "[]", "l|map('int')"])
        more = (" if " + self.value() if r.random() < .2 else "") + (" recursive" if r.random() < .15 else "")
        other = "{% else %}" + self.body(depth + 1, False) if r.random() < .25 else ""
        return "{%% for %s in %s%s %%}%s%s{%% endfor %%}" % (target, source, more, self.body(depth + 1, True), other)

    def macro(self, depth):
        r = self.r
        self.macros += 1
        name = r.choice([f"m{self.macros}", "m1", "m2"])
        params = r.sample(self.names, r.randrange(0, 3))
        signature = ", ".join(params) + (" = " + self.value() if params and r.random() < .5 else "")
        self.in_macro += 1
        body = self.body(depth + 1, False) + r.choice(["", "{{ caller() if caller }}", "{{ caller('c') if caller }}", "{{ varargs }}", "{{ kwargs }}"])
        self.in_macro -= 1
        passed = [""] * 3 + ["5"] * (len(params) > 0) + ["a, 5"] * (len(params) > 1) + [f"{p}=5" for p in params[-1:]] + ["5, 6", "q=1"] * (r.random() < .15)
        call = f"{name}({r.choice(passed)})"
        out = "{%% macro %s(%s) %%}%s{%% endmacro %%}" % (name, signature, body)
        if r.random() < .7:
            out += "{{ " + call + " }}"
        if "caller" in body and r.random() < .8:
            takes = r.choice(["", f"({r.choice(self.names)})", "(q=1)", f"({r.choice(self.names)}=2)"])
            out += "{%% call%s %s %%}%s{%% endcall %%}" % (takes, call, self.body(depth + 1, False))
        return out

    def statement(self, depth=0, loop=False):
        r, k, x = self.r, self.r.randrange(15), self.r.choice(self.names)
        inner = lambda in_loop=loop: self.body(depth + 1, in_loop)
        if depth > 3 or k < 3:
            return self.show() + r.choice(["", " ", "|"])
        if k < 5:
            return "{%% set %s = %s %%}" % (x, self.value())
        if k == 5:
            return "{%% set %s %%}%s{%% endset %%}" % (x, inner())
        if k == 6:
            elif_part = "{%% elif %s %%}%s" % (self.value(), inner()) if r.random() < .3 else ""
            return "{%% if %s %%}%s%s%s{%% endif %%}" % (self.value(), inner(), elif_part, "{% else %}" + inner() if r.random() < .5 else "")
        if k < 9:
            return self.loop(depth)
        if k == 9:
            more = f", {r.choice(self.names)} = {self.value()}" if r.random() < .4 else ""
            return "{%% with %s = %s%s %%}%s{%% endwith %%}" % (x, self.value(), more, inner())
        if k < 12:
            return self.macro(depth)
        if k == 12:
            return "{%% filter %s %%}%s{%% endfilter %%}" % (r.choice(["upper", "trim"]), inner())
        if k == 13:
            calls = [] if self.in_macro else ["{{ m1() if m1 is defined }}", "{{ m2() if m2 is defined }}"]
            return r.choice(["{% set ns = namespace(v=0) %}{% for i in l %}{% set ns.v = ns.v + 1 %}" + inner(True) + "{% endfor %}{{ ns.v }}",
                             "{% generation %}" + inner(False) + "{% endgeneration %}"] + calls)
        if loop:
            return "{%% if %s %%}{%% %s %%}{%% endif %%}" % (r.choice(["loop.first", "a", "n == 2", "loop.index == 2"]), r.choice(["break", "continue"]))
        return self.show()

    def template(self):
        self.macros = self.in_macro = 0
        return "".join(self.statement() for _ in range(self.r.randrange(2, 6)))


class Layout:
    context = {"n": 7}
    gaps = ["", "a", "  ", "\n", "a\n  ", "\n\t ", "a  ", "\n\n", " \n \n", "\r\n  ", "\x0b  ", "\u2003 ", "a\u2028  ", "\n\x1c ", "b", "  b", "\nb", "  \n  b", "\n\nb", "\n  \n\tb", "\r\nb"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def template(self):
        r, out, depth = self.r, "", 0
        sign = lambda: r.choice(["", "-", "+"])
        for _ in range(r.randrange(1, 7)):
            k = r.randrange(8)
            if k == 0:
                out += "{%" + sign() + " if true " + sign() + "%}"
                depth += 1
            elif k == 1 and depth:
                out += "{%" + sign() + " endif " + sign() + "%}"
                depth -= 1
            elif k == 2:
                out += "{{" + sign() + " n " + r.choice(["", "-"]) + "}}"
            elif k == 3:
                out += "{#" + sign() + r.choice([" c ", "", "\nc\n", " {{ x }} ", " -"]) + sign() + "#}"
            elif k == 4:
                out += "{%" + sign() + r.choice([" raw ", "raw"]) + r.choice(["", "-"]) + "%}" + r.choice([" x ", "\nx\n", "{{ y }}", "{#", " {% if %} "]) + "{%" + sign() + " endraw " + sign() + "%}"
            elif k == 5:
                out += "{%" + sign() + r.choice([" set q = 1 ", " set q = n "]) + sign() + "%}"
            out += r.choice(self.gaps)
        return r.choice(self.gaps) + out + "{% endif %}" * depth
