"""The documents' generated parts are current, diagrams are drawn, the site builds."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from docs.generator import events, reference
from docs.generator.drawing import drawn
from docs.generator.layout import lay_out
from docs.generator.navigation import completed, examples, plugins
from docs.generator.parts import PARTS, ROOT
from tests.surface import MODULES

import rolemesh
from rolemesh.api.failures import Cause
from rolemesh_durable.extensions import masters
from rolemesh_testing.observers.lives import EVENTS


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_generated_parts_of_the_documents_are_current(path: Path) -> None:
    assert path.read_text() == PARTS[path](), f"run `python -m docs.generator` and commit {path.relative_to(ROOT)}"


def test_every_cause_of_a_failure_is_described() -> None:
    text = (ROOT / "docs/what-to-look-at.md").read_text()
    assert {cause for cause in get_args(Cause) if f"| `{cause}` |" not in text} == set()


def test_every_kind_of_event_is_on_its_page_with_its_data() -> None:
    assert events.KINDS.keys() == masters.KINDS.keys()
    assert events.KINDS.keys() <= EVENTS.keys()


# ---------------------------------------------------------------------------------------------------------------- API


LISTED = [path for page in reference.PAGES.values() for path in page["names"]]


def test_every_public_name_is_in_the_api_pages_once() -> None:
    public = {name for name in rolemesh.__all__ if not name.startswith("_")}
    for module in MODULES:
        if find_spec(module) is not None:
            public |= {name for name in importlib.import_module(module).__all__ if not name.endswith("_API_VERSION")}
    listed = [path.rpartition(".")[2] for path in LISTED]
    assert len(listed) == len(set(listed))
    assert public <= set(listed), f"add to a page in docs/generator/reference.yaml: {public - set(listed)}"


def test_the_api_pages_say_every_field_and_method() -> None:
    for path in LISTED:
        module, _, name = path.rpartition(".")
        what = getattr(importlib.import_module(module), name)
        text = reference.page(next(page for page, made in reference.PAGES.items() if path in made["names"]))
        section = text.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        for field in getattr(what, "__struct_fields__", None) or getattr(what, "model_fields", None) or ():
            if field in vars(what).get("__annotations__", {}):
                assert f"| `{field}` |" in section, f"{path}.{field}"
        for method, value in vars(what).items() if isinstance(what, type) else ():
            if callable(value) and not isinstance(value, type) and not method.startswith("_"):
                assert f"`{name}.{method}`" in section or f"| `{method}` |" in section, f"{path}.{method}"


# ------------------------------------------------------------------------------------------------------------ pictures

DIAGRAMS = [
    pytest.param(block, id=f"{path.stem}-{number}")
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for number, block in enumerate(re.findall(r"^```mermaid\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", DIAGRAMS)
def test_every_diagram_is_drawn_with_all_its_words_and_no_box_on_another(block: str) -> None:
    picture = drawn(block)
    shown = " ".join(re.findall(r"<text[^>]*>(.*?)</text>", picture))
    labels = re.findall(r'\["(.*?)"\]', block) + re.findall(r'\|"(.*?)"\|', block) + re.findall(r"--> \w+: (.*)", block)
    for word in " ".join(labels).replace("<br>", " ").split():
        assert word in shown
    boxes = [
        tuple(map(float, numbers))
        for numbers in re.findall(r'<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', picture)
    ]
    for i, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[i + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_a_line_of_a_diagram_that_is_not_understood_is_an_error() -> None:
    with pytest.raises(ValueError, match="not understood: 'a ==> b'"):
        drawn('flowchart LR\n    a["a"]\n    a ==> b')


def test_a_layout_goes_forward_except_where_a_cycle_closes() -> None:
    size = (10.0, 10.0)
    plan = lay_out(dict.fromkeys("abc", size), [("a", "b", size), ("b", "c", size), ("c", "a", size)], gap=5, apart=5)
    assert plan.boxes["a"].at < plan.boxes["b"].at < plan.boxes["c"].at
    assert plan.paths[2][0] is plan.boxes["c"]
    assert plan.paths[2][-1] is plan.boxes["a"]


# ------------------------------------------------------------------------------------------------------------ the site


def _pages(entry: object) -> list[str]:
    if isinstance(entry, dict):
        return [page for part in entry.values() for page in _pages(part)]
    return [page for part in entry for page in _pages(part)] if isinstance(entry, list) else [str(entry)]


def test_the_navigation_lists_every_example_plugin_and_decision_once() -> None:
    nav = [{"Home": "index.md"}, *({title: []} for title in ("Examples", "Plugins", "Decisions"))]
    listed = _pages(completed(nav, ROOT))
    expected = ["index.md"]
    expected += [f"gallery/{path.parent.name}.md" for path in ROOT.glob("examples/*/README.md")]
    expected += [f"plugins/{path.parts[-3]}/{path.parts[-2]}.md" for path in ROOT.glob("plugins/*/*/README.md")]
    expected += [f"decisions/{path.name}" for path in ROOT.glob("docs/decisions/*.md")]
    assert sorted(listed) == sorted(expected)


def test_an_example_that_the_gallery_lacks_and_a_new_group_of_plugins_come_last(tmp_path: Path) -> None:
    for path in ("examples/a", "examples/z", "plugins/workloads/w", "plugins/robots/r"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "README.md").write_text("# any\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/gallery.md").write_text(
        "# Examples\n\n## The last letter\n\nSome text. [More](../examples/z/README.md)\n"
    )
    assert examples(tmp_path) == [{"The last letter": "gallery/z.md"}, {"a": "gallery/a.md"}]
    assert [next(iter(group)) for group in plugins(tmp_path)] == ["Workloads", "Robots"]  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_a_page_for_every_document_and_every_plugin(site: Path) -> None:
    expected = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    expected |= {Path("index.html"), Path("changelog.html"), Path("contributing.html")}
    expected |= {
        Path("plugins", *path.parts[-3:-1]).with_suffix(".html") for path in (ROOT / "plugins").glob("*/*/README.md")
    }
    assert {path for path in expected if not (site / path).is_file()} == set()
    assert "JobView.lost_with" in (site / "reference/failover.html").read_text()


@pytest.mark.slow
def test_links_between_pages_lead_to_pages_and_headings_that_there_are(site: Path) -> None:
    headings = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in site.rglob("*.html")}
    for page in headings:
        body = page.read_text().partition("<article")[2].partition("</article>")[0]
        for target in re.findall(r'<a [^>]*href="([^":]+)"', body):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in headings.get(there, {anchor}), f"{page.name}: {target}"


@pytest.mark.slow
def test_a_readers_browser_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        fetched = re.findall(r'<(?:script|img|iframe)\b[^>]*\bsrc="?(https?:[^">\s]*)', text)
        fetched += re.findall(r'<link\b[^>]*\brel="?(?:stylesheet|preconnect)"?[^>]*href="?(https?:[^">\s]*)', text)
        assert not fetched, page
        assert 'class="mermaid"' not in text, page
