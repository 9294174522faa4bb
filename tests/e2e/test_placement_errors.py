"""Wrong placements on the real command line: exit code 2, the line to change, and the numbers."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.stranger import Stranger

HEAD = """name: odd
flow: flow.py:pairs
steps: 3
roles:
  maker: {use: function, world_size: 4, options: {target: "roles.py:Maker"}}
  taker: {use: function, world_size: 2, options: {target: "roles.py:Taker"}}
engine: {options: {stop_grace_s: 2}}
"""
"""Lines 1 to 7; what a test adds begins on line 8."""

NODES = "2x(cpu=4,gpu=1,label.rack=a)"
TOO_SMALL = "2x(cpu=2,gpu=1,label.rack=a)"


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


def refused(job: Stranger, verb: str, nodes: str) -> str:
    """Return the error of `verb`, which must end with exit code 2 and start nothing."""
    where = {"validate": (), "plan": ("--nodes", nodes), "run": ("--backend", "local", "--nodes", nodes)}
    done = job.cli(verb, "job.yaml", *where[verb])
    assert done.returncode == 2, f"{verb}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr
    assert not (job.folder / "runs").exists()
    return done.stderr


WITH_NODES = ("plan", "run")
EVERYWHERE = ("validate", "plan", "run")


@dataclass(frozen=True)
class Case:
    """The addition to `HEAD`, the line that the message names, words of the message, and the verbs to try."""

    placement: str
    line: int
    words: tuple[str, ...]
    verbs: tuple[str, ...] = ("plan",)
    nodes: str = NODES


CASES = {
    "a group with an unknown role": Case(
        """
        placement:
          use: collocation
          options:
            groups:
              - [maker, takr]
        """,
        12,
        ("[maker, takr]", "unknown role 'takr'", "did you mean 'taker'?", "roles: maker, taker"),
        verbs=WITH_NODES,
    ),
    "an unknown role kept apart": Case(
        """
        placement:
          use: separation
          options:
            apart:
              - [maker, judge]
        """,
        12,
        ("no role 'judge'", "roles: maker, taker"),
    ),
    "an unknown role in a sub-graph": Case(
        """
        placement:
          use: subgraph
          options:
            roles:
              - maker
              - takr
        """,
        13,
        ("no role 'takr'", "did you mean 'taker'?"),
    ),
    "shares that are more than a slot": Case(
        """
        placement:
          use: collocation
          options:
            groups:
              - roles: [maker, taker]
                shares: {maker: 0.75, taker: 0.5}
        """,
        12,
        ("the shares are maker 0.75 + taker 0.5 = 1.25", "a slot has 1"),
        verbs=EVERYWHERE,
    ),
    "one share that is more than a slot": Case(
        """
        placement:
          use: collocation
          options:
            groups:
              - roles: [maker, taker]
                shares:
                  maker: 0.5
                  taker: 1.5
        """,
        15,
        ("shares.taker", "less than or equal to 1"),
        verbs=("validate",),
    ),
    "a ratio that does not divide": Case(
        """
        placement:
          use: collocation
          options:
            groups:
              - roles: [maker, taker]
                ratio: {maker: 3, taker: 1}
        """,
        13,
        ("maker has 4, taker has 2", "no multiple of the ratio (maker 3, taker 1)"),
        verbs=WITH_NODES,
    ),
    "a ratio of prefill to decode that does not divide": Case(
        """
        placement:
          use: pd
          options: {prefill: maker,
            decode: taker,
            ratio: "1:2"}
        """,
        12,
        ("maker has 4 ranks and taker 2", "no units of 1:2"),
    ),
    "more ranks than slots": Case(
        "placement: {use: pack}",
        6,
        (
            "roles.taker: 2 ranks (0, 1) cannot be placed",
            "needs cpu 1",
            "is 0 (node-0)",
            "the cluster is short of 2 cpu",
        ),
        verbs=WITH_NODES,
        nodes=TOO_SMALL,
    ),
    "more ranks of a role than nodes that it may be on": Case(
        """
        placement:
          use: separation
          options: {spread: {maker: {over: node, most: 1}}}
        """,
        5,
        ("roles.maker: 2 ranks (2, 3) cannot be placed", "separation allows 1 rank of maker per node"),
    ),
    "a label that nobody has": Case(
        """
        placement:
          use: separation
          options:
            nodes:
              taker: {rack: a}
              maker: {
                zone: north}
        """,
        14,
        ("no node has a label 'zone'", "known: rack"),
        verbs=WITH_NODES,
    ),
    "a value of a label that nobody has": Case(
        """
        placement:
          use: separation
          options:
            nodes: {maker: {rack: b}}
        """,
        11,
        ("maker needs nodes with rack=b", "rack is one of a"),
    ),
    "a label that nobody has, to be spread over": Case(
        """
        placement:
          use: separation
          options:
            spread:
              maker: label.zone
        """,
        12,
        ("no node has a label 'zone'",),
    ),
    "a label that nobody has, to be near by": Case(
        """
        placement:
          use: pd
          options: {prefill: maker, decode: taker,
            near: label.zone}
        """,
        11,
        ("no node has a label 'zone'", "known: rack"),
    ),
    "a strategy that forbids what the one before has done": Case(
        """
        placement:
          - use: collocation
            options: {groups: [[maker, taker]]}
          - use: separation
            options: {apart: [[maker, taker]]}
        """,
        11,
        ("'separation' demands", "keeps maker apart from taker", "maker/3 is on node-0 (collocation"),
        verbs=WITH_NODES,
    ),
    "a strategy that the one before leaves no place": Case(
        """
        placement:
          - use: separation
            options: {apart: [[maker, taker]]}
          - use: collocation
            options: {groups: [[maker, taker]]}
        """,
        5,
        ("collocation: maker/0 + taker/0 share a slot", "separation keeps maker apart from taker (by node)"),
    ),
    "a role that two strategies place": Case(
        """
        placement:
          - use: pd
            options: {prefill: maker, decode: taker}
          - use: collocation
            options:
              groups:
                - [maker, taker]
        """,
        14,
        ("collocation: role 'maker' of [maker, taker] was placed by pd",),
    ),
    "a decode role without its prefill role": Case(
        """
        placement:
          use: pd
          options:
            decode: taker
            prefill: prefill
        """,
        12,
        ("no role 'prefill', the prefill pool", "roles: maker, taker"),
        verbs=WITH_NODES,
    ),
    "a prefill role without a decode role": Case(
        """
        placement:
          use: pd
          options: {prefill: maker}
        """,
        10,
        ("'decode' is missing",),
        verbs=("validate",),
    ),
}


@pytest.mark.parametrize(
    ("verb", "case"),
    [pytest.param(verb, case, id=f"{name} ({verb})") for name, case in CASES.items() for verb in case.verbs],
)
def test_the_error_for_an_impossible_placement_has_its_line_and_the_numbers(
    stranger: Stranger, verb: str, case: Case
) -> None:
    said = refused(stranger.write(job=HEAD + textwrap.dedent(case.placement).lstrip("\n")), verb, case.nodes)
    assert said.startswith(f"error: job.yaml:{case.line}: "), said
    for word in case.words:
        assert word in said, said
