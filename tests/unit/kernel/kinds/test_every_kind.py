"""Each kind of plugin has what an author needs: a documented base class, a kit, a template and a page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind, kind_names, kinds
from rolemesh.plugins.contract import breaches
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_new.command import KINDS as TEMPLATES
from rolemesh_testing.conformance import InstalledConformance

ROOT = Path(__file__).resolve().parents[4]
DECLARATIONS = "kinds"
OURS = [*kind_names(), DECLARATIONS]


@pytest.fixture(scope="module")
def references() -> frozenset[str]:
    """Return the classes that the reference pages document, as ``module.Class``."""
    pages = yaml.safe_load((ROOT / "docs/generator/reference.yaml").read_text()).values()
    return frozenset(name for page in pages for name in page["names"])


def told(name: str) -> tuple[str, str]:
    """The base class of a kind, and its conformance class, as ``module:Class``."""
    if name == DECLARATIONS:
        return f"{Kind.__module__}:{Kind.__name__}", "rolemesh_testing:KindConformance"
    return kinds()[name].base, kinds()[name].conformance


def templates() -> Mapping[str, str]:
    """The template of each kind."""
    answers = {kind: json.loads((ROOT / "cookiecutter" / kind / "cookiecutter.json").read_text()) for kind in TEMPLATES}
    return {found["_group"]: kind for kind, found in answers.items()}


@pytest.mark.parametrize("name", OURS)
def test_its_base_class_is_on_a_reference_page(name: str, references: frozenset[str]) -> None:
    module, _, cls = told(name)[0].partition(":")
    assert getattr(import_module(module), cls).__doc__
    assert f"{module}.{cls}" in references, f"add {module}.{cls} to docs/generator/reference.yaml"


@pytest.mark.parametrize("name", OURS)
def test_it_has_a_conformance_class_that_is_documented(name: str, references: frozenset[str]) -> None:
    kit = told(name)[1]
    assert kit, f"the kind {name} names no conformance class"
    module, _, cls = kit.partition(":")
    found = getattr(import_module(module), cls)
    assert issubclass(found, InstalledConformance)
    assert found.kind == name
    assert f"{found.__module__}.{cls}" in references, f"add {found.__module__}.{cls} to docs/generator/reference.yaml"
    assert f"`{cls}`" in (ROOT / "docs/conformance.md").read_text(), f"docs/conformance.md does not name {cls}"


@pytest.mark.parametrize("name", OURS)
def test_rolemesh_new_has_a_template(name: str) -> None:
    assert name in templates(), f"there is no template for {name} in cookiecutter/"


def test_the_classes_on_the_page_about_other_kinds_fit_their_kinds() -> None:
    page = (ROOT / "docs/write-other-plugins.md").read_text()
    found: dict[str, type] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        names: dict[str, Any] = {"__name__": "page"}
        exec(block, names)
        if isinstance(kind := names.get("KIND"), Kind):
            assert issubclass(names[kind.base.partition(":")[2]], Plugin)
            assert kind.name not in kinds()
            continue
        for each in (value for value in names.values() if isinstance(value, type) and value.__module__ == "page"):
            if not issubclass(each, Plugin):
                continue
            [kind_of] = [name for name, one in kinds().items() if issubclass(each, one.base_class())]
            found[kind_of] = each
            assert list(breaches(PluginRecord(kind_of, each.__name__, "", "", ""), each)) == []
    assert found.keys() == {"scalers", "checks", "extensions", "commands"}


@pytest.mark.parametrize("name", OURS)
def test_it_has_a_page_that_the_table_of_groups_links(name: str) -> None:
    table = (ROOT / "docs/hooks.md").read_text()
    row = next((line for line in table.splitlines() if line.startswith(f"| `rolemesh.{name}` |")), "")
    assert row, f"docs/hooks.md has no row for rolemesh.{name}"
    pages = re.findall(r"\]\((write-[a-z-]+\.md)", row)
    assert pages, f"the row of rolemesh.{name} in docs/hooks.md links no page about how to write one"
    assert (ROOT / "docs" / pages[0]).is_file()
    assert f"rolemesh.{name}" in (ROOT / "docs" / pages[0]).read_text(), f"docs/{pages[0]} does not name the group"
