"""Runs every code block of the documents; the word after the fence says how (docs/testing.md lists the words).

    blocks.py [--update] PAGE...      --update: writes what console blocks print into the pages

Each page has a fresh folder, with `examples` beside it and the program on the PATH. The last line counts the blocks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["SUROGATE"])

# Languages of blocks that another test runs, by page.
ELSEWHERE = {
    ("docs/c_api.md", "c"): "tests/api/install.t",
    ("docs/multi_node.md", "python"): "tests/python/ray.t",
    ("docs/multi_node.md", "yaml"): "tests/python/ray.t",
}

# In `sh` blocks make only checks that its targets exist.
PRELUDE = f'set -e; make() {{ command make -n -C "{ROOT}" "$@" > /dev/null; }}\n'


class Block:
    def __init__(self, line: int, language: str, title: str, lines: list[str]) -> None:
        self.line, self.language, self.title, self.lines = line, language, title, lines

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)


class Page:
    """A document's lines, and the blocks among them: fenced ones, and comments that begin with `<!-- run`, which readers don't see."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        self.blocks: list[Block] = []
        begin, fence = 0, None
        for number, line in enumerate(self.lines, 1):
            if fence is None and (match := re.fullmatch(r'(```+)(\w*)(?: title="([^"]+)")?', line)):
                fence, begin = match, number
            elif fence is None and line == "<!-- run":
                fence, begin = re.fullmatch(r"(-->)(run)?()", "-->run"), number
            elif fence is None and number > 1 and line.startswith("    ") and not self.lines[number - 2]:
                raise ValueError(f"{name}:{number}: a block by indentation; fence it, so that its language is said")
            elif fence is None and line.lstrip().startswith("```"):
                raise ValueError(f"{name}:{number}: a fence must begin its line, and be as ```word or ```word title=\"file\"")
            elif fence is not None and line == fence[1]:
                self.blocks.append(Block(begin, fence[2] or "", fence[3] or "", self.lines[begin : number - 1]))
                fence = None
        if fence is not None:
            raise ValueError(f"{name}:{begin}: the block has no end")

    def runs(self, block: Block) -> bool:
        """Whether a later block's commands name the block's file."""
        later = [other for other in self.blocks if other.line > block.line and other.language in ("console", "sh", "run")]
        return bool(block.title) and any(block.title in other.text for other in later)


def shell(command: str, folder: Path) -> tuple[int, str]:
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace")


# Losses and speeds may differ in the last digits from machine to machine.
MEASURED = re.compile(
    r"^(step \d+/\d+|first step|eval at step \d+|done: \d+ steps|evaluation loss|largest logit difference"
    r"|loss|perplexity|bits per byte|speed|device)\b.*"
)


def matches(expected: list[str], printed: list[str]) -> bool:
    """`...` stands for any text in a line, and alone in a line for any lines; measured numbers aren't compared."""
    pattern = ""
    for line in (MEASURED.sub(r"\1", line) for line in expected):
        pattern += r"(?:.*\n)*?" if line == "..." else ".*".join(re.escape(part) for part in line.split("...")) + "\n"
    return re.fullmatch(pattern, "".join(MEASURED.sub(r"\1", line) + "\n" for line in printed)) is not None


def run_console(block: Block, folder: Path) -> list[str]:
    """The block with the output of its commands, where that differs from the expected output."""
    out: list[str] = []
    at = 0
    while at < len(block.lines):
        if not block.lines[at].startswith("$ "):
            raise ValueError("a console block must begin with a command: $ ...")
        command = [block.lines[at]]
        while command[-1].endswith("\\"):
            at += 1
            command.append(block.lines[at])
        at += 1
        begin = at
        while at < len(block.lines) and not block.lines[at].startswith("$ "):
            at += 1
        text = shell("\n".join(command)[2:], folder)[1].rstrip("\n")
        expected, printed = block.lines[begin:at], text.splitlines()
        out += command + (expected if matches(expected, printed) else printed)
    return out


def run_yaml(block: Block, folder: Path) -> None:
    """Checks that `surogate plan` accepts a run file; if it names no model, with a tiny one."""
    name = block.title or "block.yaml"
    (folder / name).write_text(block.text, encoding="utf-8")
    words = "" if re.search(r"^model:", block.text, re.M) else "model=.base"
    if words and not (folder / ".base").exists():
        shell("surogate new --arch qwen3-tiny --random .base", folder)
    status, text = shell(f"surogate plan {name} {words}", folder)
    if status:
        raise ValueError(text)


def run_python(block: Block, folder: Path, names: dict[str, object]) -> None:
    here, shown = Path.cwd(), io.StringIO()
    os.chdir(folder)
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with contextlib.redirect_stdout(shown):
            exec(compile("\n" * block.line + block.text, "the block", "exec"), names)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
        os.chdir(here)


def write_titled(block: Block, folder: Path) -> None:
    """A block with a title is that file: a file of the tree must be equal, any other is written into the page's folder."""
    if (ROOT / block.title).exists():
        if (ROOT / block.title).read_text(encoding="utf-8") != block.text:
            raise ValueError(f"{block.title} isn't what the page shows")
        return
    (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
    (folder / block.title).write_text(block.text, encoding="utf-8")


class Tester:
    def __init__(self, update: bool) -> None:
        self.update, self.passed, self.failed, self.skipped = update, 0, 0, 0

    def run(self, page: Page) -> None:
        with tempfile.TemporaryDirectory(prefix="surogate-docs-") as name:
            folder = Path(name)
            (folder / "examples").symlink_to(ROOT / "examples")
            names: dict[str, object] = {"__name__": "__main__"}
            changes: list[tuple[Block, list[str]]] = []
            for block in page.blocks:
                try:
                    if block.title:
                        write_titled(block, folder)
                    now = self.run_block(page, block, folder, names)
                    if now != block.lines:
                        changes.append((block, now))
                    if now != block.lines and not self.update:
                        raise ValueError("it prints something else:\n" + "\n".join(now))
                    self.passed += 1
                except Exception as error:
                    self.failed += 1
                    print(f"FAILED: {page.name}:{block.line}: {error}")
                    if block.language == "python":
                        traceback.print_exc(limit=-1, file=sys.stdout)
        if changes and self.update:
            for block, now in reversed(changes):
                page.lines[block.line : block.line + len(block.lines)] = now
            (ROOT / page.name).write_text("".join(line + "\n" for line in page.lines), encoding="utf-8")

    def run_block(self, page: Page, block: Block, folder: Path, names: dict[str, object]) -> list[str]:
        if (page.name, block.language) in ELSEWHERE:
            return block.lines
        if block.language == "console":
            return run_console(block, folder)
        if block.language in ("sh", "run"):
            status, text = shell((PRELUDE if block.language == "sh" else "set -e\n") + block.text, folder)
            if status:
                raise ValueError(text)
        elif block.language == "yaml":
            if not page.runs(block):
                run_yaml(block, folder)
        elif block.language == "python" and not block.title:
            if "numpy" not in sys.modules:
                self.skipped += 1
                self.passed -= 1
            else:
                run_python(block, folder, names)
        elif block.language == "json" and not block.title:
            json.loads(block.text)
        elif block.language != "text" and not block.title:
            raise ValueError(f"nothing runs a block of {block.language or 'no language'}; output is ```text")
        return block.lines


def main() -> int:
    words = sys.argv[1:]
    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} isn't there: make build")
    tester = Tester("--update" in words)
    library = PROGRAM.parent / "libsurogate.so"
    if library.exists():
        os.environ["SUROGATE_LIBRARY"] = str(library)
        sys.path.insert(0, str(ROOT / "python"))
        with contextlib.suppress(ImportError):
            import numpy  # noqa: F401
    for name in (word for word in words if word != "--update"):
        try:
            page = Page(name)
        except ValueError as error:
            tester.failed += 1
            print(f"FAILED: {error}")
            continue
        tester.run(page)
    print(f"{tester.passed} passed, {tester.failed} failed, {tester.skipped} skipped")
    return tester.failed > 0


if __name__ == "__main__":
    sys.exit(main())
