"""Jobs with agents: conversations end as they should, whatever the model and the tools do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


def counts(job: Any) -> Counter[str]:
    """Return the sums of the counted metrics over all steps."""
    found: Counter[str] = Counter()
    for line in job.lines():
        found.update({name: value for name, value in line.items() if isinstance(value, int | float)})
    return found


def test_a_conversation_through_kills_is_the_same_and_no_token_is_sampled_twice(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=4, numbers=4, sleep=0.02)
    job.set(roles__agent__world_size=2, roles__environment__world_size=2)
    job.set(engine__options__snapshots={"every": 1})
    done = job.run("--chaos", "kills=6,seed=2", "--chaos-compare")
    print(done.stdout[-3000:], done.stderr[-2000:])
    assert "exactly as the undisturbed one" in done.stdout
    assert done.returncode == 0, done.stderr + done.stdout
    print(job.lines()[-1])
    print(counts(job))
