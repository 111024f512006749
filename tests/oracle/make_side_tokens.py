#!/usr/bin/env python3
"""Tokens named beside tokenizer.json, in random files, and the ids that transformers gives: tests/fixtures/side_tokens.json.

  make_side_tokens.py [--count 60] [--seed 1] [OUT]

Needs the PyPI packages transformers and tokenizers. A case has the entries of the vocabulary beyond the bytes, the files beside it, a text,
its ids, and the ids of EOS and padding (null: none).
"""
import argparse
import json
import logging
import os
import random
import tempfile
import warnings

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer
from transformers import __version__ as version

NAMES = ["<a>", "<b>", "<c>", "<D>", "<e e>", "</s>", "[PAD]", "word", "Ab"]
KEYS = ["bos_token", "eos_token", "pad_token", "unk_token", "image_token", "audio_token"]


def flags(r, content):
    token = {"content": content}
    for key in ("lstrip", "rstrip", "single_word", "normalized", "special"):
        if r.random() < 0.5:
            token[key] = r.random() < 0.3
    return token


def base(r):
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for name in r.sample(["</s>", "word", "Ab"], r.randint(0, 2)):
        vocab[name] = len(vocab)
    peer = Tokenizer(models.BPE(vocab, []))
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    if r.random() < 0.4:
        peer.normalizer = normalizers.Lowercase()
    for name in r.sample(NAMES, r.randint(0, 3)):
        peer.add_tokens([AddedToken(**flags(r, name))])
    return peer


def token(r):
    name = r.choice(NAMES)
    return name if r.random() < 0.6 else {"__type": "AddedToken", **flags(r, name)}


def files(r, peer):
    config, out = {}, {}
    for key in r.sample(KEYS, r.randint(0, 4)):
        config[key] = token(r)
    extra = r.choice([None, "extra_special_tokens", "additional_special_tokens", "dict"])
    if extra == "dict":
        config["extra_special_tokens"] = {"x_token": r.choice(NAMES), "y": r.choice(NAMES)}
    elif extra:
        config[extra] = [token(r) for _ in range(r.randint(0, 3))]
    if r.random() < 0.5:
        own = json.loads(peer.to_str())["added_tokens"]
        decoder = {str(t.pop("id")): {**t, "lstrip": r.random() < 0.3} for t in own if r.random() < 0.8}
        for name in r.sample(NAMES, r.randint(0, 3)):
            if name not in [t["content"] for t in decoder.values()]:
                decoder[str(r.randint(250, 300))] = flags(r, name)
        config["added_tokens_decoder"] = decoder
    if r.random() < 0.4:
        out["added_tokens.json"] = {name: 256 + i for i, name in enumerate(r.sample(NAMES, r.randint(1, 4)))}
    if r.random() < 0.4:
        plain = {"lstrip": r.random() < 0.5, "rstrip": False, "single_word": False, "normalized": r.random() < 0.5}
        out["special_tokens_map.json"] = {
            key: r.choice([r.choice(NAMES), {"content": r.choice(NAMES), **plain}]) for key in r.sample(KEYS[:4], r.randint(1, 3))}
    out["tokenizer_config.json"] = config
    return out


def case(r):
    peer = base(r)
    beside = files(r, peer)
    text = "".join(r.choice(NAMES + ["<d>", "ab", " ", "  ", "x", "word", "<A>"]) for _ in range(14))
    with tempfile.TemporaryDirectory() as folder:
        peer.save(folder + "/tokenizer.json")
        for name, content in beside.items():
            with open(f"{folder}/{name}", "w") as f:
                json.dump(content, f)
        whole = AutoTokenizer.from_pretrained(folder)
        tokenizer = json.loads(peer.to_str())
    vocab = tokenizer["model"]["vocab"]
    return {"words": [w for w in vocab if len(w) > 1], "lowercase": peer.normalizer is not None,
            "added_tokens": tokenizer["added_tokens"], "files": beside, "text": text,
            "ids": whole.encode(text, add_special_tokens=False), "eos": whole.eos_token_id, "pad": whole.pad_token_id}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--count", type=int, default=60)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("out", nargs="?", default=os.path.join(os.path.dirname(__file__), "../fixtures/side_tokens.json"))
    args = args.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    r = random.Random(args.seed)
    with open(args.out, "w") as f:
        rows = ",\n".join(json.dumps(case(r)) for _ in range(args.count))
        f.write(f'{{"transformers": "{version}", "cases": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
