"""`tests.language` finds sentences that readers have to read twice, and leaves plain ones alone."""

from __future__ import annotations

import pytest
from tests import language, readability
from tests.prose import Text, in_document, in_python, sentences

BAD = [
    ("opening", "docstring", "Of one rank."),
    ("opening", "attribute", "So many ranks start at the same time."),
    ("opening", "docstring", "By key, what was told."),
    ("opening", "attribute", "After so long in one turn it says that it is at work."),
    ("clause as subject", "docstring", "What checks have measured, by node."),
    ("clause as subject", "document", "It waits. Who comes to the end of a grant was slower for it."),
    ("clause as name", "test", "what was sent arrives"),
    ("whoever", "document", "A rank serves whoever asks."),
    ("continues elsewhere", "attribute", "Resend addresses at least this often,"),
    ("misses", "document", "The cluster misses two GPUs."),
    ("anew", "document", "The rank starts anew."),
    ("so many", "document", "A call waits for so many items."),
    ("hidden actor", "document", "The rank is told to end."),
    ("hidden actor", "docstring", "Nothing has been asked."),
    ("old word", "document", "A keeper watches the memory."),
    ("old word", "document", "The checkpoint is in safety."),
]
GOOD = [
    ("docstring", "Return the ranks that wait for a value."),
    ("attribute", "Maximum number of ranks that start at the same time."),
    ("attribute", "Seconds after which an agent counts as hung."),
    ("document", "What happens if a node is lost? Its ranks move."),
    ("document", "The master asks for places; the backend says which nodes it has."),
    ("document", "It computes so many digits that the sum is exact."),
    ("document", "The message `misses {name}` and the word \"anew\" are quoted."),
    ("document", "# Who can read"),
    ("test", "a sent value arrives where it is awaited"),
]  # fmt: skip


def test_each_pattern_is_found_and_plain_sentences_are_left_alone() -> None:
    def rules(kind: str, words: str) -> set[str]:
        return {found.rule.name for found in language.check(Text(1, kind, words))}

    assert [words for rule, kind, words in BAD if rule not in rules(kind, words)] == []
    assert {words: found for kind, words in GOOD if (found := rules(kind, words))} == {}


def test_every_rule_has_a_bad_sample() -> None:
    assert {rule.name for rule in language.RULES} == {name for name, _, _ in BAD}


def test_a_finding_names_the_line_in_its_file() -> None:
    source = 'X = 1\n"""Begins well.\n\nThe rank is told.\n"""\n'
    (text,) = in_python(source)
    assert text.kind == "attribute"
    assert [found.line for found in language.check(text, "a.py")] == [4]


def test_code_blocks_and_comments_of_a_document_are_no_prose() -> None:
    text = "# Title\n\n```\nit starts anew\n```\n\n<!-- anew -->\n\n- one\n- two\n  lines\n"
    assert [(each.line, each.words) for each in in_document(text)] == [(1, "# Title"), (9, "one"), (10, "two lines")]


def test_sentences_are_split_at_their_ends_only() -> None:
    text = "One thing, e.g. this.  Another is `x.y`; it has 0.5 s. [A link](b.md) follows.\n\n| a | table |\n"
    assert sentences(text) == ["One thing, e.g. this.", "Another is code; it has 0.5 s.", "A link follows."]


def test_long_sentences_with_long_words_are_not_easy() -> None:
    pytest.importorskip("textstat")
    plain = "The master sends a grant. The rank waits for it. Then the rank runs ten steps."
    heavy = " ".join(["Organizational responsibilities necessitate comprehensive documentation"] * 5) + "."
    assert readability.measure(plain).easy
    assert not readability.measure(heavy).easy
