"""Reads the texts, tables and pictures of an HTML page, and numbers as a reader sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

__all__ = ["Element", "number", "page"]

EMPTY = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"))
CLOSED_BY = {"option": ("option",), "dd": ("dt", "dd"), "dt": ("dt", "dd")}
UNITS = {
    "": 1.0, "%": 0.01, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0,
    "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "steps/s": 1.0, "ms per step": 1e-3, "s per step": 1.0,
    "min per step": 60.0,
}  # fmt: skip
NUMBER = re.compile(r"^([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(%|[A-Za-z/]*(?: per step)?)$")


class Element:
    """An element with its children: other elements and texts."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        """All texts within it, with single blanks."""
        return " ".join("".join(self._texts()).split())

    @property
    def label(self) -> str:
        """The texts of an element that a page does not show, such as a title."""
        return "".join(each for each in self.children if isinstance(each, str))

    def _texts(self) -> Iterator[str]:
        for each in self.children:
            if isinstance(each, str):
                yield each
            elif each.tag != "title" or self.tag == "head":
                yield from each._texts()
                yield "\n" if each.tag in ("p", "div", "tr", "td", "br", "li", "dd", "dt", "text", "figcaption") else ""

    def all(self, tag: str, name: str = "") -> list[Element]:
        """Return the elements within it that have a tag, and a class if it is named."""
        inner = [each for each in self.children if isinstance(each, Element)]
        found: list[Element] = []
        for each in inner:
            fits = each.tag == tag and (not name or name in each.attributes.get("class", "").split())
            found += [each, *each.all(tag, name)] if fits else each.all(tag, name)
        return found

    def table(self, at: int = 0) -> list[dict[str, str]]:
        """Return the lines of a table, by its heads."""
        tables = self.all("table")
        if len(tables) <= at:
            return []
        heads = [each.text for each in tables[at].all("th")]
        rows = [[each.text for each in row.all("td")] for row in tables[at].all("tr")]
        return [dict(zip(heads, row, strict=True)) for row in rows if row]

    def pairs(self) -> dict[str, str]:
        """Return the texts of ``dd`` by those of ``dt``."""
        return dict(zip((each.text for each in self.all("dt")), (each.text for each in self.all("dd")), strict=True))

    def section(self, title: str) -> Element:
        """Return what follows a heading, up to the next one of its level, within the same parent."""
        for parent in [self, *self.every()]:
            inner = [each for each in parent.children if isinstance(each, Element)]
            for head in inner:
                if re.fullmatch("h[1-3]", head.tag) and head.text == title:
                    found, within = Element("section", {}), False
                    for each in parent.children:
                        if within and isinstance(each, Element) and each.tag == head.tag:
                            break
                        found.children += [each] if within else []
                        within = within or each is head
                    return found
        raise AssertionError(f"the page has no heading {title!r}")

    def every(self) -> Iterator[Element]:
        for each in self.children:
            if isinstance(each, Element):
                yield each
                yield from each.every()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        while self.open[-1].tag in CLOSED_BY.get(tag, ()):
            self.open.pop()
        found = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(found)
        if tag not in EMPTY:
            self.open.append(found)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if any(each.tag == tag for each in self.open):
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def page(text: str) -> Element:
    """Return the content of a page."""
    reader = _Reader()
    reader.feed(text)
    return reader.open[0]


def number(text: str) -> tuple[float, float]:
    """Return a number that a reader sees, and by how much it may differ from the exact one: half of its last digit.

    A number without a point may have lost zeros behind it, as `%g` writes it: then three digits count.
    """
    match = NUMBER.match(text.strip())
    assert match, f"{text!r} is no number"
    digits, unit = match[1].replace(",", ""), match[2]
    value, scale = float(digits), UNITS[unit]
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2])
    half = 0.5001 * 10.0 ** (int(exponent or 0) - decimals)
    if not decimals and unit != "%":
        half = min(half, 0.00501 * abs(value))
    return value * scale, half * scale
