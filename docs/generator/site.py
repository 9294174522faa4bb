"""Hooks of mkdocs: navigation, documents that lie elsewhere in the repository, links between all of them, and pictures.

A document is written for the repository, where its links lead to files. On the site each lies where `site_path` says,
links follow, and a link to a file that is no document becomes plain text.
"""

from __future__ import annotations

import os
import re
import sys
from html import escape, unescape
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.generator.drawing import drawn  # noqa: E402 - mkdocs loads this file without its package
from docs.generator.navigation import completed  # noqa: E402
from docs.generator.parts import ON_THE_SITE  # noqa: E402

OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "examples/*/README.md",
)
PLUGINS = "plugins/*/*/README.md"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"<code>([^\s<]+)</code>")
CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
LONGEST = 28
"""Characters of an option or a name that a line does not break. Longer ones would make tables wide on a phone."""
FENCE = re.compile(r"^(```|~~~).*?^\1[ ]*$", re.MULTILINE | re.DOTALL)


def site_path(path: str) -> str:
    """Return the path of a repository's document on the site, or "" if the site lacks it."""
    parts = PurePosixPath(path).parts
    if parts[0] == "docs":
        return "/".join(parts[1:])
    if path == "README.md":
        return "index.md"
    if path in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        return path.lower()
    if path == "benchmarks/README.md":
        return "benchmarks.md"
    if parts[-1] == "README.md" and parts[0] == "examples":
        return f"gallery/{parts[1]}.md"
    if parts[-1] == "README.md" and parts[0] == "plugins" and len(parts) == 4:
        return f"plugins/{parts[1]}/{parts[2]}.md"
    return ""


def outside() -> list[str]:
    """The documents that do not lie in ``docs/``."""
    found = [path for pattern in (*OUTSIDE, PLUGINS) for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def on_config(config: Any) -> Any:
    """mkdocs asks once: the navigation has every example and plugin."""
    config.nav = completed(config.nav, ROOT)
    return config


def on_files(files: Files, config: Any) -> Files:
    """mkdocs asks once: the documents that lie outside ``docs/``, and the pages of the API, are on the site, too."""
    for path in outside():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, site_path(path), content=text))
    for path, made in ON_THE_SITE.items():
        files.append(File.generated(config, path, content=made()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """mkdocs asks for each page: links as they are on the site, diagrams drawn."""
    source = next((path for path in outside() if site_path(path) == page.file.src_uri), f"docs/{page.file.src_uri}")
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]  # the tabs say the same
    pieces, last = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [_linked(markdown[last : fence.start()], source), _pictured(fence[0])]
        last = fence.end()
    return "".join([*pieces, _linked(markdown[last:], source)])


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """mkdocs asks for each page: short options and names are marked, so that no line breaks them at a hyphen.

    In a cell of a table, code has ``\\|`` for ``|``. GitHub shows that as ``|``, and Python-Markdown as it is.
    """

    def marked(found: re.Match[str]) -> str:
        return found[0].replace("<code>", '<code class="word">') if len(unescape(found[1])) <= LONGEST else found[0]

    return CODE.sub(marked, CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html))


def _linked(text: str, source: str) -> str:
    def moved(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return found[0]
        at = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if (ROOT / at).is_dir() and (ROOT / at / "README.md").is_file():
            at = os.path.normpath(os.path.join(at, "README.md"))
        there = site_path(at)
        if not there:
            return label
        relative = os.path.relpath(there, os.path.dirname(site_path(source)) or ".")
        return f"{image}[{label}]({relative}{'#' + anchor if anchor else ''})"

    return LINK.sub(moved, text)


def _pictured(fence: str) -> str:
    if fence.startswith("```\n") and "┌" in fence:
        return _sketch(fence.removeprefix("```\n").rstrip("`\n"))
    if not fence.startswith("```mermaid"):
        return fence
    return f'<div markdown="0">\n{drawn(fence.removeprefix("```mermaid").rstrip("`"))}\n</div>'


def _sketch(text: str) -> str:
    columns = max(map(len, text.splitlines()))
    return (
        f'<div class="sketch" style="--columns:{columns}" markdown="0">\n'
        f'<pre role="img" aria-label="diagram"><code>{escape(text)}\n</code></pre>\n</div>'
    )
