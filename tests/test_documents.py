"""The documents' generated parts are current, diagrams are drawn, the site builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.generator.drawing import drawn
from docs.generator.layout import lay_out
from docs.generator.navigation import examples, plugins
from docs.generator.parts import ROOT

# ---------------------------------------------------------------------------------------------------------------- API


# ------------------------------------------------------------------------------------------------------------ pictures


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
