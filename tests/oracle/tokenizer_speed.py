#!/usr/bin/env python3
"""Encoding speed beside Hugging Face's tokenizers, in one run: MB/s and the ratio, on 1 and 2 threads.

  tokenizer_speed.py --driver build/bench/bench_tokenizer [--rounds 3]

Needs the PyPI package tokenizers. Both encode the same parts (whole lines, 4 KB and more); the best of several rounds counts, and the two
take turns so that other work on the machine disturbs both. Bars: our one thread at least 8 times the peer's one thread; our two threads at
least 1.9 times our one thread.
"""
import argparse
import glob
import os
import subprocess
import sys
import tempfile

PART = 4096


def peer_speed(folder, parts, size):
    """MB/s of the peer, measured in a separate process: its number of threads is fixed when it starts."""
    code = (
        "import sys, time, pickle\nfrom tokenizers import Tokenizer\n"
        "t = Tokenizer.from_file(sys.argv[1] + '/tokenizer.json')\nparts = pickle.load(open(sys.argv[2], 'rb'))\n"
        "best = 1e9\n"
        "for _ in range(3):\n"
        "    start = time.perf_counter()\n"
        "    t.encode_batch_fast(parts, add_special_tokens=False)\n"
        "    best = min(best, time.perf_counter() - start)\n"
        "print(best)\n")
    env = dict(os.environ, TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    run = subprocess.run([sys.executable, "-c", code, folder, parts], env=env, capture_output=True, text=True, check=True)
    return size / float(run.stdout) / 1e6


def our_speed(driver, folder, path, threads):
    run = subprocess.run([driver, "speed", folder, path, str(threads), str(PART)], capture_output=True, text=True, check=True)
    return float(run.stdout.split()[0])


def split_parts(data):
    parts, at = [], 0
    while at < len(data):
        end = min(at + PART, len(data))
        while end < len(data) and data[end - 1] != 10:
            end += 1
        parts.append(data[at:end].decode("utf-8", "replace"))
        at = end
    return parts


def main():
    import pickle

    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", default="build/bench/bench_tokenizer")
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    data = f"{options.shared}/data"
    code_files = sorted(glob.glob("/usr/include/*.h") + glob.glob("/usr/include/linux/*.h"))[:400]
    code_files += sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py"))
    code = b"".join(open(f, "rb").read() for f in code_files).decode("utf-8", "ignore").encode()
    texts = {"English": open(f"{data}/datasets/tinyshakespeare.txt", "rb").read() + open(f"{data}/datasets/c4_demo.jsonl", "rb").read(),
             "code": code[:4000000]}
    vocabularies = {"Qwen": f"{data}/tokenizers/qwen/qwen2.5", "Llama": f"{data}/tokenizers/phi-3",
                    "GPT-2": f"{data}/tokenizers/gpt2"}
    missed = 0
    for text_name, text in texts.items():
        with tempfile.TemporaryDirectory() as folder:
            open(f"{folder}/text", "wb").write(text)
            with open(f"{folder}/parts", "wb") as file:
                pickle.dump(split_parts(text), file)
            for name, path in vocabularies.items():
                peer = one = two = scaling = 0.0
                for _ in range(options.rounds):
                    peer = max(peer, peer_speed(path, f"{folder}/parts", len(text)))
                    one = max(one, our_speed(options.driver, path, f"{folder}/text", 1))
                    two = max(two, our_speed(options.driver, path, f"{folder}/text", 2))
                scaling = two / one
                missed += one < 8 * peer or scaling < 1.9
                print(f"{name:6} {text_name:8} {len(text) / 1e6:.1f} MB: peer {peer:6.2f} MB/s, ours {one:7.2f} MB/s = "
                      f"{one / peer:5.1f} x (bar 8), 2 threads {two:7.2f} MB/s = {scaling:4.2f} x (bar 1.9)", flush=True)
    return missed != 0


if __name__ == "__main__":
    sys.exit(main())
