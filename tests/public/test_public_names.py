"""The public face of every module is what its ``__all__`` says, and packages keep to each other's."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("proto", "core", "edge", "clients", "server", "simulations")


@dataclass(frozen=True)
class Source:
    """A module's name and syntax; generated code is none of ours."""

    name: str
    tree: ast.Module

    @property
    def public(self) -> tuple[str, ...] | None:
        """The names in ``__all__``, None without one."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
                return tuple(ast.literal_eval(node.value))
        return None

    @property
    def defined(self) -> tuple[str, ...]:
        """Functions and classes at the top that do not begin with an underscore."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return tuple(node.name for node in self.tree.body if isinstance(node, kinds) and node.name[0] != "_")

    @property
    def imports(self) -> Iterator[tuple[str, str]]:
        """Module and name of every import from one of our packages."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedloop_"):
                for alias in node.names:
                    yield str(node.module), alias.name


def sources() -> Iterator[Source]:
    for layer in LAYERS:
        for path in sorted((ROOT / layer / f"fedloop_{layer}").rglob("*.py")):
            if "_pb2" not in path.name:
                parts = path.relative_to(ROOT / layer).with_suffix("").parts
                yield Source(".".join(part for part in parts if part != "__init__"), ast.parse(path.read_bytes()))


SOURCES = tuple(sources())
WITH_CODE = tuple(s for s in SOURCES if len(s.tree.body) > 1 and not s.name.endswith("__main__"))


def by_kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_all_packages_are_looked_at() -> None:
    assert {source.name.partition(".")[0] for source in SOURCES} == {f"fedloop_{layer}" for layer in LAYERS}
    assert len(WITH_CODE) > 100


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_module_says_what_it_is_for(source: Source) -> None:
    assert ast.get_docstring(source.tree)


@pytest.mark.parametrize("source", WITH_CODE, ids=lambda source: source.name)
def test_a_module_lists_its_public_names(source: Source) -> None:
    public = source.public
    assert public is not None
    assert list(public) == sorted(set(public), key=by_kind)
    assert not set(source.defined) - set(public)
    module = importlib.import_module(source.name)
    assert [name for name in public if not hasattr(module, name)] == []


@pytest.mark.parametrize("source", WITH_CODE, ids=lambda source: source.name)
def test_a_module_imports_nothing_private_of_another_package(source: Source) -> None:
    package = source.name.partition(".")[0]
    private = [
        (module, name)
        for module, name in source.imports
        if module.partition(".")[0] != package and any(part[0] == "_" for part in (*module.split("."), name))
    ]
    assert private == []


@pytest.mark.parametrize("source", WITH_CODE, ids=lambda source: source.name)
def test_a_module_imports_what_others_list(source: Source) -> None:
    faces = {other.name: other.public or () for other in WITH_CODE}
    modules = {other.name for other in SOURCES}
    unlisted = [
        (module, name)
        for module, name in source.imports
        if module in faces and name not in faces[module] and f"{module}.{name}" not in modules
    ]
    assert unlisted == []
