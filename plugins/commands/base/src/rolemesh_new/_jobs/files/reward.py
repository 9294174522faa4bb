def correct(completions, answer, **kwargs):
    """Return 1 for a completion that ends with the words of the answer, and 0 for any other."""
    said = [completion[0]["content"].lower().rstrip(" \n.!*").split() for completion in completions]
    right = [str(each).lower().split() for each in answer]
    return [float(words[-len(wanted) :] == wanted) for words, wanted in zip(said, right, strict=True)]
