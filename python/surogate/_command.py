"""The command of the wheel: the native program takes over this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    program = Path(__file__).resolve().parent / "lib" / "surogate"
    if not program.exists():  # the package of a source tree
        program = Path(os.environ["SUROGATE_LIBRARY"]).parent / "surogate"
    os.environ.setdefault("SUROGATE_PYTHON", sys.executable)  # for runs on Ray
    os.execv(program, [sys.argv[0], *sys.argv[1:]])
