"""Finds patterns in prose and test names that readers have to read twice: ``python -m tests.language [PATH...]``.

It prints each finding below the paths; without paths, in all of the repository. The exit code is 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.prose import ROOT, Text, documents, in_document, in_python

__all__ = ["RULES", "Finding", "Rule", "check", "findings"]

CODE = ("core", "plugins", "examples", "benchmarks", "tests", "docs/generator")


class Rule(NamedTuple):
    """A pattern in prose, the kinds of text that it is for (see `tests.prose.Text`), and what to write instead."""

    name: str
    pattern: re.Pattern[str]
    kinds: tuple[str, ...]
    remedy: str


DOCSTRINGS = ("docstring", "attribute")
ALL = ("document", *DOCSTRINGS)
NAMES = (*ALL, "test")


def _rule(name: str, pattern: str, kinds: tuple[str, ...], remedy: str, flags: int = 0) -> Rule:
    return Rule(name, re.compile(pattern, flags), kinds, remedy)


OLD_WORDS = {
    r"haunt\w*|ghosts?": "orphan message",
    r"out-log": "send log",
    r"nurser(?:y|ies)": "zygote pool",
    r"keepers?": "resource guard",
    r"errands?": "background tasks",
    r"rous(?:e|es|ed|ing)": "revive",
    r"slay|slays|slain": "kill",
    r"rungs?": "level",
    r"in safety": "durable",
    r"job ?outline|outlines?": "master config",
    r"made whole": "committed",
}
"""Banned word, as a pattern → the standard term of the field."""

RULES = (
    _rule(
        "opening",
        r"\A\s*(?:Who|Whose|Whom|Of|So (?:many|much|long|far)|After so|By|As (?:many|much|long))\b",
        DOCSTRINGS,
        'begin with a noun or a verb: "Number of …", "Return …", "Seconds after which …"',
    ),
    _rule(
        "clause as subject",
        r"(?:\A\s*|(?<=[.;:!?] )|(?<=\n))(?:Whoever|Whatever|Who|What|Whom|Where)\b(?![^.?]*\?)",
        ALL,
        'name the component: "a rank that …", "the caller", "the master"',
    ),
    _rule(
        "clause as name",
        r"\A(?:whoever|whatever|who|what|whom|whose|where|of|there)\b",
        ("test",),
        'begin with the thing that the test is about: "a_killed_rank_…", "the_master_…"',
    ),
    _rule("whoever", r"\b[Ww]hoever\b", NAMES, "name the component"),
    _rule(
        "continues elsewhere", r"[,:]\s*\Z", ("attribute",), "end the sentence: help tools show this docstring alone"
    ),
    _rule("misses", r"\bmisses\b", NAMES, '"is short of", or "lacks"'),
    _rule("anew", r"\banew\b", NAMES, '"again", or "from scratch"', re.IGNORECASE),
    _rule(
        "so many",
        r"\bso (?:many|long)\b(?! (?:\w+ )?(?:as|that)\b)",
        ALL,
        "name what is counted, with its unit",
        re.IGNORECASE,
    ),
    _rule(
        "hidden actor",
        r"\b(?:is|are|was|were|be|been|being) (?:(?:then|also|not|only|never|already) )?(?:told|said|asked|heard)\b",
        ALL,
        '"the master sends", "the rank reports", "the agent requests"',
    ),
    *(_rule("old word", rf"\b(?:{pattern})\b", ALL, f'"{term}"', re.IGNORECASE) for pattern, term in OLD_WORDS.items()),
)


class Finding(NamedTuple):
    """One place in a file, relative to the repository, that a rule matches."""

    path: str
    line: int
    rule: Rule
    shown: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule.name}: {self.shown!r}; write {self.rule.remedy}"


def check(text: Text, path: str = "") -> Iterator[Finding]:
    """Yield what the rules find in a text. Code spans and quotations are not prose."""
    words = re.sub(r"``[^`]*``|`[^`]*`", lambda found: "x" * len(found[0]), text.words)
    if words.startswith("#"):
        return  # a heading may ask a question
    words = re.sub(r'"[^"\n]*"', lambda found: "x" * len(found[0]), words)
    for rule in RULES:
        if text.kind in rule.kinds:
            for found in rule.pattern.finditer(words):
                line = text.line + words.count("\n", 0, found.start() + len(found[0]) - len(found[0].lstrip()))
                yield Finding(path, line, rule, " ".join(text.words[found.start() : found.end() + 40].split()))


def _files() -> list[Path]:
    code = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    readmes = sorted(ROOT.glob("plugins/*/*/README.md")) + sorted(ROOT.glob("examples/*/README.md"))
    return [*code, *documents(), *readmes]


def findings(files: list[Path]) -> Iterator[Finding]:
    """Yield what the rules find in `files`."""
    skipped = {"_templates", "build", "dist", "__pycache__"}
    for path in files:
        relative = path.relative_to(ROOT)
        if skipped & set(relative.parts) or path.name == "test_language.py":
            continue
        text = path.read_text(encoding="utf-8")
        for each in in_python(text) if path.suffix == ".py" else in_document(text):
            yield from check(each, relative.as_posix())


def main(arguments: list[str]) -> int:
    """See the module."""
    paths = [Path(each).resolve() for each in arguments]
    chosen = [each for each in _files() if not paths or any(each == path or path in each.parents for path in paths)]
    found = list(findings(chosen))
    print(*found, f"prose: {len(found)} findings", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
