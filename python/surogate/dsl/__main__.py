"""python -m surogate.dsl build|check|show: see docs/dsl.md."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import shutil
import sys
from pathlib import Path

from surogate.dsl.graph import build
from surogate.dsl.render import to_json, to_svg, to_text, without_source
from surogate.dsl.spec import DslError, Module, of_python


def load(name: str) -> type[Module]:
    """The one model or objective of FILE.py, or of a module such as surogate.models.llama; FILE.py:Name if there are several."""
    path, _, wanted = name.partition(":")
    if path.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        if not spec or not spec.loader or not Path(path).exists():
            sys.exit(f"{path}: no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.append(str(Path(path).resolve().parent))  # modules that it imports may be beside it
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if not f"{path}.".startswith(f"{error.name}."):
                raise
            sys.exit(f"{path}: no Python module of that name; expected FILE.py or a module, as surogate.models.llama")
    models = {n: v for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Module) and v._kind in ("model", "objective")
              and v.__module__ == module.__name__ and wanted in ("", n)}
    models = {n: v for n, v in models.items() if not v._abstract} or models
    models = {n: v for v, n in {v: n for n, v in models.items()}.items()}  # one of several names of the same class
    if not models:
        sys.exit(f"{path}: no class{' ' + wanted if wanted else ''} with @model or @objective in it")
    if len(models) != 1:
        sys.exit(f"{path}: {len(models)} models{' named ' + wanted if wanted else ''} ({', '.join(models)}), expected one; say {path}:NAME")
    return next(iter(models.values()))


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all. Anything but a regular file, such as /dev/stdout, is written directly."""
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    path = path.resolve()
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text)
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m surogate.dsl", description="Models and objectives in Python become the IR that the engine reads.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("build", "write the IR as JSON"), ("check", "check shapes; with --same also that FILE.json is what would be written"),
                       ("show", "print the graph, or draw it")):
        command = commands.add_parser(name, help=text)
        command.add_argument("model", help="FILE.py, FILE.py:Name or a Python module")
        if name != "check":
            command.add_argument("-o", "--out", help="a file; else standard output")
        if name == "check":
            command.add_argument("--same", metavar="FILE.json")
        if name == "build":
            command.add_argument("--plain", action="store_true", help="without the file and line of each statement")
        if name == "show":
            command.add_argument("--svg", action="store_true")
    args = parser.parse_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # output that a model file prints isn't part of the IR
            built = build(load(args.model))
    except DslError as error:
        sys.exit(str(error))
    except Exception as error:
        if not (message := of_python(error, args.model)):
            raise
        sys.exit(str(message))
    text = to_text(built) if args.command == "show" and not args.svg else to_svg(built) if args.command == "show" else to_json(
        without_source(built.ir) if args.command == "build" and args.plain else built.ir) + "\n"
    if args.command == "check":
        if args.same and (not Path(args.same).exists() or Path(args.same).read_text() != text):
            sys.exit(f"{args.same} isn't what {args.model} says: python -m surogate.dsl build {args.model} -o {args.same}")
    elif args.out:
        write_whole(Path(args.out), text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
