"""The viewer and the report draw in the same colours, on which text can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import rolemesh_view
from rolemesh_durable.api.extensions import PHASES as ENGINE_PHASES
from rolemesh_facts.labels import meaning
from rolemesh_facts.palette import DARK, LIGHT, PALE, PHASES, css, phase_of
from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp
from rolemesh_report.style import STYLE
from rolemesh_view import application
from rolemesh_view.guard import Access
from rolemesh_view.viewed import Runs

STATIC = Path(rolemesh_view.__file__).parent / "static"


def test_each_phase_that_a_rank_records_has_a_colour_and_a_meaning_of_its_own() -> None:
    assert {*ENGINE_PHASES.values(), "memory", "engine", "starting", "setup", "restoring"} == set(PHASES)
    for colours in (LIGHT, DARK):
        assert len(set(colours.values())) == len(PHASES)
    assert len({meaning(phase) for phase in PHASES}) == len(PHASES)


def test_text_on_each_colour_has_the_contrast_of_wcag() -> None:
    light, dark = (dict(re.findall(r"--([a-z-]+):(#\w+);", part)) for part in css().split("@media"))
    for colours in (light, light | dark):
        for phase in PHASES:
            lighter, darker = sorted((luminance(colours[phase]), luminance(colours[f"on-{phase}"])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, phase


def test_strong_colours_lines_and_the_edges_of_inputs_stand_out_from_the_page() -> None:
    """WCAG 2.2, 1.4.11: parts of a picture and of controls have a contrast of 3 to what is beside them."""
    style, plots = (STATIC / "style.css").read_text(), (STATIC / "metrics.js").read_text()
    pages = dict(zip(("light", "dark"), re.findall(r"--bg:(#\w+)", style), strict=True)) | {"light": "#ffffff"}
    lines = re.findall(r'"(#\w{6})"', plots.split("COLOURS = [")[1].split("]")[0])
    borders = dict(zip(pages, re.findall(r"--border:(#\w+)", style), strict=True))
    for page, colours in (("light", LIGHT), ("dark", DARK)):
        strong = [colour for phase, colour in colours.items() if phase not in PALE]
        for colour in [*strong, *lines, borders[page]]:
            lighter, darker = sorted((luminance(colour), luminance(pages[page])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 3, (page, colour)


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_viewer_and_the_report_have_these_colours_and_no_others(tmp_path: Path) -> None:
    client = TestClient(
        application(Runs(tmp_path), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
    )
    own, shared = client.get("/static/style.css").text, client.get("/palette.css").text
    assert shared == css("fill-")
    assert shared in STYLE
    defined = re.compile(rf"--(?:on-)?(?:{'|'.join(PHASES)}):")
    assert not defined.search(own)
    assert len(defined.findall(STYLE)) == len(defined.findall(shared))


@pytest.mark.parametrize(
    ("role", "name", "phase"),
    [
        ("user", "edge 0", "waiting"),
        ("maker", "edge 0", "blocked"),
        ("user", "edge 7", "waiting"),
        ("user", "serving", "serving"),
        ("user", "unheard of", "engine"),
    ],
)
def test_a_wait_at_an_edge_has_the_colour_of_the_side_that_waits(role: str, name: str, phase: str) -> None:
    ops, edge = (FlowOp(0, "maker", "maker.make"), FlowOp(1, "user", "user.use")), FlowEdge(0, 0, 1, "batch", "split")
    flow = FlowFile("f", ops, (edge,), {"maker": 1, "user": 1}, {})
    assert phase_of(flow, role, name) == phase
