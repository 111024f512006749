#!/usr/bin/env python3
"""The chat template engine against Jinja2: random templates, or fixtures.

  template_random.py --driver PROGRAM [--kind KIND] [--count N] [--seed N]    compares N random templates: of a grammar, typed
                                                              expressions, scopes, or layout
  template_random.py --driver PROGRAM --files A.jinja ... [--count N] [--seed N]     N random conversations through each
  template_random.py --driver PROGRAM --snippets              compares the snippets
  template_random.py --driver PROGRAM --fixture PATH          writes the snippets' results (tests/fixtures/template_cases.json)
  template_random.py --families PATH                          writes what templates/*.jinja give (tests/fixtures/template_families.json)
  template_random.py --driver PROGRAM --corpus DIR            writes the fuzzer's seeds (tests/fuzz/corpus/template)

PROGRAM is tests/oracle/template_driver.c, linked with the text layer."""
import argparse
import copy
import datetime
import glob
import json
import os
import random
import subprocess
import sys
import warnings

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

import template_scopes
import template_typed
from template_snippets import CONTEXT, CORPUS_ONLY, snippets
from template_talks import Talks

warnings.simplefilter("ignore")


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.fromtimestamp(1700000000).strftime(format)
    return env


ENV = environment()


def render(template, context):
    """Returns the text and "", or None and the error."""
    base = {"messages": None, "tools": None, "documents": None, "add_generation_prompt": False}
    try:
        text = ENV.from_string(template).render(**{**base, **copy.deepcopy(context)})
        text.encode()
        return text, ""
    except Exception as error:
        return None, type(error).__name__ + ": " + str(error)


def run_driver(driver, cases):
    lines = "".join(json.dumps({"template": t, "context": c}) + "\n" for t, c in cases)
    out = subprocess.run([driver], input=lines.encode(), capture_output=True, timeout=600)
    results = [json.loads(line) for line in out.stdout.decode().split("\n") if line]
    if len(results) != len(cases):
        print("driver stopped at case", len(results), out.stderr.decode()[-500:], cases[len(results)][0], sep="\n")
    return results


# Refusals on purpose: integers beyond 64 bits, object addresses and sizes in texts, Python's float("1e400")...
OURS = ("does not fit 64 bits", "has no text", "not supported", "grows beyond", "more than", "complex", "too large", "fit 64",
        "can't be sliced", "format: no argument")


def fails_when_folded(reason):
    """Whether Jinja raises the error while folding constants: then it occurs even if the template never reaches the expression."""
    return any(part in reason for part in ("unhashable type", "object' has no attribute", "object has no element"))


def compare(driver, cases, show=20):
    results = run_driver(driver, cases)
    different = refused = both_fail = 0
    for (template, context), ours in zip(cases, results):
        want, reason = render(template, context)
        if want is None and ("error" in ours or fails_when_folded(reason)):
            both_fail += 1
            continue
        if want == ours.get("text"):
            continue
        if "error" in ours and (" at 0x" in want or any(part in ours["error"] for part in OURS)):
            refused += 1
            continue
        different += 1
        if different <= show:
            print("---", repr(template), "\n  want", repr(want), reason, "\n  ours", repr(ours.get("text")), ours.get("error", ""))
    print(f"{len(cases)} templates: {different} differ, {both_fail} are errors in both, {refused} refused on purpose", flush=True)
    return different


class Generator:
    """Random templates over CONTEXT. Names, filters and methods include those that chat templates use, and others."""
    context = CONTEXT
    names = list(k for k in CONTEXT if k.isidentifier()) + ["x", "y", "zz", "loop"]
    filters = ["upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "join", "join(', ')", "sort", "reverse",
               "tojson", "tojson(indent=2)", "string", "int", "float", "abs", "round", "round(1)", "default('dd')", "d('q', true)", "sum", "min", "max",
               "unique", "map('upper')", "map(attribute='name')", "select", "reject", "selectattr('on')", "items", "dictsort",
               "replace('o', '0')", "indent", "indent(2, true)", "escape", "safe", "e",
               "select('string')", "map('string')", "map('length')", "rejectattr('age', 'gt', 26)",
               "select('gt', 1)", "count", "format(1)", "sort(reverse=true)", "tojson(sort_keys=true)", "map('int')", "forceescape"]
    methods = ["upper()", "lower()", "strip()", "lstrip('H')", "rstrip()", "split()", "split('o')", "split(' ', 1)", "rsplit('o', 1)", "startswith('H')",
               "endswith('d')", "find('o')", "replace('l', 'L')", "title()", "capitalize()", "splitlines()", "items()", "keys()", "values()", "get('a')",
               "get('q', 3)", "count('o')", "index('o')", "join(words)", "isdigit()", "partition('o')",
               "removeprefix('H')", "format(1, a=2)", "append(1)", "pop()", "name", "a", "role", "content", "b", "age"]
    tests = ["defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "odd", "even", "divisibleby 3", "boolean", "true", "false",
             "integer", "float", "eq 1", "ne 'a'", "lt 3", "ge 2", "in [1, 'a']", "callable", "sameas none"]
    strings = ["'a'", "'Hello'", "''", "'o'", "\"q'\"", "'%s'", "'%d-%s'", "'{}'", "'{a}'", "'é'", "'1.5'", "'12'", "' x '", "'<b>'", "'a\\nb'"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return self.r.choice(items)

    def atom(self):
        k = self.r.randrange(12)
        if k < 5:
            return self.pick(self.names)
        if k < 7:
            return self.pick(self.strings)
        if k < 10:
            return self.pick(["0", "1", "2", "3", "-1", "10", "1.5", "0.1", "true", "false", "none", "2.0", "1e16", "100"])
        if k == 10:
            return self.pick(["[]", "{}", "()", "[1, 2]", "['b', 'a']", "{'a': 1}", "(1, 'x')", "[[1, 2], [3]]", "{'k': [1]}", "[none, true]"])
        return self.pick(["range(3)", "range(1, 7, 2)", "namespace(a=1)", "dict(a=1, b='c')", "users[0]", "messages[1]", "d.items()", "l[0]"])

    def expr(self, depth=0):
        if depth > 2 or self.r.random() < 0.25:
            return self.atom()
        e = lambda: self.expr(depth + 1)
        k = self.r.randrange(20)
        number = lambda: self.pick(["n", "f", "z", "neg", "1", "2", "3.5", "l|length", "l[0]", "loop.index", "l|sum", "s|length", "true", "users[0].age"])
        text = lambda: self.pick(["s", "u", "ml", "long", "html", "words[1]", "messages[0].content", "(s ~ n)", "s[1:]", "u|upper", "'a,b c'", "users[0].name"])
        many = lambda: self.pick(["l", "words", "messages", "users", "nested", "d", "d.items()", "s", "range(4)", "words|map('lower')|list", "l + [9]", "users|selectattr('on')|list"])
        if self.r.random() < .55:
            kind = self.r.randrange(6)
            if kind == 0:
                return f"({number()} {self.pick(['+', '-', '*', '/', '//', '%', '<', '>=', '==', '~'])} {number()})"
            if kind == 1:
                return f"({text()}).{self.pick(self.methods[:31])}"
            if kind == 2:
                return f"({text()})|{self.pick(self.filters)}"
            if kind == 3:
                return f"({many()})|{self.pick(self.filters)}"
            if kind == 4:
                return f"({text()} {self.pick(['+', '~', '==', 'in', 'not in', '<'])} {text()})"
            return f"({self.pick([number, text, many])()} is {self.pick(['', 'not '])}{self.pick(self.tests)})"
        if k < 3:
            return f"({e()} {self.pick(['+', '-', '*', '/', '//', '%', '~', '+', '~'])} {e()})"
        if k < 5:
            return f"{e()} {self.pick(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()}"
        if k == 5:
            return f"({e()} {self.pick(['and', 'or'])} {e()})"
        if k == 6:
            return f"(not {e()})"
        if k == 7:
            return f"({e()} if {e()} else {e()})" if self.r.random() < .8 else f"({e()} if {e()})"
        if k < 12:
            return f"{self.wrap(e())}|{self.pick(self.filters)}"
        if k < 15:
            return f"{self.wrap(e())}.{self.pick(self.methods)}"
        if k == 15:
            return f"({self.wrap(e())} is {self.pick(['', 'not '])}{self.pick(self.tests)})"
        if k == 16:
            return f"{self.wrap(e())}[{self.pick(['0', '-1', '1:', ':-1', '::-1', '::2', '1:3', repr('a'), repr('name'), '5', e()])}]"
        if k == 17:
            return f"[{e()}, {e()}]"
        if k == 18:
            return "{" + f"{self.pick(self.strings)}: {e()}, {self.atom()}: {e()}" + "}"
        return f"({e()}, {e()})"

    def wrap(self, text):
        return text if text.isidentifier() or text.endswith((")", "]")) and not text.startswith(("-", "not")) and " " not in text else f"({text})"

    def gap(self):
        return self.pick(["", " ", "\n", "\n  ", "text", " a\n", "  \t", "\n\n"])

    def tag(self, inside):
        return "{%" + self.pick(["", "", "", "-", "+"]) + " " + inside + " " + self.pick(["", "", "", "-", "+"]) + "%}"

    def body(self, depth, loop=False):
        return "".join(self.gap() + self.statement(depth, loop) for _ in range(self.r.randrange(1, 3))) + self.gap()

    def statement(self, depth=0, loop=False):
        k = self.r.randrange(16)
        if depth > 1 or k < 6:
            return "{{" + self.pick(["", "", "-"]) + " " + self.expr() + " " + self.pick(["", "", "-"]) + "}}"
        b = lambda l=loop: self.body(depth + 1, l)
        name = self.pick(["x", "y", "n", "s", "zz"])
        if k == 6:
            return self.tag("if " + self.expr()) + b() + (self.tag("elif " + self.expr()) + b() if self.r.random() < .3 else "") + (
                self.tag("else") + b() if self.r.random() < .5 else "") + self.tag("endif")
        if k < 9:
            target, source = self.pick([("x", None), ("y", "l"), ("x", "words"), ("m", "messages"), ("k, v", "d.items()"), ("c", "s"), ("x", "range(4)"), ("u", "users")])
            return self.tag(f"for {target} in {source or self.expr(2)}" + (f" if {self.expr(2)}" if self.r.random() < .2 else "")) + b(True) + (
                "{{ loop." + self.pick(["index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth", "cycle(1, 2)", "changed(x)"]) + " }}"
            ) + (self.tag("else") + b() if self.r.random() < .2 else "") + self.tag("endfor")
        if k == 9:
            return self.tag(f"set {name} = {self.expr()}")
        if k == 10:
            return self.tag(f"set {name}" + self.pick(["", " | upper", " | trim | title"])) + b() + self.tag("endset")
        if k == 11:
            arguments = self.pick(["", "a", "a, b=1", "x, y='q'", "n=n"])
            return self.tag(f"macro mm({arguments})") + b(False) + self.pick(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}"]) + self.tag("endmacro") + "{{ mm(" + self.pick(["", "1", "1, 2", "x=3", self.expr(2)]) + ") }}" + (
                self.tag("call mm(1)") + b(False) + self.tag("endcall") if self.r.random() < .3 else "")
        if k == 12:
            return self.tag(f"with {name} = {self.expr(2)}") + b() + self.tag("endwith")
        if k == 13:
            return self.tag("filter " + self.pick(["upper", "trim", "title", "replace('a', 'b')|length", "indent(2)"])) + b() + self.tag("endfilter")
        if k == 14:
            return self.pick(["{# c #}", "{#- c -#}", "{#+ c +#}", "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {% {%- endraw -%}", "{% generation %}" + self.gap() + "{{ n }}{% endgeneration %}"])
        if loop:
            return self.tag("if " + self.expr(2)) + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
        return self.tag("set ns = namespace(v=0)") + self.tag("for i in l") + self.tag("set ns.v = ns.v + i") + b(True) + self.tag("endfor") + "{{ ns.v }}"

    def template(self):
        return "".join(self.gap() + self.statement() for _ in range(self.r.randrange(1, 3))) + self.gap()


KINDS = {"grammar": Generator, "typed": template_typed.Typed, "scopes": template_scopes.Scopes, "layout": template_scopes.Layout}


def compare_random(driver, kind, count, seed):
    different = 0
    for begin in range(0, count, 1000):
        generator = KINDS[kind](seed * 1000003 + begin)
        different += compare(driver, [(generator.template(), generator.context) for _ in range(min(1000, count - begin))])
        if different > 20:
            break
    return different


def read_template(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def compare_files(driver, paths, count, seed):
    different = 0
    for path in paths:
        talks = Talks(seed)
        print(os.path.basename(path), end=": ")
        different += compare(driver, [(read_template(path), talks.context()) for _ in range(count)])
    return different


def family_cases(name, template, tries=200, longest=1800):
    """Long texts, with and without tools, and an error."""
    talks, found = Talks(name), {}
    for _ in range(tries):
        context = talks.context()
        text, _ = render(template, context)
        kind = "error" if text is None else "tools" if context["tools"] else "plain"
        if text is not None and len(text) > longest:
            continue
        if kind not in found or len(text or "") > len(found[kind][1] or ""):
            found[kind] = context, text
    return [{"template": name, "context": context, "text": text} for _, (context, text) in sorted(found.items())]


def family_templates():
    folder = os.path.dirname(os.path.abspath(__file__)) + "/templates"
    return {os.path.basename(path)[:-6]: read_template(path) for path in sorted(glob.glob(folder + "/*.jinja"))}


def write_families(path):
    templates = family_templates()
    cases = [case for name, template in templates.items() for case in family_cases(name, template)]
    with open(path, "w") as out:
        rows = lambda items: ",\n".join(items)
        out.write('{"templates": {\n' + rows(json.dumps(n) + ": " + json.dumps(t, ensure_ascii=False) for n, t in templates.items()) + '\n},\n"cases": [\n')
        out.write(rows(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]}\n")
    print(len(cases), "cases of", len(templates), "templates")


def write_corpus(driver, folder):
    """Writes seeds for fuzzing: twelve snippets that render make one seed; each snippet that fails or is refused makes one."""
    ours = run_driver(driver, [(t, CONTEXT) for t in snippets()])
    good = [t for t, result in zip(snippets(), ours) if "text" in result]
    bad = [t for t, result in zip(snippets(), ours) if "text" not in result]
    seeds = [("".join(good[i:i + 12]), CONTEXT) for i in range(0, len(good), 12)] + [(t, CONTEXT) for t in bad]
    seeds += [(seed, CONTEXT) if isinstance(seed, str) else seed for seed in CORPUS_ONLY]
    for name, template in family_templates().items():
        seeds += [(template, case["context"]) for case in family_cases(name, template) if case["text"] is not None]
    for i, (template, context) in enumerate(seeds):
        with open(f"{folder}/seed_{i:03d}", "wb") as out:
            out.write(template.encode("latin-1" if template == "\xff" else "utf-8") + b"\0" + json.dumps(context, ensure_ascii=False).encode())
    print(len(seeds), "seeds")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver")
    parser.add_argument("--kind", choices=KINDS, default="grammar")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--snippets", action="store_true")
    parser.add_argument("--files", nargs="*")
    parser.add_argument("--fixture")
    parser.add_argument("--families")
    parser.add_argument("--corpus")
    args = parser.parse_args()
    if args.fixture:
        cases = []
        ours = run_driver(args.driver, [(t, CONTEXT) for t in snippets()])
        for template, result in zip(snippets(), ours):
            text, _ = render(template, CONTEXT)
            if text is not None and any(part in result.get("error", "") for part in OURS):
                continue
            cases.append({"template": template, "text": text})
        with open(args.fixture, "w") as out:
            rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
            out.write('{"context": ' + json.dumps(CONTEXT, ensure_ascii=False) + ',\n"cases": [\n' + rows + "\n]}\n")
        print(len(cases), "cases")
        return 0
    if args.corpus:
        write_corpus(args.driver, args.corpus)
        return 0
    if args.snippets:
        return compare(args.driver, [(t, CONTEXT) for t in snippets()], 200) != 0
    if args.families:
        write_families(args.families)
        return 0
    if args.files is not None:
        return compare_files(args.driver, args.files, args.count or 100, args.seed) != 0
    return compare_random(args.driver, args.kind, args.count or 100000, args.seed) != 0


if __name__ == "__main__":
    sys.exit(main())
