"""The package on the CPU: arrays of all kinds, and a training loop with the command's bits.

Run from the root of the source tree; the last line counts the tests. The library is SUROGATE_LIBRARY, or the one in build/.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import faulthandler
import gc
import io
import locale
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import numpy as np  # noqa: E402
import surogate  # noqa: E402
from surogate import ChatTemplate, Dataset, Model, Run, Status, SurogateError, Tokenizer, Trainer, _arrays, _native  # noqa: E402

SHAKESPEARE = str(ROOT / "examples/shakespeare")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discards the progress that training prints."""
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


class InFolder(unittest.TestCase):
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        holder = tempfile.TemporaryDirectory(prefix="surogate-python-")
        cls.addClassCleanup(holder.cleanup)
        cls.folder = Path(holder.name)
        text = "".join(f"To be, or not to be, that is question number {i}.\n\n" for i in range(300))
        (cls.folder / "text.txt").write_text(text)

    def settings(self, output: str, **more: Any) -> dict[str, Any]:
        return {
            "model": SHAKESPEARE,
            "from_scratch": True,
            "output_dir": self.folder / output,
            "datasets": [{"path": str(self.folder / "text.txt"), "type": "text"}],
            "sequence_len": 32,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "max_steps": 4,
            "model_dtype": "fp32",
            **more,
        }

    def assert_fails(self, status: Status, says: str) -> Any:
        test = self

        class Context(contextlib.AbstractContextManager[None]):
            def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
                test.assertIsInstance(error, SurogateError)
                assert isinstance(error, SurogateError)
                test.assertEqual(error.status, status)
                test.assertIn(says, error.message)
                return True

        return Context()


class Steps(InFolder):
    def test_fit_has_the_bits_of_a_run(self) -> None:
        run = Run(**self.settings("run"))
        with quiet():
            outcome = run.train()
            self.assertTrue(run.train().already_finished)
        seen: list[int] = []

        def broken(step: surogate.Step) -> None:
            seen.append(step.step)
            raise KeyError("a bug in a callback")

        with Trainer(**self.settings("fit")) as trainer, Dataset(**self.settings("fit")) as dataset:
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                last = trainer.fit(dataset, callbacks=[broken])
            trainer.save_checkpoint()
            self.assertEqual(trainer.steps, 4)
            self.assertIsNone(trainer.fit(dataset))
        assert last is not None
        self.assertEqual(seen, [1, 2, 3, 4])
        self.assertIn("a bug in a callback", errors.getvalue())
        self.assertEqual(last.loss, outcome.loss)
        for name in ("model.safetensors", "optimizer.safetensors"):
            of_run, of_fit = (self.folder / output / "checkpoint-4" / name for output in ("run", "fit"))
            self.assertEqual(of_run.read_bytes(), of_fit.read_bytes(), name)

    def test_a_dataset_of_new_tokens_makes_no_copy_of_the_model(self) -> None:
        text, cache = self.folder / "tools.txt", self.folder / "no-cache"
        text.write_text("To be a <tool>, or not to be.\n\n" * 300)
        settings = self.settings("tools", datasets=[{"path": str(text), "type": "text"}], new_tokens=["<tool>"])
        old = Tokenizer(SHAKESPEARE).vocab_size
        with unittest.mock.patch.dict(os.environ, {"HF_HOME": str(cache)}), Dataset(**settings) as dataset:
            self.assertTrue(any((batch.input_ids >= old).any() for batch in dataset))
        self.assertFalse(cache.exists())

    def test_fit_refuses_a_dataset_of_other_settings(self) -> None:
        with Trainer(**self.settings("same")) as trainer:
            for name, said, value in (
                ("per_device_train_batch_size", "rows of a micro-batch (per_device_train_batch_size of each rank): 2, the trainer's 4", 2),
                ("sequence_len", "sequence_len: 16, the trainer's 32", 16),
                ("gradient_accumulation_steps", "gradient_accumulation_steps: 1, the trainer's 2", 1),
                ("seed", "seed: 7, the trainer's 42", 7),
            ):
                with Dataset(**self.settings("same", **{name: value})) as dataset, self.assertRaisesRegex(ValueError, re.escape(said)):
                    trainer.fit(dataset)
            self.assertEqual(trainer.steps, 0)
            both = "sequence_len: 16, the trainer's 32; seed: 7, the trainer's 42"
            with Dataset(**self.settings("same", sequence_len=16, seed=7)) as dataset, self.assertRaisesRegex(ValueError, both):
                trainer.fit(dataset)

    def test_several_ranks_are_driven_as_one(self) -> None:
        ranks = {"device": "cpu", "gpus": 2, "zero_level": 3}
        with quiet():
            outcome = Run(**self.settings("ranks-run", **ranks)).train()
        with Trainer(**self.settings("ranks", **ranks)) as trainer, Dataset(**self.settings("ranks", **ranks)) as dataset:
            self.assertEqual((trainer.rows, dataset.micro_batches), (8, 2))
            last = trainer.fit(dataset)
            assert last is not None
            self.assertEqual(last.loss, outcome.loss)
            shapes = trainer.parameters()
            squares = sum(float((trainer.gradients(name).astype(float) ** 2).sum()) for name in shapes)
            self.assertAlmostEqual(last.norm, squares**0.5, places=3)
            trainer.save_checkpoint()
        of_run, of_fit = (self.folder / output / "checkpoint-4/model.safetensors" for output in ("ranks-run", "ranks"))
        self.assertEqual(of_run.read_bytes(), of_fit.read_bytes())

    def test_an_interrupted_fit_goes_on(self) -> None:
        def interrupt(step: surogate.Step) -> None:
            if step.step == 2:
                raise KeyboardInterrupt

        def bad_rate(index: int) -> float:
            return -1.0 if index == 3 else 1e-3

        with Trainer(**self.settings("cut")) as trainer, Dataset(**self.settings("cut")) as dataset:
            with self.assertRaises(KeyboardInterrupt):
                trainer.fit(dataset, callbacks=[interrupt], lr=lambda _: 1e-3)
            self.assertEqual(trainer.steps, 3)  # the third update was already queued
            with self.assert_fails(Status.INVALID, "learning rate -1"):
                trainer.fit(dataset, lr=bad_rate)
            last = trainer.fit(dataset, lr=lambda _: 1e-3)
            with Trainer(**self.settings("whole")) as whole:
                want = whole.fit(dataset, lr=lambda _: 1e-3)
            assert last and want
            self.assertEqual((last.step, last.loss), (want.step, want.loss))

    def test_batches_of_the_dataset_do_the_same_by_hand(self) -> None:
        settings = self.settings("hand")
        losses = []
        with Trainer(**settings) as trainer, Dataset(**settings) as dataset:
            self.assertEqual((dataset.steps, dataset.micro_batches), (4, 2))
            batches = list(dataset)
            self.assertEqual((len(batches), len(dataset)), (8, 8))
            for first in (0, 2, 4, 6):
                for batch in batches[first : first + 2]:
                    trainer.step(batch.input_ids, batch.targets, batch.segments, batch.positions)
                losses.append(trainer.update().loss)
            again = Trainer(**self.settings("hand2"))
            last = again.fit(dataset)
            assert last is not None
            self.assertEqual(last.loss, losses[-1])

    def test_targets_end_where_documents_do(self) -> None:
        with Trainer(**self.settings("ends", sequence_len=8)) as trainer:
            ids, segments, positions = np.arange(8), [0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 2, 0, 1, 2, 3, 4]
            want = trainer.eval(ids, [1, 2, -100, 4, 5, 6, 7, -100], segments, positions)
            for of, at in ((segments, None), (None, positions), (segments, positions)):
                self.assertEqual(trainer.eval(ids, None, of, at), want)

    def test_arrays_of_all_kinds(self) -> None:
        with Trainer(**self.settings("arrays", sequence_len=8)) as trainer:
            ids = np.arange(16, dtype=np.int32).reshape(2, 8)
            want = trainer.eval(ids)
            for same in (ids.tolist(), ids.astype(np.int64), ids.astype(np.uint8), np.asfortranarray(ids), np.repeat(ids, 2, axis=0)[::2]):
                self.assertEqual(trainer.eval(same), want)
            logprobs = trainer.logprobs(ids)
            self.assertEqual((logprobs.shape, logprobs.dtype), ((2, 8), np.float32))
            self.assertAlmostEqual(-float(logprobs.sum()) / 14, want, places=5)
            self.assertEqual(list(logprobs[:, 7]), [0, 0])
            self.assertTrue(np.isnan(trainer.eval(ids, np.full_like(ids, -100))))
            wrong: list[tuple[type[Exception], Any, Any]] = [
                (TypeError, ids.astype(float), None),
                (TypeError, ids > 3, None),
                (TypeError, "text", None),
                (ValueError, ids.astype(np.int64) + 2**33, None),
                (ValueError, ids[None], None),
                (ValueError, 3, None),
                (ValueError, ids, ids[:1]),
            ]
            for kind, bad, targets in wrong:
                with self.assertRaises(kind):
                    trainer.eval(bad, targets)
            for bad, says in (
                (ids + 1000, "token 1000 of row 0"),
                (ids[:, :0], "rows of 0 tokens"),
                (np.zeros((2, 9), int), "sequence_len"),
            ):
                with self.assert_fails(Status.INVALID, says):
                    trainer.eval(bad)
            with self.assert_fails(Status.INVALID, "5 rows"):
                trainer.step(np.zeros((5, 4), int))

    def test_logits_are_what_logprobs_follow_from(self) -> None:
        def logprobs_of(logits: Any, targets: Any) -> Any:
            logits = logits.astype(float)
            return np.take_along_axis(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), targets[..., None], -1)[..., 0]

        ids, targets = np.arange(24).reshape(3, 8), (np.arange(24).reshape(3, 8) * 5 + 1) % 40
        segments = np.array([[0, 0, 0, 1, 1, 1, -1, -1]] * 3)
        small = {"sequence_len": 16, "gradient_accumulation_steps": 1, "per_device_train_batch_size": 2}
        ways: list[tuple[float, dict[str, Any]]] = [
            (1e-6, {}),
            (0.01, {"model_dtype": "bf16"}),
            (1e-6, {"sample_packing": False}),
            (1e-6, {"lora": True, "lora_rank": 2, "from_scratch": False, "model": self.folder / "logits-base"}),
            (1e-6, {"device": "cpu", "gpus": 2}),
        ]
        with Trainer(**self.settings("logits", **small)) as trainer:
            trainer.export_model(self.folder / "logits-base")
        for near, more in ways:
            losses = []
            for asks in (True, False):
                with Trainer(**self.settings("logits", **small, **more, whole_logits=asks)) as trainer:
                    losses.append([trainer.train_step(ids[:2], targets[:2], lr=1e-2).loss])
                    if asks:
                        logits = trainer.logits(ids)
                        self.assertEqual((logits.shape, logits.dtype), ((3, 8, trainer.vocab_size), np.float32))
                        np.testing.assert_allclose(logprobs_of(logits, targets), trainer.logprobs(ids, targets), rtol=near)
                        apart = trainer.logits(ids, segments)
                        self.assertTrue((apart[:, 6:] == 0).all())
                        want = trainer.logprobs(ids, targets, segments)[:, :6]
                        np.testing.assert_allclose(logprobs_of(apart[:, :6], targets[:, :6]), want, rtol=near)
                        np.testing.assert_allclose(trainer.logits(ids[0, 3:6])[0], apart[0, 3:6], atol=1e-5 if near < 0.01 else 0.1)
                    else:
                        with self.assert_fails(Status.INVALID, "set whole_logits: true"):
                            trainer.logits(ids)
                    losses[-1].append(trainer.train_step(ids[:2], targets[:2], lr=1e-2).loss)
                    losses[-1].append(trainer.eval(ids, targets))
            self.assertEqual(*losses)

    def test_int32_arrays_are_read_where_they_lie(self) -> None:
        ids = np.zeros((2, 8), np.int32)
        rows = _arrays.Rows(ids, ids, None, None)
        self.assertEqual(ctypes.cast(rows.batch.ids, ctypes.c_void_p).value, ids.ctypes.data)
        self.assertIs(_arrays.rows(ids, "ids"), ids)

        class Tensor:  # like a tensor of another library
            def __dlpack__(self, **given: Any) -> Any:
                return ids.__dlpack__(**given)

            def __dlpack_device__(self) -> tuple[int, int]:
                return ids.__dlpack_device__()

        self.assertEqual(_arrays.rows(Tensor(), "ids").ctypes.data, ids.ctypes.data)

        class OnGpu(Tensor):
            def __dlpack_device__(self) -> tuple[int, int]:
                return 2, 1

        with self.assertRaisesRegex(TypeError, r"input_ids lies in the memory of cuda:1; expected the host's.*tensor.cpu\(\)"):
            _arrays.Rows(OnGpu(), None, None, None)

    def test_results_are_handed_on_without_a_copy(self) -> None:
        with Trainer(**self.settings("out")) as trainer:
            trainer.train_step([1, 2, 3, 4], lr=1e-3)
            for out in (
                trainer.logprobs([1, 2, 3, 4]),
                trainer.gradients("model.norm.weight"),
                trainer.weights("model.norm.weight"),
            ):
                self.assertEqual(np.from_dlpack(out).ctypes.data, out.ctypes.data)
                out[...] = 0  # the array belongs to the caller

    def test_gradients_weights_and_updates(self) -> None:
        with Trainer(**self.settings("gradients")) as trainer:
            shapes = trainer.parameters()
            with self.assert_fails(Status.INVALID, "no gradients yet"):
                trainer.gradients("model.embed_tokens.weight")
            with self.assertRaisesRegex(KeyError, "parameters"):
                trainer.gradients("nothing")
            trainer.step(np.arange(32).reshape(2, 16))
            trainer.backward()
            squares = 0.0
            before = {name: trainer.weights(name) for name in shapes}
            for name, shape in shapes.items():
                gradient = trainer.gradients(name)
                self.assertEqual(gradient.shape, shape)
                squares += float((gradient.astype(float) ** 2).sum())
            step = trainer.update(lr=0.5)
            self.assertAlmostEqual(step.norm, squares**0.5, places=3)
            self.assertEqual((step.step, step.tokens, step.trained, step.lr, step.is_applied), (1, 32, 30, 0.5, True))
            self.assertTrue(all((trainer.weights(name) != values).any() for name, values in before.items()))
            for lr in (float("nan"), float("inf")):
                with self.assertRaises(ValueError):
                    trainer.update(lr)
            with self.assert_fails(Status.INVALID, "no micro-batch"):
                trainer.update(1e-3)

    def test_train_step_tells_loss_and_accuracy(self) -> None:
        ids = np.arange(32).reshape(2, 16)
        targets = (ids + 1) % 32
        targets[:, ::4] = -100
        with Trainer(**self.settings("accuracy")) as trainer:
            want = trainer.eval(ids, targets)
            seen = []
            for _ in range(60):
                loss, accuracy = trainer.train_step(ids, targets, lr=1e-2)
                seen.append(accuracy)
                if len(seen) == 1:
                    self.assertAlmostEqual(loss, want, places=5)
                self.assertAlmostEqual(accuracy * 24, round(accuracy * 24), places=4)
            self.assertLess(seen[0], 0.2)
            self.assertAlmostEqual(seen[-1], 1, places=5)
            trainer.step(ids, targets)
            self.assertAlmostEqual(trainer.update(lr=0).accuracy, 1, places=5)

    def test_checkpoints_come_back(self) -> None:
        ids = np.arange(32).reshape(2, 16)
        with Trainer(**self.settings("back")) as trainer:
            trainer.train_step(ids, lr=1e-3)
            trainer.save_checkpoint(self.folder / "elsewhere")
            trainer.step(ids)
            want = trainer.update(lr=1e-3)
            trainer.load_checkpoint(self.folder / "elsewhere/checkpoint-1")
            self.assertEqual(trainer.steps, 1)
            trainer.step(ids)
            again = trainer.update(lr=1e-3)
            self.assertEqual((again.loss, again.norm), (want.loss, want.norm))
            with self.assert_fails(Status.CHECKPOINT, "no folder"):
                trainer.load_checkpoint(self.folder / "nowhere")

    def test_an_adapter_over_an_exported_model(self) -> None:
        with Trainer(**self.settings("base")) as trainer:
            trainer.export_model(self.folder / "base/model")
        adapter = {"model": self.folder / "base/model", "from_scratch": False, "lora": True, "lora_rank": 2}
        with Trainer(**self.settings("adapter", **adapter)) as trainer:
            self.assertTrue(all("lora_" in name for name in trainer.parameters()))
            trainer.train_step([[1, 2, 3, 4]], lr=1e-2)
            trainer.export_adapter(self.folder / "adapter/peft")
            trainer.export_model(self.folder / "adapter/merged")
            want = trainer.logprobs([1, 2, 3, 4])[0, :3]
        with Model(self.folder / "base/model", adapter=self.folder / "adapter/peft", device="cpu") as model:
            np.testing.assert_allclose(model.logprobs([1, 2, 3, 4]), want, rtol=1e-4)
            first, second, third = model.score([[1, 2, 3, 4], {"ids": np.array([4])}, {"prompt": "To be", "completion": " or not"}])
            np.testing.assert_allclose(first.logprobs[1:], want, rtol=1e-4)
            self.assertEqual((list(first.ids), np.isnan(first.logprobs[0]), first.tokens), ([1, 2, 3, 4], True, 3))
            self.assertAlmostEqual(first.sum, float(first.logprobs[1:].sum()), places=5)
            self.assertEqual((second.tokens, second.sum, model.score([])), (0, 0, []))
            self.assertEqual((third.prompt_tokens, third.tokens), (len(model.encode("To be")), len(third.ids) - third.prompt_tokens))
            with self.assert_fails(Status.INVALID, "rows:2: ids[0] is no token id"):
                model.score(["a", [-1]])
        with Model(self.folder / "adapter/merged", device="cpu") as model:
            np.testing.assert_allclose(model.logprobs([1, 2, 3, 4]), want, rtol=1e-4)
        with Model(self.folder / "adapter/merged", device="cpu", dtype="fp32", quantization="int8", kv="fp8") as model:
            np.testing.assert_allclose(model.logprobs([1, 2, 3, 4]), want, atol=0.05)
            self.assertEqual(model.generate([1, 2], max_tokens=4, temperature=0).size, 4)
        cases: tuple[tuple[str, dict[str, Any]], ...] = (
            ("expected fp32, bf16 or fp16", {"dtype": "fp7"}),
            ("expected none, nf4", {"quantization": "fp7"}),
            ("expected fp8, or auto", {"kv": "fp7"}),
        )
        for says, given in cases:
            with self.assert_fails(Status.INVALID, says):
                Model(self.folder / "adapter/merged", None, "cpu", 0, **given)
        split = Model(self.folder / "adapter/merged", device="cpu", split_k=True)
        with split, self.assert_fails(Status.UNSUPPORTED, "split_k: sums are made in parts on GPUs"):
            split.generate([1, 2], max_tokens=4)

    def test_texts_of_many_prompts(self) -> None:
        folder = self.folder / "many/model"
        with Trainer(**self.settings("many")) as trainer:
            trainer.export_model(folder)
        shutil.copy(ROOT / "examples/chat_template.jinja", folder)
        with Model(folder, device="cpu", threads=1) as model:
            talk = [{"role": "user", "content": "who"}]
            prompts = ["To be", model.encode("To be"), talk, {"messages": talk}, {"ids": np.array([5, 6])}]
            made = model.generate_rows(prompts, max_tokens=6, ignore_eos=True, logprobs=2)
            self.assertEqual(
                [(row.index, row.sample, row.stop_reason, len(row.ids)) for row in made], [(i, 0, "length", 6) for i in range(5)]
            )
            for one, other in ((0, 1), (2, 3)):
                self.assertEqual((made[one].text, list(made[one].ids)), (made[other].text, list(made[other].ids)))
            self.assertEqual(made[0].text, model.decode(made[0].ids))
            alone = model.generate(model.encode("To be"), max_tokens=6)
            self.assertEqual(list(made[0].ids[: len(alone)]), list(alone))
            for row in made:
                assert row.logprobs is not None and row.top is not None
                self.assertEqual([max(best, key=best.__getitem__) for best in row.top], list(row.ids))
            text, logprobs = made[0].text, made[0].logprobs
            assert text is not None and logprobs is not None
            whole = np.concatenate([model.encode("To be"), made[0].ids])
            np.testing.assert_allclose(logprobs, model.logprobs(whole)[-6:], rtol=1e-4)
            drawn: dict[str, Any] = {"n": 3, "max_tokens": 5, "temperature": 1.0, "seed": 7, "ignore_eos": True}
            first = model.generate_rows(prompts, **drawn)
            self.assertEqual([(row.index, row.sample) for row in first], [(i, k) for i in range(5) for k in range(3)])
            again = model.generate_rows(prompts[:2], rows=2, min_p=0.0, **drawn)
            self.assertEqual([row.text for row in again], [row.text for row in first[:6]])
            self.assertGreater(len({row.text for row in first}), 5)
            banned = model.generate_rows(["To be"], max_tokens=6, ignore_eos=True, logit_bias={int(made[0].ids[0]): -math.inf})
            self.assertNotIn(made[0].ids[0], banned[0].ids)
            stopped = model.generate_rows(["To be"], max_tokens=6, ignore_eos=True, stop=[text[2:4]])
            self.assertEqual((stopped[0].stop_reason, text.startswith(stopped[0].text or "")), ("stop", True))
            self.assertIsNone(stopped[0].logprobs)
            self.assertEqual(model.generate_rows([]), [])
            threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaisesRegex(KeyboardInterrupt, "interrupted while texts"):
                model.generate_rows(["To be"], n=1_000_000, max_tokens=100, temperature=1.0, ignore_eos=True)
            self.assertIn("finishing this step; once more", said.getvalue())
            self.assertEqual([row.text for row in model.generate_rows(prompts[:2], **drawn)], [row.text for row in first[:6]])

    def test_prompts_with_adapters(self) -> None:
        folder = self.folder / "adapted"
        with Trainer(**self.settings("adapted_base")) as trainer:
            trainer.export_model(folder / "model")
        for name, rank in (("small", 2), ("large", 5)):
            tuned = {"model": str(folder / "model"), "from_scratch": False, "lora": True, "lora_rank": rank, "learning_rate": 0.1}
            with Trainer(**{**self.settings("adapted_" + name), **tuned}) as trainer:
                trainer.train_step(list(range(1, 9)))
                trainer.train_step(list(range(1, 9)))
                trainer.export_adapter(folder / name)
        adapters = {name: folder / name for name in ("small", "large")}
        drawn: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "ignore_eos": True, "logprobs": 0}
        with Model(folder / "model", device="cpu", threads=1) as model:
            names = ["small", None, "large"]
            prompts = [{"prompt": "To be", "adapter": name} for name in names]
            mixed = model.generate_rows(prompts, adapters=adapters, **drawn)
            alone = [model.generate_rows(["To be"] * 3, **drawn)]
            with self.assert_fails(Status.INVALID, "rows:1: there is no adapter small: none was given by name"):
                model.generate_rows(prompts)
            with self.assert_fails(Status.INVALID, "rows:3: there is no adapter large; expected one of small"):
                model.generate_rows(prompts, adapters={"small": folder / "small"})
        for name in adapters:
            with Model(folder / "model", adapter=folder / name, device="cpu", threads=1) as model:
                alone.append(model.generate_rows(["To be"] * 3, **drawn))
        for i, of in enumerate((1, 0, 2)):
            self.assertEqual(list(mixed[i].ids), list(alone[of][i].ids))
            ours, theirs = mixed[i].logprobs, alone[of][i].logprobs
            assert ours is not None and theirs is not None
            self.assertEqual(list(ours), list(theirs))

    def test_many_prompts_that_are_refused(self) -> None:
        folder = self.folder / "refusing/model"
        with Trainer(**self.settings("refusing")) as trainer:
            trainer.export_model(folder)
        with Model(folder, device="cpu", threads=1) as model:
            bad, good = model.generate_rows([[-1], "To"], max_tokens=2, skip_bad=True)
            self.assertEqual((bad.index, bad.text, list(bad.ids), bad.stop_reason, good.error), (0, None, [], None, None))
            self.assertIn("rows:1: ids[0] is no token id", bad.error or "")
            settings: dict[str, Any]
            for says, settings in (
                ("n is 0; expected 1", {"n": 0}),
                ("max_tokens is 0; expected 1", {"max_tokens": 0}),
                ("logprobs is -1; expected 0", {"logprobs": -1}),
                ("top_p is 0; expected a number above 0", {"top_p": 0}),
                ("repetition_penalty is 0; expected a number above 0", {"repetition_penalty": 0.0}),
                (r"stop\[0\] is ''", {"stop": [""]}),
            ):
                with self.assertRaisesRegex(ValueError, says):
                    model.generate_rows(["a"], **settings)
            for says, settings in (
                ("temperature -1; expected", {"temperature": -1}),
                ("min_p 2; expected 0 to 1", {"min_p": 2}),
                ("presence_penalty 3; expected -2 to 2", {"presence_penalty": 3}),
                ("rows -1; expected", {"rows": -1}),
                ("top_logprobs 21; expected 0 to 20", {"logprobs": 21}),
                ("bias_ids[0] is 100000; expected 0 to", {"logit_bias": {100000: 1.0}}),
                ("biases[0] is nan; expected a number", {"logit_bias": {1: math.nan}}),
            ):
                with self.assert_fails(Status.INVALID, says):
                    model.generate_rows(["a"], **settings)
            with self.assert_fails(Status.INVALID, "rows:2: the row has none of prompt, messages and ids"):
                model.generate_rows(["a", {"promt": "b"}])
            with self.assert_fails(Status.NOT_FOUND, "has no chat template"):
                model.generate_rows([[{"role": "user", "content": "who"}]])
            with self.assertRaisesRegex(TypeError, "expected a list of texts"):
                model.generate_rows(["a"], stop="a")
            with self.assertRaisesRegex(TypeError, "prompts is one str; expected a list"):
                model.generate_rows("To be")
            with self.assertRaisesRegex(TypeError, "rows is one dict; expected a list"):
                model.score({"text": "To be"})

    def test_from_config_needs_no_folder(self) -> None:
        import json

        config = json.loads((ROOT / "examples/shakespeare/config.json").read_text())
        settings = self.settings("config")
        del settings["model"], settings["from_scratch"]
        with Trainer.from_config(config, **settings) as trainer:
            self.assertEqual(trainer.vocab_size, config["vocab_size"])
            trainer.train_step([1, 2, 3], lr=1e-3)
            trainer.export_model(self.folder / "config/model")
        self.assertTrue((self.folder / "config/model/config.json").exists())


class Around(InFolder):
    def test_importing_loads_nothing(self) -> None:
        code = "import sys, surogate; print('numpy' in sys.modules, 'ctypes' in sys.modules, 'surogate._native' in sys.modules)"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "SUROGATE_LIBRARY": "/nowhere"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["False"] * 3)
        done = subprocess.run([sys.executable, "-c", "import surogate; surogate.Run"], env=environment, capture_output=True, text=True)
        self.assertIn("libsurogate.so can't be opened: /nowhere", done.stderr)

    def test_every_name_and_function_is_there(self) -> None:
        for name in surogate.__all__:
            self.assertIsNotNone(getattr(surogate, name))
        with self.assertRaises(AttributeError):
            surogate.nothing  # noqa: B018
        header = (ROOT / "include/surogate.h").read_text()
        declared = set(re.findall(r"^SG_API\s[^(]*?\b\*?(sg_\w+)\(", header, re.M))
        self.assertEqual(declared, set(_native.PROTOTYPES) | set(_native.OTHERS))
        codes = re.findall(r"^    SG_(\w+),", header[header.index("enum sg_status") : header.index("} sg_status")], re.M)
        self.assertEqual(codes, [status.name for status in Status])

    @unittest.skipUnless(shutil.which("cc"), "there is no C compiler")
    def test_structures_are_the_headers(self) -> None:
        pairs = {
            "sg_input": _native.Input,
            "sg_batch": _native.Batch,
            "sg_step": _native.Step,
            "sg_trainer_info": _native.TrainerInfo,
            "sg_tensor": _native.Tensor,
            "sg_sampling": _native.Sampling,
            "sg_generation": _native.Generation,
            "sg_outcome": _native.Outcome,
            "sg_dataset_info": _native.DatasetInfo,
            "sg_tokenizer_info": _native.TokenizerInfo,
        }
        lines = []
        for name, structure in pairs.items():
            lines.append(f"_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, {name!r});".replace("'", '"'))
            for field, *_ in structure._fields_:
                offset = getattr(structure, field).offset
                lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");')
        source = '#include "surogate.h"\n' + "\n".join(lines) + "\n"
        done = subprocess.run(["cc", "-fsyntax-only", "-x", "c", f"-I{ROOT}/include", "-"], input=source, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_closed_one_says_so(self) -> None:
        tokenizer = Tokenizer(SHAKESPEARE)
        tokenizer.close()
        tokenizer.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            tokenizer.encode("a")
        with self.assert_fails(Status.NOT_FOUND, "nowhere"):
            Tokenizer("./nowhere")
        gc.collect()  # a Tokenizer that never opened is freed without an error

    def test_settings_of_all_kinds(self) -> None:
        with self.assert_fails(Status.INVALID, "max_steps"):
            Run("max_stepz=3")
        with self.assertRaises(ValueError):
            Run("a\0b")
        run = Run(model=SHAKESPEARE, from_scratch=True, lora_target_modules=["q_proj"], warmup_ratio=0.1, run_name=None)
        self.assertGreater(run.plan()["total_bytes"], 0)

    def test_text_and_chats(self) -> None:
        tokenizer = Tokenizer(SHAKESPEARE)
        ids = tokenizer.encode("who\n")
        self.assertEqual((ids.dtype, tokenizer.decode(ids)), (np.int32, "who\n"))
        self.assertEqual(tokenizer.decode([]), "")
        self.assertEqual(tokenizer.encode("").size, 0)
        with self.assert_fails(Status.INVALID, ""):
            tokenizer.decode([1 << 20])
        source = (
            "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% else %}{{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
        )
        chat = ChatTemplate(source=source)
        messages = [{"role": "user", "content": "who"}, {"role": "assistant", "content": "I am"}]
        self.assertEqual(chat.render(messages, add_generation_prompt=True), "who\nI am>")
        self.assertEqual(chat.render([{"role": "user", "content": "a\0b"}]), "a\0b\n")
        ids, trained = chat.encode(messages, tokenizer)
        self.assertEqual(tokenizer.decode(ids[trained]), "I am")
        with self.assert_fails(Status.INVALID, ""):
            ChatTemplate(source="{% if %}")
        with self.assertRaises(ValueError):
            chat.render([{"role": "user", "content": float("nan")}])

    def test_the_locale_changes_no_number(self) -> None:
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(self.folder / "de_DE.UTF-8")]
        os.environ["LOCPATH"] = str(self.folder)
        self.addCleanup(locale.setlocale, locale.LC_ALL, locale.setlocale(locale.LC_ALL))
        self.addCleanup(os.environ.pop, "LOCPATH")
        try:
            subprocess.run(command, capture_output=True, check=False)
            locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
        except (OSError, locale.Error):
            self.skipTest("no locale with a decimal comma can be made here")
        self.assertEqual(locale.localeconv()["decimal_point"], ",")
        chat = ChatTemplate(source="{{ 1.5*2 }} {{ messages[0].content }}")
        self.assertEqual(chat.render([{"role": "user", "content": 0.125}]), "3.0 0.125")
        self.assertEqual(locale.localeconv()["decimal_point"], ",")

    def test_threads_take_turns(self) -> None:
        tokenizer = Tokenizer(SHAKESPEARE)
        text = "To be, or not to be\n" * 50
        want = tokenizer.encode(text).tolist()
        wrong: list[object] = []

        def work() -> None:
            for _ in range(20):
                if tokenizer.encode(text).tolist() != want:
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_wrong_arguments_are_named(self) -> None:
        trainer = Trainer(**self.settings("wrong", generate_samples=1, sample_max_tokens=4))
        dataset, tokenizer = Dataset(**self.settings("wrong")), Tokenizer(SHAKESPEARE)
        chat = ChatTemplate(source="{{ messages[0].content }}")
        hidden: Any = trainer  # calls that type checkers refuse
        wrong: list[tuple[type[Exception], str, Any]] = [
            (ValueError, "input_ids is no array", lambda: trainer.step([[1, 2], [3]])),
            (TypeError, "lr is '3'", lambda: hidden.train_step([1, 2], lr="3")),
            (TypeError, "max_tokens is 1.5", lambda: hidden.generate([1], max_tokens=1.5)),
            (ValueError, "max_tokens is 1180591620717411303424", lambda: trainer.generate([1], max_tokens=2**70)),
            (TypeError, "temperature is 'a'", lambda: hidden.generate([1], temperature="a")),
            (TypeError, "top_k is None", lambda: hidden.generate([1], top_k=None)),
            (ValueError, "seed is -1; expected 0 to", lambda: trainer.generate([1], seed=-1)),
            (SurogateError, "id -1 at index 0", lambda: trainer.generate([-1])),
            (SurogateError, "the prompt has 50000000 tokens", lambda: trainer.generate(np.zeros(50_000_000, np.int32))),
            (TypeError, "path is None", lambda: hidden.load_checkpoint(None)),
            (ValueError, "folder is ''", lambda: trainer.export_model("")),
            (TypeError, "folder is b'a'", lambda: hidden.export_model(b"a")),
            (TypeError, "dataset is None", lambda: hidden.fit(None)),
            (TypeError, "callbacks is", lambda: hidden.fit(dataset, callbacks=print)),
            (TypeError, "a callback is 3", lambda: hidden.fit(dataset, callbacks=[3])),
            (TypeError, "step is '1'", lambda: dataset.seek("1")),  # type: ignore[arg-type]
            (ValueError, "step is 1180591620717411303424", lambda: dataset.seek(2**70)),
            (ValueError, "threads is 1099511627776", lambda: Model(SHAKESPEARE, threads=2**40)),
            (TypeError, "model is None", lambda: Tokenizer(None)),  # type: ignore[arg-type]
            (TypeError, "text is bytes; expected str", lambda: tokenizer.encode(b"a")),  # type: ignore[arg-type]
            (TypeError, "messages is 'a'", lambda: chat.render("a")),  # type: ignore[arg-type]
            (TypeError, r"messages\[1\] is 3", lambda: chat.render([{"role": "user"}, 3])),  # type: ignore[list-item]
            (TypeError, "tokenizer is None", lambda: chat.encode([{"role": "user"}], None)),  # type: ignore[arg-type]
            (TypeError, "lora_target_modules has {'q_proj'}", lambda: Run(lora_target_modules={"q_proj"})),
            (TypeError, "an argument is 3", lambda: Run(3)),  # type: ignore[arg-type]
            (TypeError, r"settings are a dict; expected them as keywords: \*\*settings", lambda: Run({"seed": 1})),  # type: ignore[arg-type]
        ]
        for kind, says, call in wrong:
            with self.assertRaisesRegex(kind, says):
                call()
        trainer.train_step([1, 2], lr=1e-3)  # the refused call left no micro-batches behind

    def test_nothing_open_is_copied(self) -> None:
        tokenizer = Tokenizer(SHAKESPEARE)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "a Tokenizer can't be copied or pickled"):
                copied(tokenizer)
        error = pickle.loads(pickle.dumps(SurogateError(Status.IO, "what")))
        self.assertEqual((error.status, error.message, str(error)), (Status.IO, "what", "what"))

    def test_a_fork_opens_its_own(self) -> None:
        settings = self.settings("fork", device="cpu", gpus=2)
        tokenizer, dataset = Tokenizer(SHAKESPEARE), Dataset(**settings)
        with Trainer(**settings) as trainer:
            trainer.train_step([1, 2, 3, 4], lr=1e-3)
            child = os.fork()
            if child == 0:
                status = 1
                with contextlib.suppress(BaseException):
                    faulthandler.dump_traceback_later(100, exit=True)
                    for call in (lambda: trainer.eval([5, 6]), lambda: next(iter(dataset))):
                        with self.assertRaisesRegex(RuntimeError, "was opened by process .* open another"):
                            call()
                    trainer.close()
                    dataset.close()
                    self.assertEqual(tokenizer.encode("To be").size, 5)
                    with Trainer(**settings) as own:
                        own.train_step([1, 2, 3], lr=1e-3)
                    status = 0
                os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            trainer.train_step([1, 2, 3, 4], lr=1e-3)


class OwnInputs(InFolder):
    """tests/dsl/inputs.py: a kind and a volume of each token, and a verdict that a second term of the loss trains."""

    config = {"architectures": ["InputsForCausalLM"], "vocab_size": 20, "n_embd": 8, "num_kinds": 3}
    shape = {"sequence_len": 8, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "device": "cpu", "model_dtype": "fp32"}

    def open(self, **more: Any) -> Trainer:
        ir = self.folder / "inputs.json"
        if not ir.exists():
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
            line = [sys.executable, "-m", "surogate.dsl", "build", str(ROOT / "tests/dsl/inputs.py"), "-o", str(ir)]
            subprocess.run(line, env=environment, check=True)
        return Trainer.from_config(self.config, ir=ir, output_dir=self.folder / "own", **{**self.shape, **more})

    def test_losses_are_of_what_was_given(self) -> None:
        def losses(logits: Any, labels: Any) -> Any:
            sums = np.log(np.exp(logits).sum(-1))
            return np.where(labels < 0, 0, sums - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0])

        random = np.random.default_rng(3)
        for rows, cols, ranks in ((2, 8, 1), (1, 5, 1), (3, 8, 2)):
            with self.open(gpus=ranks, whole_logits=True) as trainer:
                weights = {name: trainer.weights(name).astype(float) for name in trainer.parameters()}
                ids, targets = random.integers(0, 20, (2, rows, cols))
                kind, volume, verdict = (
                    random.integers(0, 2, (rows, cols)),
                    random.normal(size=(rows, cols)),
                    random.integers(0, 3, (rows, cols)),
                )
                verdict[0, 2] = -100
                x = weights["words"][ids] + weights["kinds"][kind] + volume[..., None] * weights["loud"][:, 0]
                first, second = losses(x @ weights["head"].T, targets), losses(x @ weights["judge"].T, verdict)
                inputs = {"kind": kind, "volume": volume, "verdict": verdict}
                np.testing.assert_allclose(-trainer.logprobs(ids, targets, inputs=inputs), first, atol=2e-6)
                self.assertAlmostEqual(trainer.eval(ids, targets, inputs=inputs), float(first.mean()), places=5)
                seen = {"kind": kind, "volume": volume}  # only the loss reads the verdict
                np.testing.assert_allclose(trainer.logits(ids, inputs=seen), x @ weights["head"].T, atol=2e-6)
                trainer.step(ids, targets, inputs=inputs)
                trainer.backward()
                gradient = trainer.gradients("kinds")
                self.assertEqual((float(np.abs(gradient[2]).max()), bool(np.abs(gradient[:2]).min() > 0)), (0, True))
                self.assertAlmostEqual(trainer.update(lr=1e-2).loss, float((first.sum() + second.sum()) / ids.size), places=5)

    def test_wrong_ones_are_named(self) -> None:
        right = {"kind": [1, 2], "volume": [0.5, 1], "verdict": [-100, 1]}
        with self.open(gpus=2) as trainer:
            for inputs, says in (
                (None, "reads the input kind, which the batch lacks"),
                ({**right, "kind": [1.0, 2.0]}, "input kind: expected whole numbers"),
                ({**right, "volume": [1, 2]}, "input volume: expected floats"),
                ({**right, "other": [1, 2]}, "no input other of its own"),
                ({**right, "kind": [1, 3]}, "input kind: 3 of row 0, column 1; expected 0 to 2"),
                ({**right, "verdict": [-1, 1]}, "input verdict: -1 of row 0, column 0; expected 0 to 2, or -100"),
                ({f"a{k}": [1, 2] for k in range(9)}, "9 inputs; expected at most 8"),
            ):
                with self.assert_fails(Status.INVALID, says):
                    trainer.train_step([1, 2], lr=1e-3, inputs=inputs)
            with self.assertRaisesRegex(ValueError, r"kind has shape \(1, 1\)"):
                trainer.eval([1, 2], inputs={**right, "kind": [1]})
            with self.assertRaisesRegex(TypeError, "inputs is 3"):
                trainer.eval([1, 2], inputs=3)  # type: ignore[arg-type]
            trainer.train_step([1, 2], lr=1e-3, inputs=right)
            trainer.export_model(self.folder / "own/model")
        with self.assert_fails(Status.UNSUPPORTED, "the logits need the input kind"):
            self.open(generate_samples=1)
        model = Model(self.folder / "own/model", device="cpu")
        with self.assert_fails(Status.UNSUPPORTED, "InputsForCausalLM needs the input kind"):
            model.logprobs([1, 2, 3])
        with Trainer(**self.settings("none")) as trainer, self.assert_fails(Status.INVALID, "no input kind of its own"):
            trainer.eval([1, 2], inputs={"kind": [1, 2]})


class Interrupted(InFolder):
    def test_ctrl_c_ends_a_run_with_a_checkpoint(self) -> None:
        settings = self.settings("stopped", max_steps=1_000_000, logging_steps=1)
        metrics = self.folder / "stopped/metrics.jsonl"

        def interrupt() -> None:
            while not metrics.exists() or '"step":2' not in metrics.read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with quiet(), self.assertRaisesRegex(KeyboardInterrupt, "interrupted after step .* goes on from there"):
            Run(**settings).train()
        thread.join()
        (checkpoint,) = (self.folder / "stopped").glob("checkpoint-*")
        with Trainer(**settings) as trainer:
            trainer.load_checkpoint(checkpoint)
            self.assertEqual(checkpoint.name, f"checkpoint-{trainer.steps}")

    def test_what_was_asked_for_before_stops_nothing(self) -> None:
        _native.lib.sg_interrupt()
        with quiet():
            self.assertEqual(Run(**self.settings("asked")).train().steps, 4)

    def test_an_update_gives_its_own_result(self) -> None:
        with Trainer(**self.settings("own")) as trainer:
            with unittest.mock.patch.object(trainer, "result", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                trainer.train_step([1, 2, 3, 4], lr=1e-3)
            with unittest.mock.patch.object(trainer, "update", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                trainer.train_step([1, 2, 3, 4], lr=1e-3)
            trainer.step([5, 6])
            step = trainer.update(lr=1e-3)
            self.assertEqual((step.step, step.tokens), (2, 2))

    def test_one_that_another_thread_closes(self) -> None:
        trainer, refused = Trainer(**self.settings("closed")), [False]
        started = threading.Event()

        def work() -> None:
            with self.assertRaisesRegex(ValueError, "the Trainer is closed"):
                while True:
                    trainer.train_step([1, 2, 3, 4], lr=1e-3)
                    started.set()
            refused[0] = True

        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        trainer.close()
        thread.join()
        self.assertTrue(refused[0])


def main() -> int:
    result = unittest.main(exit=False, verbosity=1).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
