"""A tokenizer's vocabulary: control tokens, and encoders that make them or never make them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

__all__ = ["Vocabulary"]

_MARK = re.compile(r"<\|.*\|>|<｜.*｜>", re.DOTALL)


class Vocabulary:
    """The vocabulary of a Hugging Face `tokenizer`.

    A control token is an added token that is special, that the chat template writes, or that looks like ``<|…|>``. It
    has a meaning for the model that its text does not have. Tokens of spaces alone are no control tokens.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._tokenizer = tokenizer
        added = {
            number: token for number, token in tokenizer.added_tokens_decoder.items() if len(token.content.strip()) > 1
        }
        control = {n: t for n, t in added.items() if t.special or t.content in template or _MARK.fullmatch(t.content)}
        self.control: Mapping[str, int] = {token.content: number for number, token in control.items()}
        """The control tokens, from text to number."""
        self.special: frozenset[int] = frozenset(number for number, token in control.items() if token.special)
        """The control tokens that the tokenizer calls special."""
        self._numbers = frozenset(self.control.values())
        longest = sorted(self.control, key=len, reverse=True)
        self.marks: re.Pattern[str] = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        """A pattern that finds the text of control tokens."""
        unseen = [re.escape(text) for text in longest if self.control[text] in self.special]
        self.unseen: re.Pattern[str] = re.compile("|".join(unseen) or r"(?!)")
        """A pattern that finds the text of special tokens, which a decoder leaves out."""
        tight = [t for t in control.values() if t.special and not (t.lstrip or t.rstrip or t.single_word)]
        preferred = [t.content for t in tight if t.content == tokenizer.eos_token] + [t.content for t in tight]
        self._anchor = preferred[0] if preferred else ""

    def encode(self, text: str) -> list[int]:
        """Encode text of the template. The text of control tokens becomes these tokens."""
        return self._tokens(text)

    def continued(self, text: str) -> list[int]:
        """Encode text of the template that continues other text. A tokenizer may write a space before the first word of
        a text; this does not."""
        return self._after_anchor(text)

    def plain(self, text: str) -> list[int]:
        """Encode text of a tool or a user. It never becomes a control token."""
        return [number for part in self._split(text) for number in self._after_anchor(part)]

    def imitates(self, text: str) -> bool:
        """Return whether `text`, encoded by itself, has a control token."""
        return not self._numbers.isdisjoint(self._tokens(text))

    def text(self, numbers: Sequence[int]) -> list[tuple[str, bool]]:
        """Return the text of tokens in runs, each with whether it is a control token."""
        runs: list[tuple[str, bool]] = []
        start = 0
        for place, number in enumerate(numbers):
            if number in self._numbers:
                runs += self._run(numbers[start:place])
                runs.append((self._texts[number], True))
                start = place + 1
        return runs + self._run(numbers[start:])

    def seen(self, numbers: Sequence[int]) -> str:
        """Return the text of tokens without special ones, as an engine that looks for stop texts reads it."""
        return "".join(text for text, control in self.text(numbers) if not self._hidden(text, control))

    def cut(self, numbers: Sequence[int], stops: Sequence[str], after: int) -> tuple[list[tuple[str, bool]], str]:
        """Return the runs of `text` before the first stop text that is complete, and this text, or "".

        The first `after` tokens complete none. If several are complete at the same place, the first of `stops` counts,
        as in vLLM's ``check_stop_strings``.
        """
        runs = self.text(numbers)
        seen = "".join(text for text, control in runs if not self._hidden(text, control)) if stops else ""
        least = len(self.seen(numbers[:after])) + 1 if stops and after > 0 else 1
        found = [(seen.find(each, max(0, least - len(each))), each) for each in stops if each]
        ends = [(place + len(each), at) for at, (place, each) in enumerate(found) if place >= 0]
        if not ends:
            return runs, ""
        left, stop = found[min(ends)[1]]
        kept = []
        for text, control in runs:
            hidden = self._hidden(text, control)
            if left < 0 or (left == 0 and not hidden):
                break
            kept.append((text if hidden else text[:left], control))
            left -= 0 if hidden else len(text)
        return kept, stop

    def _hidden(self, text: str, control: bool) -> bool:
        return control and self.control[text] in self.special

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {number: text for text, number in self.control.items()}

    def _run(self, numbers: Sequence[int]) -> list[tuple[str, bool]]:
        if not len(numbers):
            return []
        decoded = self._tokenizer.decode(list(map(int, numbers)), clean_up_tokenization_spaces=False)
        return [(str(decoded), False)]

    def _split(self, text: str) -> list[str]:
        """Return parts of `text` that have no control token, also where a normalizer of the tokenizer makes one."""
        parts, start = [], 0
        for found in self.marks.finditer(text):
            parts += [text[start : found.start() + 1], text[found.start() + 1 : found.end()]]
            start = found.end()
        parts.append(text[start:])
        for part in [p for p in parts if p and self.imitates(p)]:
            place = parts.index(part)
            parts[place : place + 1] = list(part)
        return [part for part in parts if part]

    def _after_anchor(self, text: str) -> list[int]:
        numbers = self._tokens(self._anchor + text)
        if self._anchor and numbers[:1] == [self.control[self._anchor]]:
            return numbers[1:]
        return self._tokens(text)

    def _tokens(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))
