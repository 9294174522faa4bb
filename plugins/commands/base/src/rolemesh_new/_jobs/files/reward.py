def correct(completions, answer, **kwargs):
    """Return 1 for a completion that ends with the words of the answer, and 0 for any other."""
    said = [words(completion[0]["content"]) for completion in completions]
    right = [words(each) for each in answer]
    return [float(found[-len(wanted) :] == wanted) for found, wanted in zip(said, right, strict=True)]


def words(text):
    return str(text).lower().strip(" \n.!*").split()
