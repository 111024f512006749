"""Sends a run's metrics.jsonl to Weights & Biases or MLflow, through their packages: python -m surogate.log wandb RUN_DIR.

Only files are read, so it works during a run (--follow) and after it, on this machine or another. RUN_DIR/sent.json records what was sent:
a second call sends newer lines to the same run of the service. Where the packages keep the numbers (offline, on a server, in a file) is set
by their own variables: WANDB_MODE, MLFLOW_TRACKING_URI and others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

Numbers = dict[str, float]

# Keys of metrics.jsonl by tag; TensorBoard's event files use the same tags.
TAGS = {
    "step": {
        "loss": "train/loss",
        "lr": "train/learning_rate",
        "norm": "train/grad_norm",
        "epoch": "train/epoch",
        "tokens_per_second": "train/tokens_per_second",
        "total_tokens": "train/total_tokens",
    },
    "eval": {"loss": "eval/loss"},
}


class Place(Protocol):
    """Receives numbers: a run of Weights & Biases or MLflow. `id` identifies that run in later calls."""

    id: str

    def send(self, step: int, seconds: float, numbers: Numbers) -> None: ...

    def flush(self) -> None: ...

    def close(self, finished: bool) -> None: ...


class WandbPlace:
    """A run of Weights & Biases. Its steps are those of metrics.jsonl."""

    def __init__(self, folder: Path, project: str, name: str, settings: dict[str, str], known: str | None) -> None:
        wandb: Any = import_module("wandb")
        self.id = known or secrets.token_hex(4)
        self._run = wandb.init(project=project, name=name, id=self.id, dir=str(folder), config=settings, resume="allow")

    def send(self, step: int, seconds: float, numbers: Numbers) -> None:
        self._run.log({**numbers, "time": seconds}, step=step)

    def flush(self) -> None:
        pass  # wandb's own process sends what it has

    def close(self, finished: bool) -> None:
        self._run.finish()


class MlflowPlace:
    """A run of MLflow in an experiment named like the project. Numbers are sent in groups of some hundred."""

    MOST = 500

    def __init__(self, folder: Path, project: str, name: str, settings: dict[str, str], known: str | None) -> None:
        mlflow: Any = import_module("mlflow")
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient()
        self._waiting: list[Any] = []
        self.id = known or self._create(project, name, settings)
        if known:
            self._client.update_run(self.id, status="RUNNING")

    def _create(self, project: str, name: str, settings: dict[str, str]) -> str:
        experiment = self._client.get_experiment_by_name(project)
        where = experiment.experiment_id if experiment else self._client.create_experiment(project)
        run_id: str = self._client.create_run(where, run_name=name).info.run_id
        params = [self._entities.Param(key, value[:500]) for key, value in settings.items()]
        for begin in range(0, len(params), 100):
            self._client.log_batch(run_id, params=params[begin : begin + 100])
        return run_id

    def send(self, step: int, seconds: float, numbers: Numbers) -> None:
        self._waiting += [self._entities.Metric(key, value, int(1000 * seconds), step) for key, value in numbers.items()]
        if len(self._waiting) >= self.MOST:
            self.flush()

    def flush(self) -> None:
        for begin in range(0, len(self._waiting), self.MOST):
            self._client.log_batch(self.id, metrics=self._waiting[begin : begin + self.MOST])
        self._waiting = []

    def close(self, finished: bool) -> None:
        self.flush()
        if finished:
            self._client.set_terminated(self.id, "FINISHED")


PLACES: dict[str, type[WandbPlace] | type[MlflowPlace]] = {"wandb": WandbPlace, "mlflow": MlflowPlace}


def numbers_of(line: dict[str, Any]) -> Numbers:
    """The finite numbers of a line by tag; empty for lines of other kinds."""
    found = {tag: line.get(key) for key, tag in TAGS.get(line.get("log", ""), {}).items()}
    found |= {f"train/scalars/{name}": value for name, value in line.get("scalars", {}).items()}
    return {tag: float(value) for tag, value in found.items() if isinstance(value, (int, float)) and math.isfinite(value)}


def settings_of(folder: Path) -> dict[str, str]:
    """The settings in run.json that decide the result, each as one text; the lines of a list or mapping are joined."""
    try:
        text = json.loads((folder / "run.json").read_text()).get("settings", "")
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    settings: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if line[:1].isspace() or not line:
            settings[key] = f"{settings.get(key, '')} {line.strip()}".strip()
        else:
            key, _, value = line.partition(":")
            settings[key] = value.strip()
    return settings


def is_finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "run.json").read_text()).get("finished"))
    except (FileNotFoundError, json.JSONDecodeError):
        return False


def lines_of(folder: Path, follow: bool, pause: float = 2.0) -> Iterator[dict[str, Any]]:
    """Yields the complete lines from the first on.

    follow: also yields later lines until the run is finished, and an empty line before each wait. A file that was cut is read again from
    the start.
    """
    path = folder / "metrics.jsonl"
    place = 0
    while True:
        ends = is_finished(folder)  # read this first: lines written before it are then read below
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < place:
                place = 0
            file.seek(place)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                place += len(raw)
                try:
                    line = json.loads(raw)
                except ValueError:
                    continue
                if isinstance(line, dict):
                    yield line
        if not follow or ends:
            return
        yield {}
        time.sleep(pause)


def beginning_of(folder: Path) -> float:
    """The time of the first line, which differs after the run was started anew in the same folder. 0: there is no line yet."""
    first = next(lines_of(folder, follow=False), {})
    return float(first.get("time", 0))


class Sent:
    """RUN_DIR/sent.json: for each service its run, and the last step that was sent of each kind of line."""

    def __init__(self, folder: Path, place: str) -> None:
        self._path = folder / "sent.json"
        self._place = place
        self._folder = folder
        began = beginning_of(folder)
        self._all: dict[str, dict[str, Any]] = self._read() if self._path.exists() else {}
        if self._all.get(place, {}).get("began") != began:
            self._all.pop(place, None)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            return dict(json.loads(self._path.read_text()))
        except ValueError as error:
            raise SystemExit(
                f"error: {self._path}: {error}; expected what an earlier call wrote: remove it, and all is sent anew"
            ) from None

    @property
    def id(self) -> str | None:
        return self._all.get(self._place, {}).get("id")

    def step(self, kind: str) -> int:
        return int(self._all.get(self._place, {}).get(kind, 0))

    def write(self, run_id: str, steps: dict[str, int]) -> None:
        self._all[self._place] = {"id": run_id, "began": beginning_of(self._folder), **steps}
        temporary = self._path.with_name("sent.json.tmp")
        temporary.write_text(json.dumps(self._all, indent=2) + "\n")
        temporary.replace(self._path)


def send(folder: Path, place_name: str, project: str, name: str, follow: bool = False) -> int:
    """Sends the lines that the service doesn't have yet; returns their number. What was sent before an interruption is recorded."""
    sent = Sent(folder, place_name)
    steps = {kind: sent.step(kind) for kind in TAGS}
    lines = lines_of(folder, follow)
    place: Place = PLACES[place_name](folder, project, name, settings_of(folder), sent.id)
    count = 0
    sent.write(place.id, steps)
    try:
        for line in lines:
            if not line:
                place.flush()
                sent.write(place.id, steps)
                continue
            kind, step, numbers = line.get("log", ""), line.get("step", 0), numbers_of(line)
            if numbers and step > steps[kind]:
                place.send(step, float(line.get("time", 0)), numbers)
                steps[kind] = step
                count += 1
    finally:
        place.flush()
        sent.write(place.id, steps)
        place.close(is_finished(folder))
    return count


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m surogate.log", description="Sends a run's numbers to Weights & Biases or MLflow.")
    parser.add_argument("place", choices=sorted(PLACES))
    parser.add_argument("folder", type=Path, metavar="RUN_DIR", help="output_dir of a run")
    parser.add_argument("--project", default="surogate", help="project of Weights & Biases, experiment of MLflow (surogate)")
    parser.add_argument("--name", help="the run's name there (the folder's)")
    parser.add_argument("--follow", action="store_true", help="go on until the run is finished")
    given = parser.parse_args(arguments)
    if not (given.folder / "metrics.jsonl").exists():
        print(f"error: {given.folder}: no metrics.jsonl in this folder; expected the output_dir of a run", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was sent is recorded
    try:
        count = send(given.folder, given.place, given.project, given.name or given.folder.resolve().name, given.follow)
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} isn't installed; pip install {given.place}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command sends the rest", file=sys.stderr)
        return 130
    print(f"sent {count} lines of {given.folder}/metrics.jsonl to {given.place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
