"""Decoding without a model: choosing ids from hidden states with a matrix; and a small model that trains and decodes with it."""

from __future__ import annotations

from collections import deque
from ctypes import POINTER, byref, c_float, c_int32
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surogate import _arrays, _native, _tensors
from surogate._native import Closes, Handle, check, lib
from surogate.trainer import LossAndAccuracy, Trainer

STRATEGIES = ("greedy", "temperature", "top_k", "top_p")
_SPELLINGS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i8": "int8"}


def _place(device: str) -> tuple[bytes, int]:
    """The device's name, and the GPU's index if it is a GPU."""
    name, colon, index = str(device).partition(":")
    several = "," in index and name in ("cpu", "cuda") and all(part.isdecimal() for part in index.split(","))
    if name not in ("auto", "cpu", "cuda") or (colon and not several and not (name == "cuda" and index.isdecimal())):
        raise ValueError(f"device is {device!r}; expected auto, cpu, cuda, cuda:INDEX or cuda:INDEX,INDEX")
    if several:
        return str(device).encode(), 0
    return name.encode(), int(index or 0)


def _numbers(value: Any, name: str, count: int) -> NDArray[np.float32]:
    array = np.ascontiguousarray(np.asarray(value, np.float32))
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}; expected ({count},)")
    return array


class GPUDecoder(Closes):
    """The last step of decoding: logits = hidden weight^T + bias; chooses one id per row.

    weight: (vocab, dim), row-major or column-major, float32, float16, bfloat16, or int8 with `scale` (vocab). It is a NumPy array or a
    DLPack tensor on the host or on the decoder's GPU, and is copied. dtype: the copy's dtype (default: weight's); int8 gives each row a
    scale. bias: (vocab) floats, or None. strategy: greedy, temperature, top_k (uses temperature and top_k) or top_p (uses temperature and
    top_p). device: cpu, cuda, cuda:INDEX or auto; or several GPUs that divide the matrix, cuda:0,1, the first of which reads arrays on a
    GPU. max_batch: the largest number of rows in a batch.

    A row's id depends on its hidden state, the seed, the number of the batch and the row's index in it, never on other rows.
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        bias: Any = None,
        strategy: str = "greedy",
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 0.9,
        weight: Any = None,
        device: str = "auto",
        seed: int = 0,
        *,
        dtype: str | None = None,
        scale: Any = None,
        max_batch: int = 64,
        threads: int = 0,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is {strategy!r}; expected one of {', '.join(STRATEGIES)}")
        if weight is None:
            raise TypeError("weight is None; expected an array of (vocab, dim)")
        if isinstance(bias, bool) and bias:
            raise TypeError("bias is True; expected an array of (vocab) floats, or None")
        self.vocab: int = _native.whole(vocab, "vocab", 1, 2**31 - 1)
        self.dim: int = _native.whole(dim, "dim", 1, 2**31 - 1)
        self.max_batch: int = _native.whole(max_batch, "max_batch")
        place, gpu = _place(device)
        matrix = _tensors.tensor(weight, "weight")
        if matrix.shape != (self.vocab, self.dim):
            raise ValueError(f"weight has shape {matrix.shape}; expected ({self.vocab}, {self.dim})")
        by_columns = not matrix.is_by_rows()
        if by_columns and not matrix.is_by_columns():
            raise ValueError(f"weight has strides {matrix.strides}; expected rows or columns without gaps")
        kept = matrix.dtype if dtype is None else _SPELLINGS.get(dtype, dtype)
        if kept not in _tensors.DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(_tensors.DTYPES)}")
        scales = None if scale is None else _numbers(scale, "scale", self.vocab)
        biases = None if bias is None or bias is False else _numbers(bias, "bias", self.vocab)
        options = _native.HeadOptions(
            self.vocab,
            self.dim,
            self.max_batch,
            _tensors.DTYPES[kept],
            place,
            gpu,
            _native.whole(threads, "threads", 0, 2**31 - 1),
            STRATEGIES.index(strategy),
            _native.real(temperature, "temperature"),
            _native.whole(top_k, "top_k"),
            _native.real(top_p, "top_p"),
            _native.whole(seed, "seed", 0, 2**64 - 1),
            None if biases is None else _arrays.floats(biases),
        )
        given = _native.Matrix(
            matrix.address,
            _tensors.DTYPES[matrix.dtype],
            by_columns,
            matrix.gpu is not None,
            POINTER(c_float)() if scales is None else _arrays.floats(scales),
        )
        if matrix.gpu is not None and (place == b"cpu" or matrix.gpu != gpu):
            raise ValueError(f"weight lies on cuda:{matrix.gpu}, the decoder is to be on {device}")
        self._handle = Handle("GPUDecoder", lib.sg_head_decoder_open, lib.sg_head_decoder_close, byref(options), byref(given))
        info = self._info()
        self.dtype: str = kept
        self.device: str = info.device.decode() + (f":{gpu}" if info.stream else "")
        self.device_bytes: int = info.device_bytes  #: bytes allocated on the device, including the matrix
        self._gpu = gpu if info.stream else None
        self._stream: int | None = info.stream
        self._in_flight: deque[_tensors.Tensor] = deque()

    def _info(self) -> _native.HeadInfo:
        info = _native.HeadInfo()
        with self._handle.use() as decoder:
            check(lib.sg_head_decoder_get_info(decoder, byref(info)))
        return info

    def _hidden(self, value: Any) -> _tensors.Tensor:
        hidden = _tensors.tensor(value, "hidden", self._stream)
        shape = hidden.shape
        if len(shape) not in (1, 2) or shape[-1] != self.dim:
            raise ValueError(f"hidden has shape {shape}; expected (batch, {self.dim}) or ({self.dim},)")
        if hidden.dtype == "int8":
            raise TypeError("hidden has dtype int8; expected float32, float16 or bfloat16")
        if hidden.gpu is not None and hidden.gpu != self._gpu:
            raise ValueError(f"hidden lies on cuda:{hidden.gpu}, the decoder on {self.device}")
        if not hidden.is_by_rows():
            raise ValueError(f"hidden has strides {hidden.strides}; expected rows without gaps, such as .contiguous() makes")
        return hidden

    def decode(self, hidden: Any) -> NDArray[np.int32]:
        """(batch) ids chosen for (batch, dim) hidden states: float32, float16 or bfloat16, NumPy or DLPack, read without a copy."""
        with self._handle.use():
            if self._in_flight:
                raise RuntimeError("a batch of decode_later is in flight: ask for its result() first")
            self.decode_later(hidden)
            return self.result()

    def decode_later(self, hidden: Any) -> None:
        """As decode, without waiting. At most two batches may wait for result(); a GPU's tensor must stay unchanged until then."""
        with self._handle.use() as decoder:
            rows = self._hidden(hidden)
            count = rows.shape[0] if len(rows.shape) == 2 else 1
            dtype = _tensors.DTYPES[rows.dtype]
            check(lib.sg_head_decoder_decode_later(decoder, rows.address, dtype, rows.gpu is not None, count))
            self._in_flight.append(rows)

    def result(self) -> NDArray[np.int32]:
        """(batch) ids of the oldest batch whose result wasn't fetched; SurogateError if the logits of a row aren't finite."""
        with self._handle.use() as decoder:
            ids = np.empty(self._info().waiting, np.int32)
            if not ids.size:
                raise RuntimeError("no batch is in flight: hand one in with decode_later()")
            self._in_flight.popleft()
            check(lib.sg_head_decoder_result(decoder, ids.ctypes.data_as(POINTER(c_int32)), ids.size))
        return ids


class NeuroGenModel:
    """A small decoder-only transformer that is trained step by step and then decodes.

    gpu_device: -1: the CPU; 0: the first visible GPU. embedding_dim: a multiple of 16. train_step takes at most max_batch rows of
    max_length tokens.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        gpu_device: int = -1,
        *,
        layers: int = 2,
        max_batch: int = 32,
        max_length: int = 64,
        learning_rate: float = 3e-3,
        seed: int = 0,
    ) -> None:
        dim = _native.whole(embedding_dim, "embedding_dim", 16, 2**20)
        if dim % 16:
            raise ValueError(f"embedding_dim is {dim}; expected a multiple of 16")
        if _native.whole(gpu_device, "gpu_device") not in (-1, 0):
            raise ValueError(f"gpu_device is {gpu_device}; expected -1 (the CPU) or 0; CUDA_VISIBLE_DEVICES says which GPU that is")
        head = next(size for size in (64, 32, 16) if dim % size == 0)
        config = {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": _native.whole(vocab_size, "vocab_size", 2, 2**31 - 1),
            "hidden_size": dim,
            "intermediate_size": 3 * dim,
            "num_hidden_layers": _native.whole(layers, "layers", 1, 2**10),
            "num_attention_heads": dim // head,
            "num_key_value_heads": dim // head,
            "head_dim": head,
            "max_position_embeddings": _native.whole(max_length, "max_length", 2, 2**20),
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "initializer_range": 0.02,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "tie_word_embeddings": True,
        }
        self.learning_rate = _native.real(learning_rate, "learning_rate")
        self.max_length = max_length
        self._trainer = Trainer.from_config(
            config,
            sequence_len=max_length,
            per_device_train_batch_size=max_batch,
            gradient_accumulation_steps=1,
            sample_packing=False,
            model_dtype="fp32",
            device="cpu" if gpu_device < 0 else "cuda",
            generate_samples=1,
            sample_max_tokens=max_length,
            seed=_native.whole(seed, "seed", 0),
        )

    def train_step(self, input_ids: Any, target_ids: Any) -> LossAndAccuracy:
        """One step of the optimizer; returns the batch's loss (nats) and accuracy before the update.

        input_ids, target_ids: (batch, length); a target is the id after each token, -100 where none is trained.
        """
        return self._trainer.train_step(input_ids, target_ids, lr=self.learning_rate)

    def generate(
        self, prompt_ids: Any, max_length: int, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0
    ) -> NDArray[np.int32]:
        """The prompt with its continuation, max_length ids in total. temperature 0: always the likeliest token."""
        prompt = _arrays.ids(prompt_ids, "prompt_ids")
        most = _native.whole(max_length, "max_length", 1, self.max_length)
        if prompt.size >= most:
            raise ValueError(f"prompt_ids has {prompt.size} ids; expected fewer than max_length, {most}")
        return np.concatenate([prompt, self._trainer.generate(prompt, most - prompt.size, temperature, top_k, top_p, seed)])

    @property
    def trainer(self) -> Trainer:
        """The Trainer that it uses: checkpoints, export, weights."""
        return self._trainer

    def close(self) -> None:
        """Frees memory and device."""
        self._trainer.close()

    def __enter__(self) -> NeuroGenModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
