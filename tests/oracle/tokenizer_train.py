#!/usr/bin/env python3
"""Our BPE trainer beside Hugging Face's on the same texts: equal vocabulary and merges, and their tool loads our file.

  tokenizer_train.py --driver build/bench/bench_tokenizer [--vocab 8000] [--big]

Needs the PyPI package tokenizers. --big also trains on 20 MB and prints the seconds (at most 60 on 2 cores).
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "true"
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def peer_train(texts, vocab, min_frequency):
    peer = Tokenizer(models.BPE())
    peer.normalizer = normalizers.NFC()
    peer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    peer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=min_frequency, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    peer.train_from_iterator(texts, trainer)
    return peer


def model_of(text):
    model = json.loads(text)["model"]
    return model["vocab"], [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]


def compare(driver, name, texts, vocab, min_frequency):
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, text in enumerate(texts):
            files.append(f"{folder}/text{i}")
            with open(files[-1], "w", newline="") as file:
                file.write(text)
        run = subprocess.run([driver, "train", folder, str(vocab), str(min_frequency), "2", *files], capture_output=True,
                             text=True, check=True)
        ours = open(f"{folder}/tokenizer.json").read()
        loaded = Tokenizer.from_file(f"{folder}/tokenizer.json")
    peer = peer_train(texts, vocab, min_frequency)
    (our_vocab, our_merges), (vocabulary, merges) = model_of(ours), model_of(peer.to_str())
    first = next((i for i, (a, b) in enumerate(zip(our_merges, merges)) if a != b), None)
    sample = texts[0][:20000] + "<|im_start|>user\n"
    equal = our_vocab == vocabulary and our_merges == merges and loaded.encode(sample).ids == peer.encode(sample).ids
    print(f"{name}: vocabulary {len(vocabulary)}, {len(merges)} merges, {'equal' if equal else 'DIFFERENT'}; {run.stdout.strip()}")
    if first is not None:
        print(f"  merge {first}: got {our_merges[first]}, want {merges[first]}")
    return not equal


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", default="build/bench/bench_tokenizer")
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--big", action="store_true")
    options = parser.parse_args()
    data = f"{options.shared}/data/datasets"
    read = lambda path: open(path, newline="", errors="replace").read()
    shakespeare, c4, gsm = read(f"{data}/tinyshakespeare.txt"), read(f"{data}/c4_demo.jsonl"), read(f"{data}/gsm8k_train.jsonl")
    repeats = "aaaa aaaaa abababab abcabc " * 50 + "".join("ab" * (i % 7) + "c" * (i % 5) + " " for i in range(500))
    mixed = "한국어 你好世界 привет שלום हिन्दी ﬁ é e\u0301 🙂🙂 " * 40 + c4[:50000]
    bad = 0
    bad += compare(options.driver, "repeats", [repeats], 2000, 0)
    bad += compare(options.driver, "mixed scripts", [mixed], 4000, 1)
    bad += compare(options.driver, "tinyshakespeare", [shakespeare], options.vocab, 2)
    bad += compare(options.driver, "three documents", [shakespeare, c4, gsm], options.vocab * 2, 2)
    bad += compare(options.driver, "to the end", [shakespeare[:200000]], 100000, 1)
    if options.big:
        code = "".join(read(f) for f in sorted(glob.glob("/usr/include/**/*.h", recursive=True)) + sorted(glob.glob(os.path.dirname(os.__file__) + "/**/*.py", recursive=True))[:3000])
        texts = [shakespeare, c4, gsm, code[: 20_000_000 - len(shakespeare) - len(c4) - len(gsm)]]
        print(f"{sum(len(t) for t in texts) / 1e6:.1f} million characters:")
        bad += compare(options.driver, "20 MB", texts, 32000, 2)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
