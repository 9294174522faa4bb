"""The roles `tasks` and `environment` check what an environment returns. The error names method, value and remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.service import CallError
from rolemesh.errors import PluginError
from rolemesh_agents import Environment, Observation, Outcome, Reward, Start, Task, Tool, ToolCall, ToolEpisode, tool
from rolemesh_agents.conversations.sampling import as_turn, sample_turn
from rolemesh_agents.episodes.answers import as_observation, as_outcome, as_reward, as_start
from rolemesh_agents.errors import BreachError, ConversationFailedError
from rolemesh_agents.workloads.deck import Deck, place
from rolemesh_agents.workloads.tasks import TasksOptions
from rolemesh_runtime.breaches import ServiceBreach

USER = {"role": "user", "content": "hello"}
SUMS = {"use": "sums"}
ADD = Tool("add", "", {"type": "object"})


class Sums(Environment):
    """Returns what a test wants to see refused."""

    def __init__(self, size: Any = 8, task: Callable[[int], Any] = lambda number: []) -> None:
        self._size, self._task = size, task

    def size(self, split: str) -> Any:
        return self._size

    def task(self, split: str, number: int, seed: int) -> Any:
        return self._task(number)

    def episode(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("size", [-1, 8.0, "8", [8]])
def test_a_size_that_is_no_count_is_refused(size: Any) -> None:
    with pytest.raises(PluginError, match=r"sums has .* as the size of the split train\n.*from 0 on, or None"):
        Deck(Sums(size), "sums", 0).size("train")


@pytest.mark.parametrize(("size", "found"), [(None, None), (0, 0), (np.int64(7), 7), (10**15, 10**15)])
def test_a_size_may_be_any_count(size: Any, found: int | None) -> None:
    assert Deck(Sums(size), "sums", 0).size("train") == found


@pytest.mark.parametrize(("task", "message"), [(lambda number: np.arange(3), "no JSON value")])
def test_a_task_that_breaks_the_contract_is_refused(task: Callable[[int], Any], message: str) -> None:
    with pytest.raises(PluginError, match=f"sums returned for task 3 of the split train .*{message}"):
        Deck(Sums(8, task), "sums", 0).task("train", 3)


def test_an_environment_that_returns_a_task_as_before_works_and_a_warning_has_the_new_line() -> None:
    with pytest.warns(FutureWarning, match="return its data alone from Environment.task: return data"):
        found = Deck(Sums(8, lambda number: Task(number, [number])), "sums", 0).task("train", 3)
    assert found == {"number": 3, "data": [3], "split": "train"}


@given(st.integers(1, 300), st.binary(min_size=1, max_size=16))
def test_the_computed_order_holds_each_task_once(size: int, key: bytes) -> None:
    assert sorted(place(at, size, key) for at in range(size)) == list(range(size))


def test_the_computed_order_of_many_tasks_looks_random() -> None:
    size = 10**12
    found = np.array([place(at, size, b"epoch 0") for at in range(2000)]) / size
    assert abs(found.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.1
    assert [place(at, size, b"epoch 1") for at in range(3)] != [place(at, size, b"epoch 0") for at in range(3)]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([USER], "Episode.reset returned list instead of Start"),
        (Start([{"content": "hello"}]), "without a role"),
        (Start([{"role": "user"}]), "a message of user whose content is None instead of text"),
        (Start([{"role": "user", "content": [{"type": "image_url"}]}]), "user with image_url; .* has text only"),
        (Start([USER], [ADD, ADD]), "2 tools with the name 'add'"),
        (Start([USER], ["add"]), "in Start.tools str instead of Tool"),
    ],
)
def test_a_start_that_breaks_the_contract_is_refused(start: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        as_start(start)


@pytest.mark.parametrize(("role", "text"), [("user", "one ?\ntwo"), ("assistant", "one ?two")])
def test_text_in_parts_becomes_one_text_as_in_vllms_server(role: str, text: str) -> None:
    """Also: lone surrogates become question marks."""
    parts = [{"type": "text", "text": each} for each in ("one \ud800", "", "two")]
    assert as_start(Start([{"role": role, "content": parts}]))["messages"][0]["content"] == text


@pytest.mark.parametrize(
    ("answer", "found", "message"),
    [
        (lambda found: as_observation(found, 100), Observation(3), "content is int instead of text"),  # type: ignore[arg-type]
        (lambda found: as_observation(found, 100), Observation("3", "no"), "done is 'no' instead of True or False"),  # type: ignore[arg-type]
        (lambda found: as_observation(found, 100), None, "Episode.call returned None instead of Observation"),
        (as_outcome, Outcome([{"role": "user", "content": 3}]), "content is int instead of text"),
        (as_reward, 1.0, "Episode.reward returned float instead of Reward"),
        (as_reward, Reward("1.0"), "Reward.value is '1.0', not a number"),  # type: ignore[arg-type]
        (as_reward, Reward(1.0, {"p": "high"}), "is 'high', not a number"),  # type: ignore[dict-item]
        (as_reward, Reward(1.0, success="yes"), "success is 'yes' instead of True or False"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_that_breaks_the_contract_is_refused(answer: Callable[[Any], Any], found: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        answer(found)


def test_numbers_and_truths_of_numpy_are_taken() -> None:
    reward = as_reward(Reward(np.float32(0.5), {"p": np.int64(1)}, success=np.bool_(True)))  # type: ignore[arg-type, dict-item]
    assert reward == {"value": 0.5, "parts": {"p": 1.0}, "success": True}


TURN = {"ids": [5, 6], "logprobs": [-1.0, 0.0], "versions": [3, 3], "finish": "stop"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids": [5, 2**40]}, f"the token {2**40}"),
        ({"ids": [-1, 5]}, "the token -1"),
        ({"ids": [5.0, 6.5]}, "not a row of whole numbers"),
        ({"ids": [[5, 6]]}, "not a row of whole numbers"),
        ({"ids": [5]}, "a turn of 1 tokens, 2 log-probabilities, 2 versions"),
        ({"ids": [5, 6, 7, 8], "logprobs": [0.0] * 4, "versions": [3] * 4}, "4 tokens, 3 were asked for"),
        ({"versions": ["a", "b"]}, "not a row of whole numbers"),
        ({"logprobs": ["a", "b"]}, "log-probabilities that are not a row of numbers"),
        ({"logprobs": [0.0, float("nan")]}, "a log-probability that is not finite"),
        ({"logprobs": [0.0, 0.7]}, "the log-probability 0.7, which is above 0"),
        ({"finish": "abort"}, "the finish 'abort' instead of stop or length"),
    ],
)
def test_a_turn_that_breaks_the_contract_is_a_failure(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BreachError, match=f"role rollout returned .*{message}"):
        as_turn("rollout", TURN | changed, 3)


def test_a_turn_without_all_its_parts_is_a_failure() -> None:
    with pytest.raises(BreachError, match="returned a turn without logprobs, versions"):
        as_turn("rollout", {"ids": [], "finish": "stop"}, 3)
    with pytest.raises(BreachError, match="returned NoneType instead of a turn"):
        as_turn("rollout", None, 3)
    assert as_turn("rollout", TURN, 3).ids.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (
            ServiceBreach("rollout/0.sample has broken its contract: no", kind="misbehaved", remedy="do"),
            BreachError,
            "^rollout/0.sample has broken its contract: no\n.*do$",
        ),
        (CallError("it is full"), ConversationFailedError, "^role rollout failed: it is full$"),
    ],
)
def test_a_broken_contract_of_a_called_service_is_a_breach_that_names_the_service(
    raised: CallError, kind: type[ConversationFailedError], message: str
) -> None:
    class Context:
        async def call(self, *args: Any, **kwargs: Any) -> None:
            raise raised

    context: Any = Context()
    with pytest.raises(ConversationFailedError, match=message) as caught:
        asyncio.run(sample_turn(context, "rollout", np.zeros(1, np.int32), {}, None))
    assert type(caught.value) is kind
    assert len(as_turn("rollout", {"ids": [], "logprobs": [], "versions": [], "finish": "length"}, 3).ids) == 0


class Untyped(ToolEpisode):
    @tool
    def look(self, what) -> str:  # type: ignore[no-untyped-def]
        return ""


class Open(ToolEpisode):
    @tool
    def look(self, *what: str) -> str:
        return ""


class Array(ToolEpisode):
    @tool
    def look(self, what: np.ndarray) -> str:  # type: ignore[type-arg]
        return ""


class Named(ToolEpisode):
    def reset(self, task: Task, seed: int) -> Start:
        return Start([], self.tools())

    def reward(self) -> Reward:
        return Reward(0.0)

    @tool
    def look(
        self, _at: str, model_config: int, schema: dict[str, int], copy: bool = True, *, model_dump: int = 3
    ) -> str:
        return f"{_at} {model_config} {schema} {copy} {model_dump}"


def test_a_parameter_may_have_a_name_that_pydantic_uses_itself(recwarn: pytest.WarningsRecorder) -> None:
    (found,) = Named.tools()
    assert [*found.parameters["properties"]] == ["_at", "model_config", "schema", "copy", "model_dump"]
    assert found.parameters["required"] == ["_at", "model_config", "schema"]
    episode = Named()
    call = ToolCall("look", {"_at": "a", "model_config": 2, "schema": {"x": 1}, "copy": False})
    assert episode.call(call).content == "a 2 {'x': 1} False 3"
    assert "_at: Field required" in episode.call(ToolCall("look", {})).content
    assert not recwarn.list


@pytest.mark.parametrize(
    ("episode", "message"),
    [
        (Untyped, "Untyped.look has the parameter 'what' without a type"),
        (Open, r"Open.look takes \*what: str"),
        (Array, "Array.look has a parameter that no JSON schema describes"),
    ],
)
def test_a_tool_whose_arguments_no_schema_describes_is_refused(episode: type[ToolEpisode], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        episode.tools()


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"roles__agent__options__rollout": "engine"}, "the job has no role 'engine'"),
        ({"plugins__environments": []}, "write plugins: {environments: [{use: 'NAME'}]}"),
        ({"plugins__environments": [SUMS, SUMS]}, "→ name one: environment: 'sums#1'"),
        (
            {
                "plugins__environments": [SUMS, SUMS],
                "roles__tasks__options__environment": "sums#1",
                "roles__environment__options": {"environment": "sums#2"},
            },
            "role tasks deals out tasks of sums#1, and environment runs sums#2",
        ),
        ({"roles__agent__options__harness": "long"}, "lists no 'long' under plugins.harnesses"),
    ],
)
def test_roles_that_do_not_fit_together_are_refused_before_the_start(
    agent_job: Callable[..., Any], places: dict[str, Any], message: str
) -> None:
    done = agent_job().set(**places).run("--backend", "local")
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_the_samples_of_the_role_tasks_are_left_out_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="leave it out here"):
        assert TasksOptions.model_validate({"groups": 2, "samples": 4}).groups == 2
