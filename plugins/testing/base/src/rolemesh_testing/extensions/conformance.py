"""Conformance of an extension: it overrides hooks that exist, and lives in a rank that calls all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from rolemesh.errors import nearest
from rolemesh_durable.api.extensions import AgentPart, Extension, RankExtension
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.extensions.lone_agent import LoneAgent
from rolemesh_testing.extensions.lone_rank import LoneRank, live

__all__ = ["ExtensionConformance"]


class ExtensionConformance(PluginConformance):
    """Subclass it with `plugin` and `options`. The extension runs in a rank without a process."""

    kind = "extensions"

    @pytest.fixture
    def extension(self, cls: type[Extension], checked_options: BaseModel, request: pytest.FixtureRequest) -> Extension:
        """The extension."""
        return needed(request, "it cannot be created", lambda: cls(checked_options))

    def test_it_has_a_hook(self, cls: type[Extension]) -> None:
        """Without a hook, the engine never calls it. A misspelled hook is none."""
        hooks = [name for name, value in vars(Extension).items() if callable(value) and not name.startswith("_")]
        if any(getattr(cls, hook) is not getattr(Extension, hook) for hook in hooks):
            return
        public = [name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")]
        raise AssertionError(f"it overrides none of {', '.join(hooks)}; {nearest((public or ['hook'])[0], hooks)}")

    def test_its_part_is_a_rank_extension(self, extension: Extension) -> None:
        """`in_rank` returns a `RankExtension`, or None if the extension does nothing in this rank."""
        part = _lived(extension, LoneRank())
        assert part is None or isinstance(part, RankExtension), f"in_rank() returned {part!r}"

    def test_its_part_lives_through_a_job(self, extension: Extension) -> None:
        """The rank calls each hook, and `close` twice. An exception of a hook ends the job."""
        try:
            live(extension, LoneRank())
        except Exception as error:
            raise AssertionError(f"a hook raised {type(error).__name__}: {error}") from error

    def test_its_part_in_an_agent_lives_until_the_job_is_over(self, extension: Extension, tmp_path: Path) -> None:
        """`in_agent` returns an `AgentPart` or None. An exception of a hook ends the agent."""
        try:
            part = LoneAgent(tmp_path).live(extension)
        except Exception as error:
            raise AssertionError(f"a hook raised {type(error).__name__}: {error}") from error
        assert part is None or isinstance(part, AgentPart), f"in_agent() returned {part!r}"

    def test_its_messages_have_a_tag(self, extension: Extension, tmp_path: Path) -> None:
        """The engine knows the struct of a message or of a report by its tag: ``class Ask(Struct, tag="me.ask")``."""
        agent = LoneAgent(tmp_path)
        try:
            agent.live(extension)
        except Exception:
            return  # another test reports it
        assert agent.untagged == [], f"{agent.untagged[0].__name__} has no tag"

    def test_its_records_are_json(self, extension: Extension) -> None:
        """Records are a part of ``metrics.jsonl``."""
        rank = LoneRank()
        _lived(extension, rank)
        try:
            json.dumps(rank.recorded, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"it records what JSON cannot hold: {error}") from error


def _lived(extension: Extension, rank: LoneRank) -> object:
    """Return the value of `live`; None if a hook raises, which another test reports."""
    try:
        return live(extension, rank)
    except Exception:
        return None
