"""Rewards of answers, from 0 to 1. The signature is that of TRL's `reward_funcs`."""


def partial(completions, answer, **kwargs):
    """Return 1 for the right answer alone, its share of the text if there is more, and 0 without it."""
    pairs = zip(texts(completions), answer, strict=True)
    return [len(right) / len(text) if right in text else 0.0 for text, right in pairs]


def correct(completions, answer, **kwargs):
    """Return 1 for the right answer alone, and 0 for any other text."""
    return [float(text == right) for text, right in zip(texts(completions), answer, strict=True)]


def texts(completions):
    return [completion[0]["content"].strip() for completion in completions]
