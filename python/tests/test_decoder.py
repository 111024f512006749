"""Choosing ids from hidden states with a matrix, and the small model: accepted inputs, refused inputs, messages.

Run from the root of the source tree; the last line counts the tests. The library is SUROGATE_LIBRARY, or the one in build/.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import numpy as np  # noqa: E402
from surogate import GPUDecoder, NeuroGenModel, Status, SurogateError  # noqa: E402

VOCAB, DIM = 301, 48
random = np.random.default_rng(0)
WEIGHT = random.standard_normal((VOCAB, DIM), np.float32)
HIDDEN = random.standard_normal((9, DIM), np.float32)
BIAS = random.standard_normal(VOCAB, np.float32)


def torch_or_skip() -> Any:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise unittest.SkipTest("no PyTorch here") from None
    return torch


def opened(**settings: Any) -> GPUDecoder:
    return GPUDecoder(**{"vocab": VOCAB, "dim": DIM, "weight": WEIGHT, "device": "cpu", **settings})


class Decoding(unittest.TestCase):
    def test_greedy_ids_are_the_likeliest(self) -> None:
        with opened(bias=BIAS) as decoder:
            self.assertEqual(decoder.decode(HIDDEN).tolist(), (HIDDEN @ WEIGHT.T + BIAS).argmax(1).tolist())
            self.assertEqual(decoder.decode(HIDDEN[3]).tolist(), [int((HIDDEN[3] @ WEIGHT.T + BIAS).argmax())])
            self.assertEqual(decoder.decode(HIDDEN[:2].tolist()).shape, (2,))
            self.assertEqual((decoder.device, decoder.dtype), ("cpu", "float32"))
            self.assertGreater(decoder.device_bytes, WEIGHT.nbytes)

    def test_matrices_come_by_rows_or_columns_and_in_each_dtype(self) -> None:
        want = (HIDDEN @ WEIGHT.T).argmax(1).tolist()
        self.assertEqual(opened(weight=np.asfortranarray(WEIGHT)).decode(HIDDEN).tolist(), want)
        half = WEIGHT.astype(np.float16)
        rounded = HIDDEN.astype(np.float16)
        exact = (rounded.astype(np.float32) @ half.astype(np.float32).T).argmax(1).tolist()
        self.assertEqual(opened(weight=half).decode(rounded).tolist(), exact)
        self.assertEqual(opened(dtype="fp16").decode(HIDDEN).tolist(), exact)
        scale = np.abs(WEIGHT).max(1) / 127
        codes = np.rint(WEIGHT / scale[:, None]).astype(np.int8)
        given = opened(weight=codes, scale=scale).decode(HIDDEN).tolist()
        self.assertEqual(given, (HIDDEN @ (codes * scale[:, None]).T).argmax(1).tolist())
        self.assertEqual(opened(dtype="int8").decode(HIDDEN).tolist(), given)

    def test_devices_divide_the_matrix(self) -> None:
        with opened(strategy="top_p") as one, opened(strategy="top_p", device="cpu:0,1") as two:
            for _ in range(3):
                self.assertEqual(one.decode(HIDDEN).tolist(), two.decode(HIDDEN).tolist())
        for device in ("cpu:0", "cuda:0,", "cpu:0,x", "auto:0,1"):
            with self.assertRaisesRegex(ValueError, "expected auto, cpu, cuda"):
                opened(device=device)
        with self.assertRaisesRegex(SurogateError, "names cpu 1 twice"):
            opened(device="cpu:1,1")

    def test_tensors_are_read_where_they_lie(self) -> None:
        torch = torch_or_skip()
        weight, hidden = torch.from_numpy(WEIGHT).bfloat16(), torch.from_numpy(HIDDEN).bfloat16()
        want = (hidden.float() @ weight.float().T).argmax(1).tolist()
        self.assertEqual(opened(weight=weight).decode(hidden).tolist(), want)
        self.assertEqual(opened(weight=weight.T.contiguous().T).decode(hidden).tolist(), want)
        with self.assertRaisesRegex(ValueError, "expected rows without gaps"):
            opened(weight=weight).decode(hidden[:, ::2].repeat(1, 2).T.contiguous().T)

    def test_draws_follow_the_seed(self) -> None:
        for strategy in ("temperature", "top_k", "top_p"):
            one, same, other = (opened(strategy=strategy, temperature=2.0, top_k=20, seed=seed) for seed in (1, 1, 2))
            drawn = [one.decode(HIDDEN).tolist() for _ in range(4)]
            self.assertEqual(drawn, [same.decode(HIDDEN).tolist() for _ in range(4)])
            self.assertNotEqual(drawn, [other.decode(HIDDEN).tolist() for _ in range(4)])
            self.assertGreater(len({tuple(ids) for ids in drawn}), 1)
        likeliest = np.argsort(HIDDEN @ WEIGHT.T)[:, -3:]
        few = opened(strategy="top_k", top_k=3, temperature=5.0)
        for _ in range(20):
            self.assertTrue(all(token in kept for token, kept in zip(few.decode(HIDDEN), likeliest, strict=True)))

    def test_two_batches_are_in_flight(self) -> None:
        with opened(strategy="temperature") as decoder, opened(strategy="temperature") as other:
            want = [other.decode(HIDDEN[i % 7 :]).tolist() for i in range(12)]
            got = []
            for i in range(12):
                decoder.decode_later(HIDDEN[i % 7 :])
                if i:
                    got.append(decoder.result().tolist())
            with self.assertRaisesRegex(RuntimeError, "in flight"):
                decoder.decode(HIDDEN)
            self.assertEqual([*got, decoder.result().tolist()], want)
            with self.assertRaisesRegex(RuntimeError, "no batch is in flight"):
                decoder.result()

    def test_what_cannot_be_is_said(self) -> None:
        def refuses(error: type[Exception], message: str, **settings: Any) -> None:
            with self.assertRaisesRegex(error, message):
                opened(**settings)

        refuses(TypeError, "weight is None", weight=None)
        refuses(TypeError, "weight has dtype float64", weight=WEIGHT.astype(np.float64))
        refuses(TypeError, "weight has dtype >f4", weight=WEIGHT.astype(">f4"))
        refuses(ValueError, r"weight has shape \(301, 48\); expected \(301, 49\)", dim=49)
        refuses(ValueError, "expected rows or columns without gaps", weight=np.ones((VOCAB, 2 * DIM), np.float32)[:, ::2])
        refuses(ValueError, "strategy is 'beam'", strategy="beam")
        refuses(ValueError, "device is 'tpu'", device="tpu")
        refuses(ValueError, "dtype is 'fp8'", dtype="fp8")
        refuses(ValueError, r"bias has shape \(48,\)", bias=np.ones(DIM, np.float32))
        refuses(TypeError, "bias is True", bias=True)
        refuses(SurogateError, "temperature 0; expected a number above 0", strategy="top_p", temperature=0)
        refuses(SurogateError, "a matrix of i8 without scales", weight=WEIGHT.astype(np.int8))
        with opened(max_batch=4) as decoder:
            with self.assertRaisesRegex(ValueError, r"hidden has shape \(9, 47\)"):
                decoder.decode(HIDDEN[:, :47])
            with self.assertRaisesRegex(TypeError, "hidden has dtype float64"):
                decoder.decode(HIDDEN.astype(np.float64))
            with self.assertRaisesRegex(TypeError, "hidden has dtype >f4"):
                decoder.decode(HIDDEN[:2].astype(">f4"))
            with self.assertRaisesRegex(SurogateError, "a batch of 0 rows; this decoder takes 1 to 4"):
                decoder.decode(HIDDEN[:0])
            with self.assertRaisesRegex(SurogateError, "a batch of 9 rows; this decoder takes 1 to 4"):
                decoder.decode(HIDDEN)
            bad = HIDDEN[:2].copy()
            bad[1, 5] = np.nan
            with self.assertRaisesRegex(SurogateError, "row 1 has no id") as caught:
                decoder.decode(bad)
            self.assertEqual(caught.exception.status, Status.INVALID)
            self.assertEqual(decoder.decode(HIDDEN[:2]).shape, (2,))
        with self.assertRaisesRegex(ValueError, "is closed"):
            decoder.decode(HIDDEN)


class Learning(unittest.TestCase):
    def test_a_model_learns_what_comes_next(self) -> None:
        ids = np.tile(np.arange(8, dtype=np.int32), (4, 2))
        with NeuroGenModel(8, 32, layers=1, max_batch=4, max_length=16) as model:
            first = model.train_step(ids[:, :-1], ids[:, 1:])
            for _ in range(60):
                loss, accuracy = model.train_step(ids[:, :-1], ids[:, 1:])
            self.assertLess(first.accuracy, 0.5)
            self.assertGreater(accuracy, 0.95)
            self.assertLess(loss, first.loss)
            self.assertEqual(model.generate([0, 1, 2], 8).tolist(), list(range(8)))
            with self.assertRaisesRegex(ValueError, "expected fewer than max_length"):
                model.generate([0, 1, 2], 3)

    def test_what_cannot_be_is_said(self) -> None:
        with self.assertRaisesRegex(ValueError, "expected a multiple of 16"):
            NeuroGenModel(8, 40)
        with self.assertRaisesRegex(ValueError, "gpu_device is 3"):
            NeuroGenModel(8, 32, 3)


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=0).result
    bad = len(outcome.failures) + len(outcome.errors)
    print(f"{outcome.testsRun - bad - len(outcome.skipped)} passed, {bad} failed, {len(outcome.skipped)} skipped")
    sys.exit(bad > 0)
