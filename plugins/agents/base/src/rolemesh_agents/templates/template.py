"""A model's chat template as tokens of a conversation: the opening, and what stands between two turns of the model."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh_agents.actions import Message, Tool, ToolCall
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_agents.errors import AgentError
from rolemesh_agents.templates.abilities import adapted, assistant, find_abilities
from rolemesh_agents.templates.formats import Format, Schemas, find_format, format_of
from rolemesh_agents.templates.guard import HERE, Guard
from rolemesh_agents.templates.rendering import Renderer, TemplateRefusedError
from rolemesh_agents.templates.vocabulary import Vocabulary

__all__ = ["Reasoning", "Template", "load_template"]

Reasoning: TypeAlias = Literal["text", "apart"]
"""The place of a turn's reasoning: in its text, or in a field of its own."""

_DATE = datetime.date(2026, 1, 1)
_USER: Message = {"role": "user", "content": "x"}


class Template:
    """The chat template of a Hugging Face `tokenizer`, for conversations whose sampled tokens never change.

    All tokens of a conversation are `opening`, and then for each turn the sampled tokens and `increment`. No token
    is decoded and encoded again. If the template keeps earlier turns as they are, these are the tokens of the whole
    conversation as `apply_chat_template` renders it. If it changes them, because it strips reasoning, the conversation
    keeps what was sampled. ``python -m rolemesh_agents.templates FOLDER`` shows the difference.

    The text of users, tools and calls never becomes a control token. Messages of the system are the job's own: in them
    a text such as ``<think>`` means the token.

    A turn is what was sampled. Nothing in it is a call if no tool was offered, and its white space stays.

    - `stop_token_ids`: further tokens that end a turn.
    - `form`: the name of the format of calls (`rolemesh_agents.templates.FORMATS`). None: found in the template.
    - `date`: the day that the template sees, always the same.
    - `variables`: variables of the template, such as ``{"enable_thinking": False}``.
    - `reasoning`: "text": the reasoning of a turn, such as ``<think>…</think>``, stays in its content, as sampled.
      "apart": it becomes `ParsedTurn.reasoning`. Reasoning between special tokens is always apart, because no text has
      these: GPT-OSS, Gemma 4, Command A and Magistral.

    Raises `AgentError` if the tokenizer has no chat template, or if the template refuses a short conversation.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        stop_token_ids: Sequence[int] = (),
        form: str | None = None,
        date: datetime.date = _DATE,
        variables: Mapping[str, Any] | None = None,
        reasoning: Reasoning = "text",
    ) -> None:
        source = _source(tokenizer)
        self._chosen: dict[tuple[Any, ...], int] = {}
        self._vocabulary = Vocabulary(tokenizer, source)
        self._renderer = Renderer(tokenizer, date, variables or {})
        self.abilities = find_abilities(self._renderer)
        """The abilities of the template. `Template` writes the rest in another way."""
        found = find_format(source) if self.abilities.tools or self.abilities.calls else format_of("hermes")
        self.form: Format = format_of(form) if form is not None else found
        """The format of calls."""
        given = [*stop_token_ids, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])]
        closings = [self._closing(called, given) for called in (False, True)]
        self._closes = [bool(numbers) for numbers in closings]
        headers = () if all(self._closes) else self._headers()
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*given, *closings[0], *closings[1], *headers]))
        """The tokens that end a turn. The engine has to stop at each of them."""
        self._stops = frozenset(self.stop_token_ids)
        marks = self._vocabulary.unseen.search(self.form.reasoning[0])
        self._apart = reasoning == "apart" or marks is not None
        self._opened = (
            self._renderer.text([_USER], prompt=True).rstrip().endswith(self.form.reasoning[0].strip() or "\0")
        )

    @classmethod
    def load(cls, folder: Path | str, **options: Any) -> Template:
        """Return the template of a model's folder. The model's ``generation_config.json`` adds stop tokens.

        Raises `AgentError` if transformers is not installed.
        """
        try:
            from transformers import AutoTokenizer
        except ModuleNotFoundError as error:
            what = f"transformers, which reads a model's chat template, is not installed: {error}"
            raise AgentError(what, remedy='pip install "rolemesh-agents[transformers]"') from None

        stops = list(options.pop("stop_token_ids", ()))
        config = Path(folder) / "generation_config.json"
        if config.exists():
            found = json.loads(config.read_text(encoding="utf-8")).get("eos_token_id")
            stops += found if isinstance(found, list) else [] if found is None else [found]
        return cls(AutoTokenizer.from_pretrained(folder), stop_token_ids=stops, **options)

    @property
    def begins_in_reasoning(self) -> bool:
        """Whether the template itself writes the mark that begins the reasoning of each turn."""
        return self._opened

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the tokens before the model's first turn, which continues a last message of the assistant's text.

        Raises `TemplateRefusedError`.
        """
        guard = Guard(self._vocabulary)
        given, listed = self._guarded(guard, messages), self._listed(guard, tools)
        last = messages[-1] if messages else {}
        continued = last.get("role") == "assistant" and not last.get("tool_calls")
        return guard.encode(self._text(given, listed, prompt=True, continued=continued))

    def increment(self, turn: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the tokens between the sampled tokens `turn` and the model's next turn.

        - `turn`: if its end is missing, because a limit cut it, the result begins with this end.
        - `messages`: all messages of tools and users between the two turns. The answers of tools are in the order of
          the turn's calls. An answer without `name` has that of the call at its place, and one without `tool_call_id`
          gets one.
        - `tools`: the tools of the opening.

        Raises `TemplateRefusedError`.
        """
        guard = Guard(self._vocabulary)
        given, calls = _answering(self._guarded(guard, messages), guard.hide(self.parse(turn, tools)).calls)
        tail, called = self._tail(given, calls, self._listed(guard, tools))
        end = self._end(tail, called)
        last = int(turn[-1]) if len(turn) else None
        if end is None:
            return guard.encode(tail, continued=True)
        place, number = end
        if last == number or (last in self._stops and self._closes[called]):
            return guard.encode(tail[place:])[1:]
        if last in self._stops or called:
            return guard.encode(tail[place:])
        return guard.encode(tail, continued=True)

    def parse(
        self, turn: Sequence[int], tools: Sequence[Tool] = (), stop: Sequence[str] = (), after: int = 0
    ) -> ParsedTurn:
        """Return the text and the calls of a sampled turn. Nothing that a model can sample raises.

        The marks of a call count if they are the model's control tokens: a turn that quotes them as plain text, such as
        the words of a web page, calls nothing. Without `tools`, nothing is a call, and special tokens are no text.
        `tools` say which arguments are text, for formats without quotes. `stop` and `after`: see `TokenTemplate.parse`.
        """
        numbers = list(map(int, turn))
        while numbers and numbers[-1] in self._stops:
            numbers.pop()
        guard = Guard(self._vocabulary)
        runs, found = self._vocabulary.cut(numbers, stop, after)
        text = "".join(run if control else guard.hide(run) for run, control in runs)
        schemas = {tool.name: tool.parameters for tool in tools}
        reasoning, rest = self._reasoning(text)
        if tools and reasoning and self.form.reasoning[1] not in text:
            reasoning, rest = self._ended(reasoning, schemas)
        before = "" if self._apart else text[: len(text) - len(rest)]
        said = self.form.plain(rest)
        whole = self._vocabulary.unseen.sub("", before + said.content)
        parsed = msgspec.structs.replace(said, content=whole)
        if tools:
            parsed = self.form.parse(rest, schemas)
            content = self._vocabulary.unseen.sub("", before + parsed.content)
            parsed = msgspec.structs.replace(parsed, content="" if parsed.calls and content.isspace() else content)
        apart = reasoning if self._apart else ""
        told = self._vocabulary.unseen.sub("", apart or parsed.reasoning)
        return guard.show(msgspec.structs.replace(parsed, reasoning=told, text=whole, stop=found))

    def message(self, turn: ParsedTurn) -> Message:
        """Return the chat message of a turn, as templates take it: `content`, `tool_calls` and `reasoning_content`."""
        message = assistant(turn.content, turn.calls, False)
        return {**message, "reasoning_content": turn.reasoning} if turn.reasoning else message

    def whole(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, prompt: bool = False) -> str:
        """Return a whole conversation as the template renders it, to compare. Its tokens are never for training."""
        guard = Guard(self._vocabulary)
        return guard.show(self._text(self._guarded(guard, messages), self._listed(guard, tools), prompt=prompt))

    def _reasoning(self, text: str) -> tuple[str, str]:
        """Return the reasoning, and the text after it: none if the reasoning does not end."""
        opening, closing = self.form.reasoning
        begun = text.lstrip()
        if not opening or not (self._opened or begun.startswith(opening.strip())):
            return "", text
        inside = begun.removeprefix(opening if begun.startswith(opening) else opening.strip())
        found, _, rest = inside.partition(closing)
        return found, rest

    def _ended(self, reasoning: str, schemas: Schemas) -> tuple[str, str]:
        """Return reasoning without an end, and the calls at the end of the turn: they end it, as with vLLM."""
        parsed = self.form.parse(reasoning, schemas)
        if not parsed.calls or parsed.unparsed or not reasoning.startswith(parsed.content):
            return reasoning, ""
        return parsed.content, reasoning[len(parsed.content) :]

    def _guarded(self, guard: Guard, messages: Sequence[Message]) -> list[Message]:
        """Hide imitations in all messages that others than the job write. The reasoning of earlier turns is a key of
        its own, so that the template knows it although its marks are hidden."""
        found: list[Message] = []
        for message in map(dict, messages):
            content = message.get("content")
            if message.get("role") == "assistant" and isinstance(content, str) and "reasoning_content" not in message:
                reasoning, rest = self._reasoning(content) if self.form.reasoning[1] in content else ("", content)
                if reasoning and self._vocabulary.marks.search(self.form.reasoning[1]):
                    message |= {"content": rest.lstrip("\n"), "reasoning_content": reasoning.strip("\n")}
            found.append(message if message.get("role") in ("system", "developer") else guard.hide(message))
        return found

    @staticmethod
    def _listed(guard: Guard, tools: Sequence[Tool]) -> list[dict[str, Any]]:
        return [guard.hide(tool.as_function()) for tool in tools]

    def _text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, prompt: bool, continued: bool = False
    ) -> str:
        given = adapted(messages, tools, self.abilities, self.form)
        return self._renderer.text(*given, prompt=prompt, continued=continued)

    def _tail(
        self,
        messages: Sequence[Message],
        calls: Sequence[ToolCall],
        tools: Sequence[Mapping[str, Any]],
        prompt: bool = True,
    ) -> tuple[str, bool]:
        """Render `messages` after a made-up turn, and return the text after it, and whether the turn calls a tool.

        A template may refuse several calls, or calls at all: then the turn has the last call, or none.
        """
        turns = self._turns(calls)
        key = (*(message["role"] for message in messages), *(len(call.id) for call in calls), len(tools) > 0, prompt)
        if key not in self._chosen:
            self._chosen[key] = self._choice(turns, messages, tools, prompt)
        turn, called = turns[self._chosen[key]]
        return self._text([_USER, turn, *messages], tools, prompt=prompt).rpartition(HERE)[2], called

    def _turns(self, calls: Sequence[ToolCall]) -> list[tuple[Message, bool]]:
        """Return made-up turns with a mark near their ends, the best first, each with whether it calls a tool."""
        turns = [(assistant(HERE, (), False), False)]
        if calls and self.abilities.calls:
            *others, last = calls
            marked = ToolCall(last.name, {"k": HERE}, last.id)
            turns.insert(0, (assistant("", [marked], False), True))
            turns.insert(0, (assistant("", [*others, marked], False), True))
        return turns

    def _choice(
        self,
        turns: Sequence[tuple[Message, bool]],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        prompt: bool,
    ) -> int:
        """Return the place of the first turn after which the template writes all messages."""
        refused: TemplateRefusedError | None = None
        names = [f"{HERE}{place}x" for place in range(len(messages))]
        neutral = [{**message, "content": name} for message, name in zip(messages, names, strict=True)]
        for place, (turn, _) in enumerate(turns):
            try:
                text = self._text([_USER, turn, *neutral], tools, prompt=prompt)
            except TemplateRefusedError as error:
                refused = error
                continue
            if all(text.count(name) == 1 for name in names) and text.count(HERE) > len(names):
                return place
        if refused is not None:
            raise refused
        raise TemplateRefusedError(
            "the model's chat template leaves out messages after a turn",
            remedy="run `python -m rolemesh_agents.templates FOLDER` to see what the template takes",
        )

    def _end(self, tail: str, called: bool) -> tuple[int, int] | None:
        """Return the place and the number of the token that ends the made-up turn."""
        found = [(m.start(), self._vocabulary.control[m[0]]) for m in self._vocabulary.marks.finditer(tail)]
        special = [each for each in found if each[1] in self._vocabulary.special]
        return next((each for each in found if each[1] in self._stops), special[0] if special and not called else None)

    def _closing(self, called: bool, given: Sequence[int]) -> list[int]:
        """Return the token that ends a turn, if the template writes one that is not a part of the next message.

        It is the last token that the template writes both at the end of a conversation and before another message, or a
        `given` one among them. GPT-OSS writes different ones: then it is the one at the end.
        """
        calls = (ToolCall("f", {"k": "v"}, "call00000"),) if called else ()
        following = {"role": "tool", "content": "x", "tool_call_id": "call00000", "name": "f"} if called else _USER
        try:
            last = self._numbers(self._tail((), calls, (), prompt=False)[0])
            other = self._numbers(self._tail([following], calls, ())[0])
        except TemplateRefusedError:
            return []
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(last, other, strict=False))))
        end = [number for number in last[:shared] if number in given][:1] or (last[:shared] or last)[-1:]
        return [number for number in end if number in self._vocabulary.special]

    def _numbers(self, text: str) -> list[int]:
        return [self._vocabulary.control[mark[0]] for mark in self._vocabulary.marks.finditer(text)]

    def _headers(self) -> list[int]:
        """Return the tokens that begin the message after a turn, for templates that write no end of a turn."""
        found = []
        for message in (_USER, {"role": "tool", "content": "x", "tool_call_id": "call00000", "name": "f"}):
            try:
                tail, _ = self._tail([message], (), ())
            except TemplateRefusedError:
                continue
            mark = self._vocabulary.marks.match(tail.lstrip())
            found += [self._vocabulary.control[mark[0]]] if mark else []
        return found


def load_template(folder: Path | str, reasoning: Reasoning = "text") -> Template:
    """Return the template in a model's folder, with the defaults of `Template`.

    Raises `TemplateRefusedError` if the template writes no message of the user or of a tool after a turn.
    """
    template = Template.load(folder, reasoning=reasoning)
    for message in (_USER, {"role": "tool", "content": "x"}):
        template.increment((), [message])
    return template


def _answering(messages: Sequence[Message], calls: Sequence[ToolCall]) -> tuple[list[Message], list[ToolCall]]:
    """Return messages and the calls that those of tools answer, with the same ids and names.

    An answer with a name is to the first such call that has none yet. One to no call, such as a text that could not be
    read, gets a made-up call.
    """
    found: list[Message] = []
    answered: list[ToolCall] = []
    left = list(calls)
    for message in messages:
        if message.get("role") == "tool":
            place, name = len(answered), message.get("name")
            mine = next((each for each in left if name in (None, "", each.name)), None)
            call = ToolCall(name or "unknown", {}) if mine is None else mine
            if mine is not None:
                left.remove(mine)
            number = message.get("tool_call_id") or f"none{place:05}"
            answered.append(ToolCall(call.name, call.arguments, number))
            message = {**message, "tool_call_id": number, "name": call.name}
        found.append(message)
    return found, answered


def _source(tokenizer: Any) -> str:
    """Return the text of all chat templates of a tokenizer."""
    found = getattr(tokenizer, "chat_template", None)
    if not found:
        raise AgentError(
            "the model's tokenizer has no chat template",
            remedy="use an instruction-tuned model, or add chat_template.jinja",
        )
    return "\n".join(found.values()) if isinstance(found, dict) else str(found)
