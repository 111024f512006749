"""Links of all *.md files lead somewhere: files and headings are there, pages of docs/ are in the site's menu, and every file of the tree that
names a page of docs/ names one that is there. Prints what is missing; the last line counts the links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def anchors(path: Path) -> set[str]:
    """The #names of a page's headings that work both on the site and where the source is read."""
    found: set[str] = set()
    fenced = False
    for line in path.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if fenced or not (match := re.match(r"#+ (.*)", line)):
            continue
        text = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match[1]).lower()).strip()
        found |= {re.sub(r"\s", "-", text)} & {re.sub(r"[-\s]+", "-", text)}
    return found


def links(path: Path) -> list[tuple[int, str]]:
    """The targets of a page's links outside of code, with their lines."""
    found, fenced = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced:
            found += [(number, target) for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line))]
    return found


def problem(page: Path, target: str) -> str:
    if re.match(r"https?://", target):
        return ""
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return "no such file"
    if anchor and anchor not in anchors(file):
        return "no such heading"
    docs = ROOT / "docs"
    if docs in page.parents and docs not in file.parents:
        return "a page of docs/ must link inside of docs/, for the site has nothing else"
    return ""


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    passed, problems = 0, []

    def tell(where: str, what: str) -> None:
        nonlocal passed
        passed += not what
        if what:
            problems.append(f"FAILED: {where}: {what}")

    for page in (file for file in files if file.suffix == ".md"):
        for line, target in links(page):
            tell(f"{page.relative_to(ROOT)}:{line}: {target}", problem(page, target))
    menu = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    for name in sorted(menu | pages):
        wrong = "not" if name not in menu else "only" if name not in pages else ""
        tell(f"docs/{name}", wrong and f"{wrong} in the menu of mkdocs.yml")
    for file in files:
        if file.suffix in (".svg", ".png", ".safetensors", ".md") or "fixtures" in file.parts or "corpus" in file.parts:
            continue
        for name in set(re.findall(r"\bdocs/[a-z_/]+\.md\b", file.read_bytes().decode(errors="ignore"))):
            tell(f"{file.relative_to(ROOT)}: {name}", "" if (ROOT / name).exists() else "no such file")
    print("\n".join(problems + [f"{passed} passed, {len(problems)} failed, 0 skipped"]))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
