"""Training on the nodes of a Ray cluster.

`surogate sft run.yaml` with `distributed: {ray_address: ...}` ends up here, as do `python -m surogate.ray sft run.yaml` and `launch`. Ray
starts one actor per node, which starts the native program there; the programs find each other and train without Python. Python only
forwards their output. If a node is lost, Python starts the programs again on the remaining nodes. Ray is imported only when needed: `pip
install surogate[ray]`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import queue
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from surogate import _settings

ANSWER_SECONDS = 30.0  # time that Ray has to answer at its address
JOIN_SECONDS = 60.0  # time that nodes have to appear, and actors to start
LEAVE_SECONDS = 20.0  # time that programs have to end after one of them failed
READ_SECONDS = 1.0
INTERRUPTED = 75  # the program's exit status after a signal: it has saved
LOST_SECONDS = 30.0  # how long a lost node is left out: by then Ray knows whether it exists


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings that the native program hands over (src/cli/ray.c)."""

    program: str
    address: str
    num_nodes: int  # 0: all
    ranks_per_node: int
    micro_batches: int  # per rank and step, with num_nodes nodes
    max_restarts: int
    worker_output_dir: str | None
    dataset_cache_dir: str | None
    resume: str
    device: str
    output_dir: str


class RunError(Exception):
    """Ends the run. status: the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class NodeLostError(Exception):
    """The run may continue without a node. node: its id in Ray, if one is to be left out."""

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


class Worker:
    """The actor of a node: runs the native program and returns its output."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._status: int | None = None
        self._is_stopped = False
        self._libc = ctypes.CDLL(None)

    def look(self, program: str, folder: str) -> dict[str, Any]:
        """The node's address, a free port, and what is missing on the node ("": nothing)."""
        import ray

        found = program if os.access(program, os.X_OK) else shutil.which("surogate")
        problem = "" if found else f"there is no program {program}, and no surogate on PATH"
        if not Path(folder).is_dir():
            problem = f"there is no folder {folder}, in which the run was started: nodes must share it"
        address = ray.util.get_node_ip_address()
        context = ray.get_runtime_context()
        return {"node": context.get_node_id(), "address": address, "port": _free_port(), "program": found, "problem": problem}

    def start(self, line: list[str], folder: str, secret: str, log: str | None) -> None:
        environment = {**os.environ, "SUROGATE_SECRET": secret}
        threading.Thread(target=self._run, args=(line, folder, environment, log), daemon=True).start()

    def _run(self, line: list[str], folder: str, environment: dict[str, str], log: str | None) -> None:
        """Starts the program and waits for it in one thread: Linux kills the program when the thread that started it ends."""
        libc = self._libc

        def end_with_parent() -> None:
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

        copy = _LogCopy(log, self._lines)
        try:
            self._process = subprocess.Popen(
                line,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            if self._is_stopped:
                self._process.send_signal(signal.SIGTERM)
            assert self._process.stdout
            for text in self._process.stdout:
                self._lines.put(text)
                copy.write(text)
            self._status = self._process.wait()
        except OSError as error:
            self._lines.put(f"error: {error}\n")
            self._status = 1

    def read(self, seconds: float) -> tuple[list[str], int | None]:
        """New lines of output, after at most `seconds`; and the program's exit status once it has ended and all output was read."""
        lines: list[str] = []
        until = time.monotonic() + seconds
        while not lines and time.monotonic() < until:
            status = self._status
            while not self._lines.empty():
                lines.append(self._lines.get())
            if status is not None:
                return lines, status
            time.sleep(0.02)
        return lines, None

    def stop(self) -> None:
        """Sends the signal after which all ranks finish the step, save and end."""
        self._is_stopped = True
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


class _LogCopy:
    """Writes the program's output to a file on its node.

    A failure, such as a full disk, is reported among the lines and ends only the copy.
    """

    def __init__(self, path: str | None, lines: queue.SimpleQueue[str]) -> None:
        self._path = path
        self._lines = lines
        self._file: Any = None
        self.write("")  # creates the file even if the program prints nothing

    def write(self, text: str) -> None:
        if not self._path:
            return
        try:
            if not self._file:
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
                self._file = Path(self._path).open("ab", buffering=0)  # noqa: SIM115 closed with the actor
            self._file.write(text.encode(errors="replace"))
        except OSError as error:
            self._lines.put(f"warning: the log in {self._path} ends here, the run goes on: {error}\n")
            self._path = None


def _free_port() -> int:
    """A free port below the range that systems assign from, so that no program gets it before rank 0 listens."""
    for _ in range(1000):
        port = random.randrange(10000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no port from 10000 to 31999 is free")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk under stderr doesn't end the run
        os.write(2, f"{text}\n".encode(errors="replace"))


class Cluster:
    """The nodes of the cluster, without those that were lost."""

    def __init__(self, settings: Settings, needs: dict[str, float]) -> None:
        self.settings = settings
        self.needs = needs
        self.lost: dict[str, float] = {}  # the time until which each node is left out

    def lose(self, node: str | None) -> None:
        if node:
            self.lost[node] = time.monotonic() + LOST_SECONDS

    def count(self) -> int:
        import ray

        def fits(node: dict[str, Any]) -> bool:
            return all(node["Resources"].get(kind, 0) >= amount for kind, amount in self.needs.items())

        now = time.monotonic()
        return sum(node["Alive"] and self.lost.get(node["NodeID"], 0) < now and fits(node) for node in ray.nodes())

    def wait_for(self, least: int) -> int:
        """Waits until there are at least `least` nodes; returns their number."""
        until = time.monotonic() + JOIN_SECONDS
        while (count := self.count()) < least:
            if time.monotonic() > until:
                needs = ", ".join(f"{amount:g} {kind}" for kind, amount in self.needs.items())
                raise RunError(
                    f"the Ray cluster has {count} nodes with {needs}, and the run needs {least}: start `ray start` on more of them, "
                    "or lower num_nodes",
                    2,
                )
            time.sleep(0.2)
        return count


class Attempt:
    """One attempt: the run from its start or newest checkpoint until it ends or a node is lost."""

    def __init__(self, cluster: Cluster, nodes: int, interrupt: Interrupt) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.interrupt = interrupt
        self.workers: list[Any] = []
        self.found: list[dict[str, Any]] = []
        self.group: Any = None

    def place(self) -> None:
        """Reserves self.nodes nodes, and places an actor on each."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = self.cluster.needs
        self.group = placement_group([needs] * self.nodes, strategy="STRICT_SPREAD")
        if not self.group.wait(JOIN_SECONDS):
            raise NodeLostError(f"{self.nodes} nodes had no room within {JOIN_SECONDS:g} s")
        actor = ray.remote(Worker)
        for index in range(self.nodes):
            where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=index)
            options = actor.options(num_cpus=1, num_gpus=needs.get("GPU", 0), scheduling_strategy=where, max_concurrency=4, max_restarts=0)
            self.workers.append(options.remote())
        looks = [worker.look.remote(self.cluster.settings.program, str(Path.cwd())) for worker in self.workers]
        self.found = [self.answer(index, look) for index, look in enumerate(looks)]
        for index, found in enumerate(self.found):
            if found["problem"]:
                raise RunError(f"{self.name(index)}: {found['problem']}", 2)

    def name(self, index: int) -> str:
        return f"node {index} ({self.found[index]['address']})" if index < len(self.found) else f"node {index}"

    def lose(self, index: int, why: str) -> NodeLostError:
        return NodeLostError(f"{self.name(index)} was lost: {why}", self.found[index]["node"] if index < len(self.found) else None)

    def answer(self, index: int, call: Any) -> Any:
        import ray

        try:
            return ray.get(call, timeout=JOIN_SECONDS)
        except ray.exceptions.RayError as error:
            raise self.lose(index, _brief(error)) from error

    def start(self, command: str, arguments: list[str], more: list[str]) -> None:
        settings = self.cluster.settings
        secret = secrets.token_urlsafe(32)
        own = settings.worker_output_dir
        if own and not settings.dataset_cache_dir:
            more = [*more, f"dataset_cache_dir={own}/data"]
        more = [
            *more,
            "ray_address=",
            f"gpus={settings.ranks_per_node}",
            f"world_size={self.nodes}",
            f"rendezvous={self.found[0]['address']}:{self.found[0]['port']}",
        ]
        calls = []
        for index, worker in enumerate(self.workers):
            line = [self.found[index]["program"], command, *arguments, *more, f"rank={index}"]
            calls.append(worker.start.remote(line, str(Path.cwd()), secret, f"{own}/node-{index}.log" if own else None))
        for index, call in enumerate(calls):
            self.answer(index, call)

    def follow(self) -> int:
        """Forwards the programs' output until all have ended; returns their exit status. NodeLostError: a node was lost."""
        import ray

        calls = {worker.read.remote(READ_SECONDS): index for index, worker in enumerate(self.workers)}
        lost: list[NodeLostError] = []
        failed: list[int] = []
        until = float("inf")
        while calls and time.monotonic() < until:
            self.interrupt.pass_on(self.workers)
            ready, _ = ray.wait(list(calls), timeout=READ_SECONDS)
            for call in ready:
                index = calls.pop(call)
                try:
                    lines, status = ray.get(call)
                except ray.exceptions.RayError as error:
                    lost.append(self.lose(index, _brief(error)))
                    until = min(until, time.monotonic() + LEAVE_SECONDS)
                    continue
                for line in lines:
                    _say(line.rstrip("\n") if index == 0 else f"{self.name(index)}: {line.rstrip()}")
                if status is None:
                    calls[self.workers[index].read.remote(READ_SECONDS)] = index
                elif status < 0:
                    lost.append(NodeLostError(f"the program of {self.name(index)} was ended by signal {-status}"))
                elif status:
                    failed.append(status)
                if status:
                    until = min(until, time.monotonic() + LEAVE_SECONDS)
        lost += [self.lose(index, f"nothing came from it for {LEAVE_SECONDS:g} s") for index in calls.values()]
        if lost:
            for each in lost:
                self.cluster.lose(each.node)
            raise lost[0]
        return failed[0] if failed else 0

    def end(self) -> None:
        """Ends the attempt's remaining programs and actors."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for worker in self.workers:
            ray.kill(worker)
        if self.group is not None:
            remove_placement_group(self.group)


class Interrupt:
    """SIGINT and SIGTERM: the first is passed on, so that the run saves; the second ends this process at once."""

    def __init__(self) -> None:
        self.number = 0
        self.is_told = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            os._exit(128 + number)
        self.number = number

    def pass_on(self, workers: list[Any]) -> None:
        if self.number and not self.is_told:
            self.is_told = True
            for worker in workers:
                worker.stop.remote()


def _brief(error: BaseException) -> str:
    """The first line of the error that isn't empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _share(total: int, settings: Settings, most: int) -> tuple[int, int]:
    """The largest number of nodes, at most `most`, among which a step's micro-batches divide evenly; and the micro-batches of each rank."""
    for nodes in range(most, 0, -1):
        if total % (nodes * settings.ranks_per_node) == 0:
            return nodes, total // (nodes * settings.ranks_per_node)
    raise RunError(f"{total} micro-batches of a step can't be divided among {settings.ranks_per_node} ranks of a node", 2)


class Saved:
    """Whether the run has saved since it began: other checkpoints in its folder may belong to a run that it doesn't resume."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._before = self._look()

    def _look(self) -> set[tuple[str, int, int]]:
        found = set()
        for path in Path(self._settings.output_dir).glob("checkpoint-*/manifest.json"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.add((path.parent.name, stat.st_ino, stat.st_mtime_ns))
        return found

    def again(self) -> list[str]:
        """Where a restart after a loss resumes: from the run's own newest save, or from where it began."""
        goes_on = self._settings.resume in ("auto", "true")
        return [] if goes_on or self._look() <= self._before else ["resume_from_checkpoint=auto"]

    def command(self) -> str:
        return " with ".join(["the same command", *self.again()]) + " goes on"


def _train(settings: Settings, command: str, arguments: list[str]) -> int:
    import ray

    needs: dict[str, float] = {"CPU": 1}
    if settings.device != "cpu" and ray.cluster_resources().get("GPU"):
        needs["GPU"] = settings.ranks_per_node
    cluster = Cluster(settings, needs)
    interrupt = Interrupt()
    wanted = settings.num_nodes or cluster.wait_for(1)
    total = wanted * settings.ranks_per_node * settings.micro_batches
    cluster.wait_for(wanted)
    nodes, more, saved = wanted, list[str](), Saved(settings)
    for restart in range(settings.max_restarts + 1):
        attempt = Attempt(cluster, nodes, interrupt)
        try:
            attempt.place()
            _say(f"Ray: {nodes} nodes of {settings.ranks_per_node} ranks: {', '.join(found['address'] for found in attempt.found)}")
            attempt.start(command, arguments, more)
            return attempt.follow()
        except NodeLostError as loss:
            cluster.lose(loss.node)
            if interrupt.number:
                raise RunError(f"{loss}. It was to end; {saved.command()}", INTERRUPTED) from loss
            if restart == settings.max_restarts:
                raise RunError(f"{loss}. max_restarts is {settings.max_restarts}: {saved.command()}") from loss
            _say(f"warning: {loss}")
        finally:
            attempt.end()
        nodes, micro_batches = _share(total, settings, min(wanted, cluster.wait_for(1)))
        more = [f"gradient_accumulation_steps={micro_batches}", *saved.again()]
        _say(f"going on with {nodes} nodes, restart {restart + 1} of {settings.max_restarts}")
    raise AssertionError("a loop that returns or raises")


def _join(address: str) -> None:
    """Joins the cluster. Ray itself tries for minutes, in calls that no signal ends: so a silent address ends the process."""
    import ray

    named = address if address != "auto" else os.environ.get("RAY_ADDRESS") or address
    timer = threading.Timer(ANSWER_SECONDS, _give_up, [named])
    timer.daemon = True
    timer.start()
    try:
        host, colon, port = named.rpartition("://")[2].rpartition(":")
        if colon and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS / 3).close()
        ray.init(address, log_to_driver=False, logging_level="error")
    finally:
        timer.cancel()


def _give_up(address: str) -> None:
    _say(
        f"error: ray_address {address}: no Ray answers there within {ANSWER_SECONDS:g} s. Name the address that `ray start --head` prints, "
        f"and start this on a node of the cluster: `ray start --address={address}` makes this machine one"
    )
    for child in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for process in child.read_text().split():
                os.kill(int(process), signal.SIGKILL)
    os._exit(2)


def _handed_over(settings: Settings, command: str, arguments: list[str]) -> int:
    try:
        import ray
    except ModuleNotFoundError:
        _say(f"error: ray_address: {sys.executable} has no Ray: pip install surogate[ray], or set SUROGATE_PYTHON to a Python that has it")
        return 2
    try:
        _join(settings.address)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        _say(f"error: ray_address {settings.address}: {_brief(error)}: is `ray start --head` running there?")
        return 2
    try:
        return _train(settings, command, arguments)
    except RunError as failure:
        _say(f"error: {failure}")
        return failure.status
    except ray.exceptions.RayError as error:
        _say(f"error: Ray at {settings.address}: {_brief(error)}. The same command goes on from the newest checkpoint")
        return 1
    finally:
        ray.shutdown()


def _program() -> str:
    """The native program: of the wheel, beside the library that SUROGATE_LIBRARY names, of a source tree, or on PATH."""
    here = Path(__file__).resolve().parent
    places = [here / "lib" / "surogate", here.parents[1] / "build" / "surogate"]
    if told := os.environ.get("SUROGATE_LIBRARY"):
        places.insert(0, Path(told).parent / "surogate")
    found = next((str(place) for place in places if place.exists()), None) or shutil.which("surogate")
    if not found:
        raise FileNotFoundError("there is no program surogate: install the wheel, or run make build in the source tree")
    return found


def _line(command: str, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The native command, which reads the run file and hands over to this Python; and its environment."""
    return [_program(), command, *arguments, "--ray"], {**os.environ, "SUROGATE_PYTHON": sys.executable}


def launch(command: str, *args: str | os.PathLike[str], **settings: Any) -> None:
    """Trains on the nodes of a Ray cluster, as `surogate COMMAND ARGS... --ray` does, and waits for the end.

    command: "pt" or "sft"; args: a run file's path and "key=value" texts; settings: keys by keyword (ray_address, num_nodes, ...). Progress
    is printed on stderr. subprocess.CalledProcessError has the exit status of a run that failed.
    """
    line, environment = _line(command, _settings.texts(args, settings))
    subprocess.run(line, env=environment, check=True)


def main() -> int:  # noqa: RET503 execve doesn't return
    arguments = sys.argv[1:]
    if len(arguments) > 2 and arguments[0] == "--settings":
        return _handed_over(Settings(**json.loads(arguments[1])), arguments[2], arguments[3:])
    if not arguments or arguments[0] not in ("pt", "sft"):
        _say("usage: python -m surogate.ray pt|sft run.yaml [key=value ...]")
        return 2
    line, environment = _line(arguments[0], arguments[1:])
    os.execve(line[0], line, environment)


if __name__ == "__main__":
    sys.exit(main())
