"""Values of ``--chaos``, and the errors of wrong ones."""

from __future__ import annotations

import pytest

from rolemesh.errors import JobFileError
from rolemesh_rehearsal.spec import Rehearsal, parse


def test_targets_are_separated_by_commas_as_everything_is() -> None:
    assert parse("kills=10,seed=7,targets=rank,agent,master") == Rehearsal(10, 7, ("rank", "agent", "master"))


def test_targets_may_name_the_failing_rank() -> None:
    found = parse("kills=2,targets=agent/1,trainer/*,stop:box/0,node:n1,zygote:node-0,disk,child:box/*")
    assert found.kinds == {"rank", "stop", "node", "zygote", "disk", "child"}
    assert found.ranks == [("agent", 1), ("trainer", None), ("box", 0), ("box", None)]


def test_missing_options_have_defaults() -> None:
    assert parse("") == Rehearsal()
    assert parse("targets=node,seed=3") == Rehearsal(seed=3, targets=("node",))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("kils=3", "'kils'"),
        ("kills=many", "whole number"),
        ("targets=rank,mster", "'mster'"),
        ("targets=work/one", "'work/one'"),
        ("targets=master:work/1", "names no process"),
        ("targets=stop:node0", "names no process"),
        ("targets=agent:", "names no process"),
        ("targets=child", "needs the name of the rank"),
        ("targets=child:node0", "names no process"),
    ],
)
def test_a_mistake_is_named(text: str, what: str) -> None:
    with pytest.raises(JobFileError, match=what):
        parse(text)
