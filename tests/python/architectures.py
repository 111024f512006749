"""Models of examples/dsl against results of transformers, which tests/oracle/architectures.py wrote. Prints counts."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from surogate import Model, Trainer

FIXTURES = Path("tests/fixtures/architectures")
WAYS = ("examples/dsl", "python/surogate/models")
LIMIT = 1e-5
SCALE = 2  # factor of matrices, as in tests/oracle/make_greedy.py
OTHER_UPDATES = ("relative_attention_bias.weight", "q_norm.weight", "k_norm.weight")  # 2-D, but not linear layers' matrices
POLAR_EXPRESS = ((8.156554524902461, -22.48329292557795, 15.878769915207462), (4.042929935166739, -2.808917465908714, 0.5000178451051316),
                 (3.8916678022926607, -2.772484153217685, 0.5060648178503393), (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
                 (2.3465413258596377, -1.7097828382687081, 0.42323551169305323))


def error(ours, reference):
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    return float(np.abs(ours - reference).max() / np.abs(reference).max())


def probe(values):
    """As in tests/oracle/architectures.py."""
    values = np.asarray(values, np.float64).ravel()
    return [float(np.sqrt((values**2).sum())), float((values * np.cos(np.arange(values.size))).sum())]


def gradient_error(trainer, expected):
    """The largest difference of a gradient's two numbers, relative to its norm. Gradients of key biases are 0 up to rounding."""
    return max(max(abs(a - b) for a, b in zip(probe(trainer.gradients(n)), e)) / e[0] for n, e in expected.items() if e[0] > 1e-6)


def rows_of_matrices(name, config):
    """How many adjacent rows each matrix within a linear layer's weight has, repeated over the rows; None: the weight is one matrix."""
    if name.endswith("gate_up_proj.weight"):
        return [config["intermediate_size"]] * 2
    if name.endswith("Wqkv.weight"):
        return [config["d_model"]] * 3
    if name.endswith("c_attn.weight"):
        whole = config["n_embd"]
        return [whole, *[whole // config["n_head"]] * 2] if config.get("multi_query") else [whole] * 3
    if name.endswith("qkv_proj.weight"):
        return [config["n_embd"] // 4] * 3
    if not name.endswith("query_key_value.weight"):
        return None
    heads = groups = config.get("num_attention_heads") or config["n_head"]
    if config.get("multi_query"):
        groups = 1
    if config.get("new_decoder_architecture"):
        groups = config["num_kv_heads"]
    size = config["hidden_size"] // heads
    return [heads // groups * size, size, size]


def first_normuon(gradient, lr):
    """The change of a matrix in the first step of NorMuon."""
    x = 0.05 * 1.95 * gradient  # momentum 0.95 with Nesterov
    x = x / (1.02 * np.linalg.norm(x) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x / np.sqrt(0.05 * (x**2).mean(1, keepdims=True))
    return -lr * 0.2 * np.sqrt(x.size) / np.linalg.norm(x) * x


def normuon_error(folder, settings, ids, lr=1e-2):
    """The largest difference of a linear layer's update, relative to its size. Each matrix within a weight is updated separately."""
    config, worst = json.loads((folder / "config.json").read_text()), 0.0
    with Trainer(**settings, optimizer="normuon", max_grad_norm=0) as trainer:
        trainer.step(ids[0, :, :-1], ids[0, :, 1:])
        trainer.backward()
        names = [n for n, shape in trainer.parameters().items() if len(shape) == 2 and ".0." in n and not n.endswith(OTHER_UPDATES)]
        lies = np.transpose if config["model_type"] == "gpt2" else np.asarray  # GPT-2's folder has them transposed
        gradients, before = ({n: lies(f(n)).astype(np.float64) for n in names} for f in (trainer.gradients, trainer.weights))
        trainer.update(lr)
        for name in names:
            rows = rows_of_matrices(name, config) or [len(before[name])]
            of = np.arange(len(before[name])) % sum(rows)
            for begin, size in zip(np.cumsum([0, *rows]), rows):
                mine = (of >= begin) & (of < begin + size)
                worst = max(worst, error((lies(trainer.weights(name)) - before[name])[mine], first_normuon(gradients[name][mine], lr)))
    return worst


def read_tensors(path):
    """Tensors of the file, as floats or int32."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        if tensor["dtype"] == "BF16":
            values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], {"F32": np.float32, "I32": np.int32}[tensor["dtype"]])
        found[name] = values.reshape(tensor["shape"])
    return found


def write_floats(path, tensors):
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values()))


def scale(folder, ir, out):
    """Writes a copy in fp32 with the matrices of layers scaled: unscaled, texts repeat one token."""
    os.makedirs(out, exist_ok=True)
    tensors = read_tensors(folder / "model.safetensors")
    of_layers = {name for name, values in tensors.items() if values.ndim == 2 and (".layers." in name or ".h." in name)}
    write_floats(os.path.join(out, "model.safetensors"), {n: v * np.float32(SCALE if n in of_layers else 1) for n, v in tensors.items()})
    config = json.loads((folder / "config.json").read_text())
    Path(out, "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    Path(out, "surogate_ir.json").write_text(Path(ir).read_text())


def shapes(folder):
    """Shapes of a folder's tensors, by name."""
    return {name: values.shape for name, values in read_tensors(Path(folder) / "model.safetensors").items()}


def greedy_errors(name, folder, greedy):
    """Generates texts of many prompts. Returns how many differ from the reference's at a token whose two largest logits aren't nearly equal, and
    the largest difference of ln p from the reference, and from a score of the whole text."""
    texts, logprobs = greedy[f"architectures/{name}.texts"], greedy[f"architectures/{name}.logprobs"]
    margins = dict(zip(greedy[f"architectures/{name}.near"].tolist(), greedy[f"architectures/{name}.margins"].tolist()))
    ends = np.cumsum(greedy["prompt_lens"])[: len(texts)]
    prompts = np.split(greedy["prompt_ids"][: ends[-1]], ends[:-1])
    with Model(folder, device="cpu") as model:
        made = model.generate_rows(prompts, max_tokens=texts.shape[1], ignore_eos=True, logprobs=0, rows=5)
        read = model.score(np.concatenate((prompt, row.ids)) for prompt, row in zip(prompts, made))
    wrong, worst = 0, 0.0
    for i, row in enumerate(made):
        differ = np.flatnonzero(row.ids != texts[i])
        first = int(differ[0]) if len(differ) else texts.shape[1]
        wrong += len(differ) > 0 and not margins.get(i * texts.shape[1] + first, np.inf) < 1e-4
        worst = max(worst, float((np.abs(row.logprobs - logprobs[i]) / np.maximum(1, np.abs(logprobs[i])))[:first].max(initial=0)))
    apart = max(error(row.logprobs, whole.logprobs[-len(row.ids) :]) for row, whole in zip(made, read))
    return {"texts": float(wrong), "texts' logprobs": worst, "texts' scores": apart}


def check(folder, ir, out, greedy):
    expected = json.loads((folder / "expected.json").read_text())
    ids = np.asarray(expected["ids"], np.int32)
    settings = dict(model=str(folder), ir=ir, output_dir=out, sequence_len=ids.shape[2] - 1, per_device_train_batch_size=ids.shape[1],
                    gradient_accumulation_steps=1, max_steps=len(ids) - 1, warmup_steps=0, device="cpu", weight_decay=0.0, model_dtype="fp32",
                    recompute_block=True)
    generates = expected["generated"] is not None
    settings |= dict(generate_samples=1, sample_max_tokens=8) if generates else {}
    found = {}
    with Trainer(**settings, whole_logits=True) as trainer:
        found["logits"] = error(trainer.logits(ids[0, :, :-1])[0, -1], expected["logits"])
        found["logprobs"] = error(trainer.logprobs(ids[0, :, :-1], ids[0, :, 1:]).reshape(ids.shape[1], -1), expected["logprobs"])
        trainer.step(ids[0, :, :-1], ids[0, :, 1:])
        trainer.backward()
        names = set(trainer.parameters()) ^ {*expected["gradients"], *expected.get("frozen", [])}
        found["names"] = float(len(names))
        found["gradients / 10"] = gradient_error(trainer, expected["gradients"]) / 10
    with Trainer(**settings) as trainer:
        found["steps"] = max(abs(trainer.train_step(b[:, :-1], b[:, 1:], lr=1e-3)[0] / loss - 1) for b, loss in zip(ids[1:], expected["losses"]))
        if generates:
            text = trainer.generate(ids[0, 0, :8], max_tokens=8, temperature=0)
            found["generated"] = float(list(map(int, text)) != expected["generated"])
        after = trainer.logprobs(ids[0, :, :-1], ids[0, :, 1:])
        trainer.export_model(out + "-saved")
    found["tensors"] = float(shapes(folder) != shapes(out + "-saved"))
    with Trainer(**{**settings, "model": out + "-saved"}) as trainer:
        found["saved"] = error(trainer.logprobs(ids[0, :, :-1], ids[0, :, 1:]), after)
    found["normuon / 10"] = normuon_error(folder, settings, ids) / 10
    if generates:
        scale(folder, ir, out + "-scaled")
        found.update(greedy_errors(folder.name, out + "-scaled", greedy))
    bad = {what: e for what, e in found.items() if not e <= LIMIT}
    print("FAIL" if bad else "ok  ", folder.name, bad or "")
    return not bad


def main():
    folders = sorted(FIXTURES.iterdir())
    greedy = read_tensors("tests/fixtures/greedy.safetensors")
    good = 0
    with tempfile.TemporaryDirectory() as out:
        for folder in folders:
            ir = os.path.join(out, "ir.json")
            file = folder.name.split("+")[0] + ".py"
            source = next(path for way in WAYS if (path := Path(way, file)).exists())
            subprocess.run([sys.executable, "-m", "surogate.dsl", "build", str(source), "-o", ir], check=True)
            kept = folder / "surogate_ir.json"  # read by tests that don't run Python
            plain = [sys.executable, "-m", "surogate.dsl", "build", "--plain", str(source)]
            if kept.exists() and kept.read_bytes() != subprocess.run(plain, check=True, stdout=subprocess.PIPE).stdout:
                print("FAIL", kept, "differs from what surogate.dsl build --plain makes of", source)
                continue
            good += check(folder, ir, os.path.join(out, "run"), greedy)
    print("%d passed, %d failed, 0 skipped" % (good, len(folders) - good))


main()
