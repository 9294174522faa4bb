"""The harness before unchanged programs: their turns, rewards and ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import HANG_S

from rolemesh import RankContext
from rolemesh_agents import ConversationFailedError, EndReached, Reward, Start
from rolemesh_gateway import ProcessHarness

PROGRAMS = Path(__file__).parent / "programs"
BODY = '{"model": "m", "messages": [{"role": "user", "content": "go"}]}'
ASK = f"curl -s -H \"x-api-key: $OPENAI_API_KEY\" -d '{BODY}' $OPENAI_BASE_URL/chat/completions"
QUESTION = Start([{"role": "user", "content": "1 + 2 + 4?"}])


CLIENTS = ["openai_chat.py", "openai_responses.py", "anthropic_messages.py", "anthropic_runner.py"]


@pytest.mark.parametrize("program", CLIENTS)
def test_an_unchanged_program_adds_with_a_tool(held, adder, program):
    talk = held(adder, command=["{python}", f"{{base}}/{program}"])
    (used,) = [each for each in talk.samples if each[-1]["role"] == "assistant"]
    assert [each["role"] for each in used] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [each["content"] for each in used if each["role"] == "tool"] == ["3", "7"]
    assert (talk.replies, talk.truncated, talk.reward) == (["The sum is 7."], "", None)


OTHERS = {
    "langchain_chat.py": ("langchain_openai", ["", "stream", "responses", "responses stream"]),
    "openai_agents.py": ("agents", ["", "stream", "chat", "chat stream"]),
    "litellm_chat.py": ("litellm", ["", "stream", "anthropic", "anthropic stream"]),
    "pydantic_ai_agent.py": (
        "pydantic_ai",
        ["openai-chat:x", "openai-responses:x", "anthropic:x", "openai-chat:x stream", "openai-responses:x stream"],
    ),
    "llama_index_agent.py": ("llama_index.llms.openai", [""]),
    "autogen_agent.py": ("autogen_ext.models.openai", ["", "stream"]),
}
"""Programs with libraries that our requirements do not have, the module that each needs, and arguments."""


def python_with(module):
    """The interpreter that PROGRAMS_PYTHON names, or this one, if it has `module`."""
    python = os.environ.get("PROGRAMS_PYTHON", sys.executable)
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
        pytest.skip(f"{python} has no {module}; PROGRAMS_PYTHON names another interpreter")
    return python


@pytest.mark.soak
@pytest.mark.parametrize(("program", "args"), [(name, each) for name, (_, args) in OTHERS.items() for each in args])
def test_a_program_with_a_library_of_others_adds_in_one_sample(held, adder, program, args):
    command = [python_with(OTHERS[program][0]), f"{{base}}/{program}", *args.split()]
    talk = held(adder, command=command, seconds=250)
    (used,) = [each for each in talk.samples if each[-1]["role"] == "assistant"]
    assert [each["content"] for each in used if each["role"] == "tool"] == ["3", "7"]
    assert (talk.replies, talk.truncated) == (["The sum is 7."], "")


@pytest.mark.soak
@pytest.mark.parametrize("args", [[], ["stream"]])
def test_each_turn_of_smolagents_is_a_sample_because_it_adds_text_to_the_turn_before(held, says, args):
    def model(messages):
        code = "final_answer(3)" if len(messages) > 2 else "print(1 + 2)"
        return says(f"Thought: I add.\n<code>\n{code}\n</code>")

    command = [python_with("smolagents"), "{base}/smolagents_code.py", *args]
    talk = held(model, command=command, seconds=250)
    used = [each for each in talk.samples if each[-1]["role"] == "assistant"]
    assert [len(each) for each in used] == [3, 5]


def test_a_shell_script_with_curl_sets_its_reward(held, says):
    talk = held(lambda messages: says("ok"), command=["sh", "{base}/shell.sh"], reward="call")
    assert talk.reward == Reward(1.0)


def test_the_exit_status_and_the_output_are_rewards(held, says):
    shell = ["sh", "-c", f"{ASK} >/dev/null; echo 0.25; exit 0"]
    assert held(lambda messages: says("ok"), command=shell, reward="stdout").reward == Reward(0.25)
    wrong = ["sh", "-c", f"{ASK} >/dev/null; exit 1"]
    assert held(lambda messages: says("ok"), command=wrong, reward="exit").reward == Reward(0.0, success=False)


REFUSED = ASK.replace('"model"', '"n": 2, "model"')


@pytest.mark.parametrize(
    ("script", "reward", "reason"),
    [
        (
            "echo bye; exit 0",
            "environment",
            "the program ended, without a turn of the model: it sent no request for one",
        ),
        ("echo bye; exit 0", "exit", "the program ended, without a turn of the model: it sent no request for one"),
        (
            "echo bye; : > {late}; sleep 600",
            "environment",
            "longer than its limit in seconds, without a turn of the model: it sent no",
        ),
        (
            f"{REFUSED} >/dev/null; echo bye; exit 0",
            "exit",
            "without a turn of the model: .*the gateway refused it: n: ",
        ),
        (
            f"{ASK} >/dev/null; {REFUSED} >/dev/null; echo bye; exit 1",
            "exit",
            "exit status 1.*the gateway refused it: n: ",
        ),
    ],
    ids=["nothing", "nothing, exit", "slow", "refused", "refused at last"],
)
def test_a_program_that_got_no_answer_fails_its_conversation_and_says_why(held, says, late, script, reward, reason):
    command = ["sh", "-c", script.replace("{late}", str(late))]
    with pytest.raises(ConversationFailedError, match=f"(?s){reason}") as caught:
        held(lambda messages: says("ok"), command=command, reward=reward)
    assert "bye" in caught.value.what


def test_a_program_that_gets_an_answer_after_an_error_is_judged(held, says):
    script = f"{REFUSED} >/dev/null; {ASK} >/dev/null; exit 1"
    talk = held(lambda messages: says("ok"), command=["sh", "-c", script], reward="exit")
    assert talk.reward == Reward(0.0, success=False)


def test_a_program_that_crashes_fails_its_conversation_with_its_last_words(held, says):
    with pytest.raises(ConversationFailedError, match=r"(?s)exit status 1.*ZeroDivisionError"):
        held(lambda messages: says("ok"), command=["{python}", "-c", "1 / 0"])


def test_a_slow_program_is_truncated_and_ended(held, says, late):
    talk = held(lambda messages: says("ok"), command=["sh", "-c", f"{ASK}; : > {late}; sleep 600"])
    assert talk.truncated == "the program ran longer than its limit in seconds"


def test_a_cancelled_conversation_ends_its_program(scripted, says, tmp_path):
    async def main():
        harness = ProcessHarness(ProcessHarness.Options(command=["sh", "-c", "touch $HOME/up; sleep 600"]))
        await harness.setup(RankContext(base=PROGRAMS, tmp_dir=tmp_path))
        task = asyncio.ensure_future(harness.run(scripted(lambda messages: says("ok"))))
        async with asyncio.timeout(HANG_S):
            while not list(tmp_path.glob("*/*/up")):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not list(tmp_path.glob("*/*"))
        await harness.close()

    asyncio.run(main())


def test_an_error_of_the_conversation_ends_the_program_and_passes(scripted, says, tmp_path):
    class Lost(Exception):
        pass

    def model(messages):
        raise Lost

    async def main():
        harness = ProcessHarness(ProcessHarness.Options(command=["{python}", "{base}/openai_chat.py"]))
        await harness.setup(RankContext(base=PROGRAMS, tmp_dir=tmp_path))
        with pytest.raises(Lost):
            await harness.run(scripted(model, QUESTION))
        assert not list(tmp_path.glob("*/*"))
        await harness.close()

    asyncio.run(main())


def test_a_program_may_end_in_good_order_after_a_limit(scripted, says, tmp_path):
    script = f"{ASK}; {ASK}; exit 0"

    async def main():
        options = ProcessHarness.Options(command=["sh", "-c", script], reward="exit", grace_s=60)
        harness = ProcessHarness(options)
        await harness.setup(RankContext(base=PROGRAMS, tmp_dir=tmp_path))
        talk = scripted(lambda messages: says("ok"), turns=1)
        with pytest.raises(EndReached, match="truncated"):
            await harness.run(talk)
        assert talk.reward == Reward(1.0, success=True)
        await harness.close()

    asyncio.run(main())
