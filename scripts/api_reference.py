"""Write docs/api.md, the reference of the public modules, from their docstrings.

``python scripts/api_reference.py`` writes the page; ``--check`` writes nothing and exits 1 when the
page is not what it would write; ``--out FILE`` writes elsewhere. Signatures are taken from the
source, so that defaults and types stand as they were written. Needs what the modules need: the
extras ``rabbitmq`` and ``parquet``, and Scrapy.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Compiled, functions have no signatures to show.
os.environ["QINDEX_INTERPRETED"] = "1"

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
MODULES = [
    "qindex",
    "qindex.aio",
    "qindex.aio.compat",
    "qindex.worker",
    "qindex.metrics",
    "qindex.transfer",
    "qindex.transfer.brokers",
    "qindex.compat",
    "qindex.compat.queuelib",
    "qindex.compat.scrapy",
    "rocketstore",
    "msgstore",
    "journal.findings",
]
"""Modules a program imports from, in the order of the page. Names that one of them took from an
earlier one are described there only."""
_OURS = ("qindex.", "msgstore.", "journal.", "rocketstore.")
_DUNDERS = {"__len__", "__bool__", "__contains__", "__getitem__", "__iter__"}
_WIDTH = 96
_HEAD = """\
# API reference

Made from the docstrings by `python scripts/api_reference.py`. [tutorial.md](tutorial.md) tells how
it is used, [durability.md](durability.md) what is safe when a call returns.
"""


def page() -> str:
    """Give the whole page."""
    described: set[int] = set()
    contents, sections = [], []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        names = [name for name in module.__all__ if id(getattr(module, name)) not in described]
        described |= {id(getattr(module, name)) for name in names if not name.isupper()}
        links = ", ".join(f"[{name}](#{_anchor(f'{module_name}.{name}')})" for name in names)
        contents.append(f"* [{module_name}](#{_anchor(module_name)}): {links}")
        blocks = [f"## {module_name}", _prose(module.__doc__)]
        for name in names:
            blocks += _entry(module, name)
        sections.append("\n\n".join(block for block in blocks if block))
    return "\n\n".join([_HEAD.rstrip(), "\n".join(contents), *sections]) + "\n"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _entry(module: ModuleType, name: str) -> list[str]:
    """Describe one name of a module, in blocks of Markdown."""
    value = getattr(module, name)
    title = f"### {module.__name__}.{name}"
    if inspect.isclass(value):
        return [title, *_class(name, value)]
    if inspect.isfunction(value):
        return [title, _code(_signature(name, value)), _prose(value.__doc__)]
    return [title, _code(f"{name} = {value!r}"), _prose(_doc_of_constant(module, name))]


def _doc_of_constant(module: ModuleType, name: str) -> str | None:
    """Give the string that stands behind ``name = ...``, where the name was made."""
    later: dict[str, str] = getattr(module, "_LATER", {})
    home = importlib.import_module(later.get(name, module.__name__))
    return next(
        (doc for target, _, doc in _assignments(ast.parse(_source(home))) if target == name), None
    )


def _class(name: str, cls: type) -> list[str]:
    bases = ", ".join(_shown_bases(cls))
    head = f"class {name}({bases})" if bases else f"class {name}"
    lines = [head]
    notes = []
    for target, text, doc in _attributes(cls):
        lines.append(f"    {text}")
        if doc:
            notes.append(f"* `{target}`: {_prose(doc)}")
    code = "\n".join(lines)
    if _is_called(name, cls):
        code += "\n\n" + _signature(name, inspect.getattr_static(cls, "__init__"))
    described = [_code(code), _prose(cls.__dict__.get("__doc__")), "\n".join(notes)]
    for method_name, member in _methods(cls):
        described += _method(f"{name}.{method_name}", member)
    return described


def _method(title: str, member: Any) -> list[str]:
    """Describe a method or property: under its signature, which a short one has on one line."""
    function = _function_of(member)
    if isinstance(member, property):
        code = f"{title}: {_returns(function)}"
    else:
        code = _signature(title, function)
    doc = _prose(inspect.getdoc(member))
    return [_code(code), doc] if "\n" in code else [f"**`{code}`**<br>\n{doc}"]


def _shown_bases(cls: type) -> list[str]:
    """Name the base classes that a reader knows: those of this page, and other projects'."""
    shown = []
    for base in cls.__bases__:
        if _is_described(base) or base.__module__ == "builtins":
            shown.append(base.__name__)
        elif not _is_ours(base):
            shown.append(f"{base.__module__}.{base.__name__}")
    return [name for name in shown if name != "object"]


def _is_described(cls: type) -> bool:
    """Tell whether a class has its own place on the page."""
    modules = [importlib.import_module(name) for name in MODULES]
    return any(
        cls.__name__ in module.__all__ and getattr(module, cls.__name__) is cls
        for module in modules
    )


def _is_called(name: str, cls: type) -> bool:
    """Tell whether programs make objects of the class by calling it, and not by its fields."""
    init = inspect.getattr_static(cls, "__init__")
    if not inspect.isfunction(init) or not _is_ours(init) or issubclass(cls, Exception):
        return False
    return cls.__module__.startswith("qindex.compat.") or f"{name}(" in (cls.__doc__ or "")


def _is_ours(value: Any) -> bool:
    return f"{getattr(value, '__module__', '')}.".startswith(_OURS)


def _attributes(cls: type) -> list[tuple[str, str, str | None]]:
    """Give name, text and docstring of a data class's fields, or of an enumeration's members."""
    is_data = hasattr(cls, "__dataclass_fields__") or issubclass(cls, tuple)
    if not is_data and not issubclass(cls, enum.Enum):
        return []
    body = _assignments(ast.parse(_source(cls)).body[0])
    return [found for found in body if not found[0].startswith("_")]


def _assignments(tree: Any) -> Iterator[tuple[str, str, str | None]]:
    """Give target, source text and the string behind it of each assignment of a body."""
    body: list[ast.stmt] = tree.body
    for at, node in enumerate(body):
        if isinstance(node, ast.AnnAssign):
            target: ast.expr = node.target
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
        else:
            continue
        following = body[at + 1] if at + 1 < len(body) else None
        doc = None
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            doc = inspect.cleandoc(str(following.value.value))
        if isinstance(target, ast.Name):
            yield target.id, ast.unparse(node), doc


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Give public methods and properties that are documented: those of base classes first that
    have no place of their own."""
    seen: dict[str, None] = {}
    hidden = [base for base in cls.__mro__[1:] if _is_ours(base) and not _is_described(base)]
    for base in [*hidden, cls]:
        for name, member in base.__dict__.items():
            if isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(
                member
            ):
                seen.setdefault(name)
    for name in seen:
        member = inspect.getattr_static(cls, name)
        is_there = inspect.isfunction(_function_of(member))
        if is_there and (not name.startswith("_") or name in _DUNDERS) and inspect.getdoc(member):
            yield name, member


def _function_of(member: Any) -> Any:
    """Give the function behind a method or property."""
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def _source(thing: Any) -> str:
    return textwrap.dedent(inspect.getsource(thing))


def _definition(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    node = ast.parse(_source(inspect.unwrap(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


def _returns(function: Any) -> str:
    node = _definition(function)
    return ast.unparse(node.returns) if node.returns else "None"


def _signature(name: str, function: Any) -> str:
    """Give ``name(parameters) -> result`` as it was written; a long one has a parameter a line."""
    node = _definition(function)
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        del arguments.args[0]
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    tail = f") -> {_returns(function)}" if node.name != "__init__" else ")"
    short = f"{prefix}{name}({ast.unparse(arguments)}{tail}"
    if len(short) <= _WIDTH:
        return short
    lines = "".join(f"    {one},\n" for one in _parameters(arguments))
    return f"{prefix}{name}(\n{lines}{tail}"


def _parameters(arguments: ast.arguments) -> list[str]:
    """Give each parameter as it was written, and the bare ``*`` before the keyword ones."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    given = [_parameter(*pair) for pair in zip(plain, defaults, strict=True)]
    if arguments.vararg or arguments.kwonlyargs:
        given.append(f"*{ast.unparse(arguments.vararg)}" if arguments.vararg else "*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    given += [_parameter(*pair) for pair in pairs]
    if arguments.kwarg:
        given.append(f"**{ast.unparse(arguments.kwarg)}")
    return given


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _prose(doc: str | None) -> str:
    """Turn a docstring into Markdown: roles, double backticks, doctests, tables and literals."""
    if not doc:
        return ""
    return "\n\n".join(_paragraph(text) for text in re.split(r"\n\s*\n", inspect.cleandoc(doc)))


def _paragraph(text: str) -> str:
    heading, _, rest = text.partition("\n")
    if heading in ("Args:", "Returns:", "Raises:", "Example:"):
        items = textwrap.dedent(rest)
        if heading in ("Args:", "Raises:"):
            items = re.sub(r"^(\w+): ", r"* `\1`: ", items, flags=re.MULTILINE)
        return f"**{heading}**\n\n{_paragraph(items)}"
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    if text.startswith(("    ", "====")):
        return f"```text\n{textwrap.dedent(text)}\n```"
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda role: f"`{_last(role[1])}`", text)
    return text.replace("``", "`").removesuffix("::")


def _last(dotted: str) -> str:
    """Shorten a dotted name to what the page's reader writes: the class and what is in it."""
    parts = dotted.split(".")
    start = next((at for at, part in enumerate(parts) if part[:1].isupper()), -1)
    return ".".join(parts[start:]) if start > 0 and start != -1 else dotted


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    text = page()
    if not given.check:
        given.out.write_text(text)
        return 0
    if given.out.read_text() == text:
        return 0
    print(f"{given.out}: not what the docstrings say: run python {sys.argv[0]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
