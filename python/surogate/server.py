"""A server of a model, as a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType

from surogate import _command

# Seconds that a server which wasn't closed has for the answers that it has begun.
_LAST_SECONDS = 5.0


def _stop(process: subprocess.Popen[str], timeout: float | None) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Server:
    """A running ``surogate serve``. Close it, or use it in a ``with``: it first completes the answers that it has begun.

    A server that isn't closed ends with the object or the interpreter, at most five seconds later.

    ``url`` is its address (``http://127.0.0.1:8000``), ``port`` its port. OpenAI's client takes ``url + "/v1"`` as its ``base_url``.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process: subprocess.Popen[str] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        weakref.finalize(self, _stop, self._process, _LAST_SECONDS)
        assert self._process.stdout is not None
        self.url: str = self._process.stdout.readline().strip()
        if not self.url:
            status = self._process.wait()
            raise RuntimeError(f"surogate serve ended with exit status {status}; it said why on stderr")
        self.port: int = int(self.url.rsplit(":", 1)[1])

    def close(self, timeout: float | None = None) -> None:
        """Ends the server after the answers that it has begun; after ``timeout`` seconds immediately."""
        _stop(self._process, timeout)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(timeout=None if kind is None else 0)

    def __repr__(self) -> str:
        return f"<surogate.Server {self.url}>"


def serve(
    model: str | os.PathLike[str],
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    **options: str | int | float | bool | Sequence[str] | None,
) -> Server:
    """Serves a model folder; returns when it accepts requests.

    ``adapters`` are LoRA adapters, by the names under which requests choose them. ``port`` 0 is any free port. Other options are those of
    ``surogate serve``: ``device="cpu"``, ``api_key_file="keys"``, ``log_requests=True``; a list gives an option several times:
    ``allow_host=["chat.example", "chat.local"]``.

    Raises:
        RuntimeError: the server ended before it accepted requests; stderr has its reason.
    """
    command = [str(_command.program()), "serve", os.fspath(model), "--host", host, "--port", str(port)]
    for name, folder in (adapters or {}).items():
        command += ["--adapter", f"{name}={os.fspath(folder)}"]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not None and value is not False:
            for item in value if isinstance(value, (list, tuple)) else [value]:
                command += [flag, str(item)]
    return Server(command)
