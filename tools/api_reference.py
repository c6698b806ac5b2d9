"""Writes docs/api.md: the public names of each package, with their signatures and docstrings.

    python -m tools.api_reference             # write it
    python -m tools.api_reference --check     # exit code 1 if it is not up to date

Invariant: sources are read, not imported, so the page is the same whichever frameworks are installed. Public names are
those that a package's `__init__.py` imports under their own names (`import X as X`), and the members of a class, and of
its bases, without a leading underscore.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "api.md"
PACKAGES: Final = (
    *("collectives", "collectives.torch", "collectives.tensorflow", "collectives.keras", "collectives.jax"),
    *("collectives.horovod.torch", "collectives.horovod.tensorflow", "collectives.horovod.keras"),
)
HEAD: Final = """# API reference

Written by `python -m tools.api_reference` from the docstrings. Guides: [launching](launching.md), [errors](errors.md),
[stores](stores.md), [choosing](choosing.md), [PyTorch](pytorch.md), [TensorFlow](tensorflow.md), [Keras](keras.md),
[JAX](jax.md), [Horovod](horovod.md).
"""

Definition: TypeAlias = "ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef"
DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def source(module: str) -> tuple[ast.Module, bool]:
    """The module's syntax tree, and whether it is a package."""
    folder = ROOT.joinpath(*module.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return ast.parse(file.read_text()), folder.is_dir()


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements at the top level of the module `tree`, and those in its block `if TYPE_CHECKING:`.

    Overloads are left out: the function behind them has the docstring.
    """
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body
        elif not is_overload(node):
            yield node


def is_overload(node: ast.AST) -> bool:
    """Whether `node` declares one of several signatures of the function that follows."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return any(ast.unparse(decorator) in ("overload", "typing.overload") for decorator in node.decorator_list)


def imported(module: str, node: ast.stmt) -> Iterator[tuple[str, str, str, bool]]:
    """Yield four values for each name that the import statement `node` in `module` defines.

    They are the name, the module from which it comes, its name in that module, and whether it is re-exported. An import
    re-exports a name if it has the form `import X as X`.
    """
    if isinstance(node, ast.ImportFrom):
        parents = module.split(".")
        base = parents[: len(parents) - node.level + source(module)[1]] if node.level else []
        where = ".".join([*base, *([node.module] if node.module else [])])
        if where != module:
            for alias in node.names:
                yield alias.asname or alias.name, where, alias.name, alias.asname is not None


def exported(module: str) -> Iterator[tuple[str, str, str]]:
    """Yield, for each public name of `module`, the name, the module that it comes from, and its name in that module."""
    tree, _ = source(module)
    for node in statements(tree):
        for name, where, original, given_on in imported(module, node):
            if given_on and not name.startswith("_"):
                yield name, where, original
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
            yield node.name, module, node.name


def definition(module: str, name: str) -> tuple[str, Definition] | None:
    """Find the class or function that `name` stands for in `module`, through any number of imports.

    Return the module that defines it and its syntax tree, or None if it is not defined in this repository.
    """
    folder = ROOT.joinpath(*module.split("."))
    if not folder.exists() and not folder.with_suffix(".py").exists():
        return None
    tree, _ = source(module)
    for node in statements(tree):
        if isinstance(node, DEFINITIONS) and node.name == name:
            return module, node
        for public, where, original, _ in imported(module, node):
            if public == name:
                return definition(where, original)
    return None


def page() -> str:
    parts = [HEAD]
    for package in PACKAGES:
        tree, _ = source(package)
        parts.append(f"## {package}\n\n{_text(tree)}\n")
        for name, module, original in sorted(exported(package), key=lambda item: item[0].lower()):
            if (found := definition(module, original)) is not None:
                parts += _entry(*found, name, "###")
    return "\n".join(parts).rstrip() + "\n"


def members(module: str, node: ast.ClassDef) -> dict[str, tuple[str, Definition]]:
    """Return the public methods and properties of the class `node`, by name, each with its module and its syntax tree.

    Those of its base classes in this repository are included.
    """
    found: dict[str, tuple[str, Definition]] = {}
    for member in node.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) or is_overload(member):
            continue
        if not member.name.startswith("_"):
            found.setdefault(member.name, (module, member))
    for base in node.bases:
        inherited = definition(module, base.id) if isinstance(base, ast.Name) else None
        if inherited is not None and isinstance(inherited[1], ast.ClassDef):
            found = {**members(inherited[0], inherited[1]), **found}
    return found


def _entry(module: str, node: Definition, name: str, level: str, within: str = "") -> Iterator[str]:
    yield f"{level} {within}{name}\n"
    yield f"```python\n{_signature(node, name)}\n```\n"
    if text := _text(node):
        yield f"{text}\n"
    if isinstance(node, ast.ClassDef):
        for where, member in members(module, node).values():
            yield from _entry(where, member, member.name, "####", f"{name}.")


def _signature(node: Definition, name: str) -> str:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        line = f"class {name}({bases})" if bases else f"class {name}"
        start = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
        made_elsewhere = start is None or _text(node).find("Made by ") >= 0
        return line if start is None or made_elsewhere else f"{line}\n{_call(start, name, method=True)}"
    inside = bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
    if "property" in decorators:
        return f"{name}: {'Any' if node.returns is None else ast.unparse(node.returns)}"
    kind = next((f"@{d}\n" for d in ("staticmethod", "classmethod", "contextmanager") if d in decorators), "")
    return f"{kind}{_call(node, name, method=inside)}"


def _call(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, method: bool) -> str:
    """The signature on one line, or, if that is too long, with one argument on each line."""
    public = [pair for pair in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if pair[0].arg[0] != "_"]
    node.args.kwonlyargs, node.args.kw_defaults = [a for a, _ in public], [d for _, d in public]
    arguments = ast.unparse(node.args)
    if method:
        arguments = arguments.partition(", ")[2] if ", " in arguments else ""
    after = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    line = f"{name}({arguments}){after}"
    if len(line) <= 110:
        return line
    parts = ast.parse(f"def f({arguments}): pass").body[0]
    assert isinstance(parts, ast.FunctionDef)
    lines = "".join(f"    {argument},\n" for argument in _split(parts.args))
    return f"{name}(\n{lines}){after}"


def _split(arguments: ast.arguments) -> list[str]:
    """The source text of each argument, with its default."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
    found = [_argument(a, d) for a, d in zip(plain, defaults, strict=True)]
    if arguments.vararg is not None:
        found.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        found.append("*")
    found += [_argument(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        found.append(f"**{_argument(arguments.kwarg, None)}")
    return found


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    typed = argument.annotation is not None
    text = f"{argument.arg}: {ast.unparse(argument.annotation)}" if argument.annotation is not None else argument.arg
    return text if default is None else f"{text}{' = ' if typed else '='}{ast.unparse(default)}"


def _text(node: ast.Module | Definition) -> str:
    """The docstring, with its indented examples as blocks of Markdown."""
    return inspect.cleandoc(ast.get_docstring(node, clean=False) or "")


def main() -> int:
    wanted = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == wanted:
            return 0
        print("docs/api.md is not what the docstrings say: python -m tools.api_reference", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
