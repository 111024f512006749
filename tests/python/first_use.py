"""Weights that are used twice, but whose first use doesn't run: it is in a repeat without turns or in an untaken branch. Prints counts."""

import json
import os
import subprocess
import sys
import tempfile

from surogate import SurogateError, Trainer

MODEL = '''from typing import Any
from surogate.dsl import Array, Module, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, normal


@module
class Linear(Module):
    weight = Param(Tensor["C", "C"], linear=True, init=normal(0.3))

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return g.linear(x, self.weight)


@block
class Block(Module):
    def __init__(self) -> None:
        self.inner = Linear()

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        return self.inner(x)


@hf_mapping.indexed("blocks", "blocks.{i}")
@hf_config("FirstForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), L=Size("n_layer"))
@model
class First(Module):
    embed = Param(Tensor["V", "C"], init=normal(0.5))
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.one = Linear()

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"]) -> dict[str, Any]:
        with graph() as g:
            x = g.embedding(tokens, self.embed, name="x")
            BODY
            x = self.one(self.blocks(x))
            return {"logits": g.linear(x, self.embed, name="logits")}
'''
BODIES = (
    'x = g.repeat("max(L - 3, 0)", lambda y: self.one(y), x)',
    'x = g.repeat("max(L - 3, 0)", lambda y: self.blocks(y), x)',
    'x = g.repeat("max(L - 3, 0)", lambda y: self.one(self.blocks(self.one(y))), g.repeat("max(L - 2, 0)", lambda y: self.one(y), x))',
    'x = g.select("L > 2", lambda: self.blocks(x), lambda: g.tanh(x, name="t"), name="chosen")',
    'x = g.select("L > 2", lambda: self.blocks(x), lambda: self.blocks(g.tanh(x, name="t")), name="chosen")',
    'x = g.repeat(2, lambda y: g.select("turn > 0", lambda: self.blocks(y), lambda: self.blocks(self.blocks(y)), name="chosen"), x)',
    'x = g.select("L > 2", lambda: g.repeat("L", lambda y: self.blocks(y), x), lambda: g.repeat(2, lambda y: self.one(y), x), name="chosen")',
    'x = g.repeat(2, lambda y: g.repeat("turn - turn", lambda z: self.blocks(z), y), x)',
)
LAYERS = (2, 3, 4)
NAMES = {"embed", "one.weight"}


def trains(folder, layers):
    """Checks that the model has each weight once, and takes a step."""
    with open(folder + "/config.json", "w") as f:
        json.dump(dict(architectures=["FirstForCausalLM"], vocab_size=19, n_embd=8, n_layer=layers, dtype="float32"), f)
    try:
        with Trainer(model=folder, from_scratch=True, device="cpu", sequence_len=8, per_device_train_batch_size=1, gradient_accumulation_steps=1,
                     model_dtype="fp32", output_dir=folder + "/out") as trainer:
            trainer.step([[1, 2, 3, 4, 5, 6]])
            return trainer.update(1e-3).loss > 0 and set(trainer.parameters()) == NAMES | {f"blocks.{i}.inner.weight" for i in range(layers)}
    except SurogateError as error:
        print(error)
        return False


def main():
    good = 0
    for number, body in enumerate(BODIES):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/first{number}.py", "w") as f:
                f.write(MODEL.replace("BODY", body))
            build = [sys.executable, "-m", "surogate.dsl", "build", f"{folder}/first{number}.py", "-o", f"{folder}/surogate_ir.json"]
            subprocess.run(build, check=True, env=os.environ)
            for layers in LAYERS:
                fine = trains(folder, layers)
                print("ok  " if fine else "FAIL", layers, body)
                good += fine
    count = len(LAYERS) * len(BODIES)
    print("%d passed, %d failed, 0 skipped" % (good, count - good))


main()
