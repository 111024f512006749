"""Runs of a command on a Ray cluster of three nodes on this machine, which tests/python/ray.t drives.

ray_cluster.py whole COMMAND...: one run.
ray_cluster.py kill COUNT SEED FOLDER COMMAND...: runs with output_dir FOLDER/1, FOLDER/2, ... until COUNT raylets were killed at random
moments, at most four in each run; after some kills a new node is added.
ray_cluster.py stop COMMAND...: a run that gets SIGTERM at step 5.
The commands get ray_address, and RAY_ADDRESS, which is what auto means. The secret of each run must be in no command line and in no file
of Ray's.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {  # a node that is gone is noticed within two seconds
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
MEMORY = 80 << 20  # bytes of each node's object store, the least that Ray takes
KILLS_OF_A_RUN = 4
STEPS_UNTIL_KILLED = 12  # most steps between two kills: so four kills hit a run of 60 steps, even if steps are fast


class Nodes:
    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_TMPDIR"] = folder  # Ray writes the cluster's address into a folder ray in it, which must exist
        Path(folder, "ray").mkdir(exist_ok=True)
        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False, "temp_dir": folder}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []
        os.environ["RAY_ADDRESS"] = self.cluster.address
        self.fill()

    def fill(self) -> None:
        while len(self.nodes) < 3:
            self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=MEMORY))

    def kill(self, chance: random.Random, whole: bool) -> None:
        """Kills one raylet; whole: also its workers, as if the node had lost its power. Half of the time a new node is added."""
        node = self.nodes.pop(chance.randrange(len(self.nodes)))
        raylet = node.all_processes["raylet"][0].process.pid
        workers = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split() if whole else []
        for process in (raylet, *map(int, workers)):
            os.kill(process, signal.SIGKILL)
        if not self.nodes or chance.random() < 0.5:
            self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=MEMORY))


class Command:
    """The running command; its output is passed on."""

    def __init__(self, line: list[str]) -> None:
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        self.steps = 0
        self.secrets: set[bytes] = set()
        self.lines: set[bytes] = set()  # command lines seen on the machine during the run
        threading.Thread(target=self._read).start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            sys.stderr.write(line)
            if line.startswith("step "):
                self.steps += 1
                if self.steps % 20 == 1:
                    self._look()

    def _look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (process / "cmdline").read_bytes()
                self.lines.add(line)
                if b"\0rendezvous=" in line:
                    words = (process / "environ").read_bytes().split(b"\0")
                    self.secrets |= {word.partition(b"=")[2] for word in words if word.startswith(b"SUROGATE_SECRET=")}

    def until_step(self, step: int) -> bool:
        while self.steps < step:
            if self.process.poll() is not None:
                return False
            time.sleep(0.01)
        return True

    def end(self) -> int:
        status = self.process.wait()
        if status in (0, 75):
            assert self.secrets, "no program was seen"
        return status

    def leaks(self, folder: str) -> Iterator[str]:
        for secret in self.secrets:
            if any(secret in line for line in self.lines):
                yield "a command line"
            for path in Path(folder).rglob("*"):
                with contextlib.suppress(OSError):
                    if path.is_file() and secret in path.read_bytes():
                        yield str(path)


def run_killed(nodes: Nodes, line: list[str], most: int, chance: random.Random) -> tuple[Command, int]:
    command, kills = Command(line), 0
    while kills < most:
        steps = command.steps
        if (kills == 0 or chance.random() < 0.7) and not command.until_step(steps + chance.randrange(1, STEPS_UNTIL_KILLED + 1)):
            break
        if command.steps == steps:  # no step since the last kill: programs are ending or starting again
            time.sleep(chance.random() * 1.5)
        if command.process.poll() is not None:
            break
        nodes.kill(chance, whole=kills == 0)  # programs outlive their raylet for seconds: a short run might end well
        kills += 1
        print(f"kill {kills}", file=sys.stderr, flush=True)
    return command, kills


def main() -> int:
    kind, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        nodes = Nodes(folder)
        try:
            address = f"ray_address={nodes.cluster.address}"
            if kind == "kill":
                count, seed, out, *line = words
                left, turn, chance = int(count), 0, random.Random(int(seed))
                while left > 0 and turn < 4 * int(count):
                    turn += 1
                    most = min(left, KILLS_OF_A_RUN)
                    command, kills = run_killed(nodes, [*line, address, f"output_dir={out}/{turn}"], most, chance)
                    left -= kills
                    if status := command.end():
                        return status
                    nodes.fill()
                print(f"{int(count) - left} kills in {turn} runs")
            else:
                command = Command([*words, address])
                if kind == "stop":
                    command.until_step(5)
                    command.process.terminate()
                status = command.end()
                if status not in (0, 75):
                    return status
            if leaks := list(command.leaks(folder)):
                print(f"the secret is in {leaks}", file=sys.stderr)
                return 99
            return 0 if kind == "kill" else status
        finally:
            nodes.cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
