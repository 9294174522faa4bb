def correct(completions, answer, **kwargs):
    """Return 1 for a completion that contains the answer, and 0 for any other."""
    texts = [completion[0]["content"].lower() for completion in completions]
    return [float(str(right).lower() in text) for text, right in zip(texts, answer, strict=True)]
