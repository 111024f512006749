#!/usr/bin/env python3
"""Random strings through our tokenizer and Hugging Face's: the ids must be equal.

  tokenizer_random.py --driver build/bench/bench_tokenizer [--count 200000] [--seed 1] [--only NAME]

Needs the PyPI package tokenizers. Strings mix scripts, spaces, digits, punctuation, combining marks, special tokens and
code points drawn from all assigned ones. Beside the real files, made ones exercise components that the files don't use.
Each string that differs is counted under the reason `reason` finds; "unknown" must stay 0 (exit 1).
"""
import argparse
import copy
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
from tokenizers import Tokenizer  # noqa: E402
from tokenizers import normalizers, pre_tokenizers  # noqa: E402

ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
MARKS = [c for c in ASSIGNED if unicodedata.category(chr(c))[0] == "M"]
SPACES = [ord(c) for c in "    \n\t\r\n\u00a0\u2003\u3000\u0085\u2028\u180e\u200b\u1680\v\f"]
WORDS = "the Of and'S it's DON'T we'll I'VE they're 'ſ x'LL 12 3456 foo_ foo_bar FOO [[12]] http:// <s> ▁ ▁▁ Ġ <0x0A> é e\u0301 \u212b 한국어 你好 мир שלום हिन्दी".split()


def newer_characters():
    """Characters newer than Hugging Face's tables: it knows no decomposition of theirs, takes their combining class for 0,
    doesn't strip them as accents, and doesn't cut at them as punctuation."""
    forms = {"NFC": normalizers.NFC(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD()}
    strip, punctuation, found = normalizers.StripAccents(), pre_tokenizers.Punctuation("isolated"), set()
    for c in ASSIGNED:
        if unicodedata.category(chr(c))[0] == "P" and len(punctuation.pre_tokenize_str("a" + chr(c))) == 1:
            found.add(chr(c))
        if any(peer.normalize_str(chr(c)) != unicodedata.normalize(form, chr(c)) for form, peer in forms.items()):
            found.add(chr(c))
    for c in MARKS:
        if strip.normalize_str("a" + chr(c)) != "a":
            found.add(chr(c))
        for text in ("a" + chr(c) + "\u0327", "a\u0301" + chr(c), "a" + chr(c) + "\u0301"):
            if forms["NFC"].normalize_str(text) != unicodedata.normalize("NFC", text):
                found.add(chr(c))
    return found


def random_text(rng, specials):
    parts = []
    for _ in range(rng.choice((1, 2, 3, 5, 8, 13))):
        kind = rng.random()
        if kind < 0.25:
            parts.append(chr(rng.choice(ASSIGNED)))
        elif kind < 0.35:
            low = rng.choice((0x20, 0x41, 0x61, 0xC0, 0x370, 0x400, 0x5D0, 0x600, 0x900, 0xE00, 0x3040, 0x4E00, 0xAC00, 0x1F600))
            parts.append("".join(chr(low + rng.randrange(26)) for _ in range(rng.randrange(1, 8))))
        elif kind < 0.5:
            parts.append("".join(chr(rng.choice(SPACES)) for _ in range(rng.randrange(1, 4))))
        elif kind < 0.57:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 9))))
        elif kind < 0.64:
            parts.append(rng.choice("aeiouAEnkぁかᄀ각") + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randrange(1, 4))))
        elif kind < 0.7:
            parts.append("".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randrange(1, 5))))
        elif kind < 0.75 and specials:
            special = rng.choice(specials)
            parts.append(special if rng.random() < 0.7 else special[: rng.randrange(1, len(special) + 1)])
        elif kind < 0.8:
            parts.append(rng.choice("aA =-\n") * rng.randrange(1, 70))
        else:
            parts.append(rng.choice(("", " ")) + rng.choice(WORDS))
    return "".join(parts)


def ours(driver, folder, texts):
    data = b"".join(struct.pack("<I", len(t)) + t for t in (x.encode() for x in texts))
    run = subprocess.run([driver, "encode", folder], input=data, capture_output=True, check=False)
    if run.returncode:
        sys.exit(run.stderr.decode())
    result, at = [], 0
    while at < len(run.stdout):
        (count,) = struct.unpack_from("<I", run.stdout, at)
        result.append(list(struct.unpack_from("<%di" % count, run.stdout, at + 4)))
        at += 4 + 4 * count
    return result


def made_files(shared):
    """Tokenizers with other components, with the vocabularies of real files."""

    def read(name):
        with open(f"{shared}/data/tokenizers/{name}/tokenizer.json") as file:
            return json.load(file)

    gpt2, qwen, phi3 = read("gpt2"), read("qwen/qwen2.5"), read("phi-3")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
        return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}

    def variant(base, **changes):
        made = copy.deepcopy(base)
        for key, value in changes.items():
            if key == "model":
                made["model"].update(value)
            elif key == "added":
                made["added_tokens"] += value
            else:
                made[key] = value
        return made

    def sequence(key, *items):
        return {"type": "Sequence", key: list(items)}

    def added(first, *tokens):
        defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        return [dict(defaults, id=first + i, **t) for i, t in enumerate(tokens)]

    llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    gpt4o = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    deepseek = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
    qwen35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    return {
        "made: Llama-3": variant(qwen, normalizer=None, pre_tokenizer=sequence("pretokenizers", split(llama3), byte_level),
                                 model={"ignore_merges": True}),
        "made: GPT-4o": variant(qwen, normalizer=None, pre_tokenizer=sequence("pretokenizers", split(gpt4o), byte_level)),
        "made: DeepSeek": variant(qwen, normalizer=sequence("normalizers"), pre_tokenizer=sequence(
            "pretokenizers", split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(deepseek), byte_level)),
        "made: marks": variant(qwen, pre_tokenizer=sequence("pretokenizers", split(qwen35), byte_level)),
        "made: SmolLM": variant(gpt2, pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                                             dict(byte_level, use_regex=True))),
        "made: prefix space": variant(gpt2, pre_tokenizer=dict(byte_level, use_regex=True, add_prefix_space=True)),
        "made: words and digits": variant(gpt2, pre_tokenizer=sequence(
            "pretokenizers", {"type": "Digits", "individual_digits": False}, {"type": "Punctuation", "behavior": "Contiguous"},
            split(r"\w+", "MergedWithNext"), split(r"\d", "MergedWithPrevious", True), split("a", "Removed", False, "String"),
            byte_level)),
        "made: regex escapes": variant(gpt2, pre_tokenizer=sequence(
            "pretokenizers", split(r"\W+", "Contiguous"), split(r"[^\S\n]+|\h{,2}", "Isolated"), split(r"[[:punct:]]{1,2}+"),
            split(r"^\p{Lu}|\P{L}$", "MergedWithPrevious"), byte_level)),
        "made: NFKC lower strip": variant(gpt2, normalizer=sequence(
            "normalizers", {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"Regex": "[aeiou]{2}"}, "content": "<>"})),
        "made: NFD strip accents": variant(gpt2, normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "StripAccents"})),
        "made: added tokens": variant(gpt2, normalizer={"type": "Lowercase"}, added=added(
            50257, {"content": "<mask>", "lstrip": True, "special": True}, {"content": "<sep>", "rstrip": True, "special": True},
            {"content": "foo_", "single_word": True}, {"content": "FOO", "normalized": True},
            {"content": "<se", "lstrip": True, "rstrip": True}, {"content": "[[12]]", "normalized": True, "single_word": True},
            {"content": "the", "single_word": True})),  # exists in the vocabulary: it keeps its id
        "made: Metaspace": variant(phi3, normalizer=None, pre_tokenizer=metaspace),
        "made: Metaspace whole": variant(phi3, normalizer=None, pre_tokenizer=dict(metaspace, split=False, prepend_scheme="always")),
        "made: Metaspace never": variant(phi3, normalizer=None, pre_tokenizer=sequence(
            "pretokenizers", {"type": "WhitespaceSplit"}, dict(metaspace, prepend_scheme="never"))),
        "made: unknown tokens": variant(phi3, model={"byte_fallback": False, "fuse_unk": False}),
        "made: unknown tokens fused": variant(phi3, model={"byte_fallback": False, "fuse_unk": True},
                                              pre_tokenizer=sequence("pretokenizers", {"type": "Whitespace"})),
        "made: ByteLevel normalizer": variant(gpt2, normalizer={"type": "ByteLevel"},
                                              pre_tokenizer=split(" ?[a-zA-Z]+", "Isolated")),
    }


def compare(driver, name, folder, count, seed, newer, write=print):
    with open(f"{folder}/tokenizer.json") as file:
        config = json.load(file)
    peer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    specials = [t["content"] for t in config["added_tokens"]]
    steps = json.dumps([config.get("normalizer"), config.get("pre_tokenizer")])
    uses_tables = any(step in steps for step in ("NF", "Lowercase", "StripAccents", "Punctuation"))
    rng, reasons, shown = random.Random(seed), {}, 0
    for start in range(0, count, 20000):
        texts = [random_text(rng, specials) for _ in range(min(20000, count - start))]
        wants = [e.ids for e in peer.encode_batch(texts, add_special_tokens=False)]
        for text, got, want in zip(texts, ours(driver, folder, texts), wants):
            if got == want:
                continue
            reason = "character newer than the peer's tables" if uses_tables and any(c in newer for c in text) else "unknown"
            reasons[reason] = reasons.get(reason, 0) + 1
            if reason == "unknown" and shown < 3:
                shown += 1
                write(f"  {text!r}\n    got  {got}\n    want {want}")
    write(f"{name}: {count} strings, {sum(reasons.values())} differ {reasons or ''}")
    return reasons.get("unknown", 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", default="build/bench/bench_tokenizer")
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--count", type=int, default=200000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    newer = newer_characters()
    unknown = 0
    real = {name: f"{options.shared}/data/tokenizers/{name}"
            for name in ("gpt2", "phi-2", "phi-3", "minimind", "qwen/qwen2.5", "qwen/qwen3")}
    real["stories260K"] = f"{options.shared}/data/models/stories260K/hf"
    for name, folder in real.items():
        if options.only in name:
            unknown += compare(options.driver, name, folder, options.count, options.seed, newer)
    for name, made in made_files(options.shared).items():
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/tokenizer.json", "w") as file:
                json.dump(made, file)
            unknown += compare(options.driver, name, folder, options.count // 10, options.seed, newer)
    return unknown != 0


if __name__ == "__main__":
    sys.exit(main())
