"""Adapters of linear layers whose weights other ops read (tests/dsl/readers.py): which get an adapter, what is refused. Prints counts."""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from surogate import SurogateError, Trainer

CONFIG = dict(architectures=["ReadersForCausalLM"], vocab_size=19, n_embd=8, n_layer=2, dtype="float32")
LAYERS = ("outer.shared", "blocks.0.alone", "blocks.1.alone")  # the layers that all-linear selects
C, V, L, T = CONFIG["n_embd"], CONFIG["vocab_size"], CONFIG["n_layer"], 8


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values()))


def write_model(folder):
    rng = np.random.default_rng(3)
    os.makedirs(folder)
    names = [f"blocks.{i}.{n}.weight" for i in range(L) for n in ("alone", "shared", "left", "right")] + ["outer.shared.weight"]
    write_tensors(f"{folder}/model.safetensors", {n: rng.standard_normal((C, C), dtype=np.float32) for n in names}
                  | {"embed": rng.standard_normal((V, C), dtype=np.float32)})
    with open(f"{folder}/config.json", "w") as f:
        json.dump(CONFIG, f)
    subprocess.run([sys.executable, "-m", "surogate.dsl", "build", "tests/dsl/readers.py", "-o", f"{folder}/surogate_ir.json"], check=True)


def write_adapter(folder, module):
    os.makedirs(folder)
    half = np.full((2, C), 0.1, np.float32)
    at = f"base_model.model.{module}"
    write_tensors(f"{folder}/adapter_model.safetensors", {f"{at}.lora_A.weight": half, f"{at}.lora_B.weight": half.T.copy()})
    with open(f"{folder}/adapter_config.json", "w") as f:
        json.dump(dict(peft_type="LORA", r=2, lora_alpha=4, target_modules=[module]), f)


def open_trainer(model, **settings):
    return Trainer(**(dict(model=model, lora=True, lora_rank=2, model_dtype="fp32", device="cpu", sequence_len=T, per_device_train_batch_size=1,
                           gradient_accumulation_steps=1, output_dir=model + "/out") | settings))


def all_linear(model, **more):
    """Whether all-linear adapts exactly LAYERS, in training, in the export, and in training continued from the export."""
    ids = np.random.default_rng(4).integers(0, V, (1, T + 1), dtype=np.int32)
    with open_trainer(model, **more) as trainer:
        names = {n.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for n in trainer.parameters()}
        trainer.train_step(ids[:, :-1], ids[:, 1:], lr=1e-2)
        trainer.export_adapter(model + "/adapted")
    with open(model + "/adapted/adapter_config.json") as f:
        targets = json.load(f)["target_modules"]
    with open_trainer(model, adapter=model + "/adapted") as trainer:
        again = len(trainer.parameters())
    return names == set(LAYERS) and sorted(targets) == sorted(LAYERS) and again == 2 * len(LAYERS)


def refused(text, function):
    try:
        function()
    except SurogateError as error:
        if text not in str(error):
            print("FAIL", text, "isn't in:", error)
        return text in str(error)
    print("FAIL not refused:", text)
    return False


def merges(model, module):
    write_adapter(f"{model}/{module}", module)
    run = subprocess.run([os.environ["SUROGATE"], "merge", model, f"{model}/{module}", f"{model}/{module}.merged"], capture_output=True, text=True)
    return run.returncode == 0, run.stderr


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = folder + "/model"
        write_model(model)
        two, alone = "blocks.0.shared: slice at ", "blocks.0.left: no linear layer reads its weight, but add at "
        fine, problem = merges(model, "blocks.1.alone"), merges(model, "blocks.1.shared")
        good = [
            all_linear(model),
            all_linear(model, lora_rank_pattern={"alone": 4}),
            refused(two, lambda: open_trainer(model, lora_target_modules=["shared"])),
            refused(two, lambda: open_trainer(model, lora_target_modules=["shared"], lora_exclude_modules=["blocks.1.shared"])),
            refused(alone, lambda: open_trainer(model, lora_target_modules=["left"])),
            refused("it has shared, alone", lambda: open_trainer(model, lora_target_modules=["middle"])),
            refused("it has shared, alone", lambda: open_trainer(model, lora_target_modules=["middle"], lora_exclude_modules=["alone"])),
            fine[0],
            not problem[0] and "blocks.1.shared has an adapter, and slice at " in problem[1],
        ]
    print("%d passed, %d failed, 0 skipped" % (sum(good), len(good) - sum(good)), *([] if all(good) else [good, problem]))


main()
