"""The command of the wheel: replaces this process by the native program."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn


def program() -> Path:
    """The native program: beside the library (in the wheel, or SUROGATE_LIBRARY's), in build/ of a source tree, or on the PATH."""
    here = Path(__file__).resolve().parent
    places = [here / "lib" / "surogate", here.parents[1] / "build" / "surogate"]
    if told := os.environ.get("SUROGATE_LIBRARY"):
        places.insert(0, Path(told).parent / "surogate")
    if found := shutil.which("surogate"):
        places.append(Path(found))
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(f"the program surogate is at none of {', '.join(map(str, places))}; install the wheel, or run make build")


def main() -> NoReturn:
    os.environ.setdefault("SUROGATE_PYTHON", sys.executable)  # runs on Ray need it
    os.execv(program(), [sys.argv[0], *sys.argv[1:]])
