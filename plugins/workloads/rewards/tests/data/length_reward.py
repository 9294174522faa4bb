"""A reward function for the standard tests."""


def length(completions, **kwargs):
    """Return the length of each answer."""
    return [float(len(text)) for text in completions]
