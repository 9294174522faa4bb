"""A taskset of verifiers whose tools have a state, and whose task stops, hides and judges."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Counting"]


class Data(vf.TaskData):
    number: int


class Notes(vf.State):
    sum: int = 0


class Counter(vf.Toolset[vf.ToolsetConfig, Notes]):
    """Tools of one run of a task."""

    TOOL_PREFIX = "counter"

    async def setup_task(self, task: Data) -> None:
        self.first = task.number

    @vf.tool
    async def add(self, number: int) -> str:
        """Add a number, and return the sum so far."""
        self.state.sum += number
        return str(self.first + self.state.sum)

    @vf.tool
    async def fail(self, text: str) -> str:
        """Fail with this text."""
        raise ValueError(text)


class Settings(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Count(vf.Task[Data, Notes, Settings]):
    @classmethod
    def toolsets(cls, config: Settings) -> list[vf.Toolset]:
        return [Counter(config.tools)]

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.state.sum >= 100

    @vf.intercept
    def hide(self, request: vf.Request) -> vf.Request | None:
        last = request.messages[-1]
        if not isinstance(last, vf.ToolMessage) or "13" not in str(last.content):
            return None
        hidden = last.model_copy(update={"content": "hidden"})
        return request.model_copy(update={"messages": [*request.messages[:-1], hidden]})

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.number) in trace.last_reply)

    @vf.reward(weight=0.5)
    async def thoughts(self, trace: vf.Trace) -> float:
        return float(sum("think" in (message.content or "") for message in trace.assistant_messages))

    @vf.metric
    async def sum(self, trace: vf.Trace) -> float:
        return float(trace.state.sum)


class CountingConfig(vf.TasksetConfig):
    count: int = 8
    task: Settings = Settings()


class Counting(vf.Taskset[Count, CountingConfig]):
    def load(self) -> list[Count]:
        numbers = range(self.config.count)
        return [Count(Data(number=each, prompt=f"Count to {each}."), self.config.task) for each in numbers]


if __name__ == "__main__":
    Counter.run()
