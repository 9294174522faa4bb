"""Windows of texts in tokens: of text files, or of the column `text` of tables. The end of a text separates texts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from rolemesh import Batch, Ragged, RankContext
from rolemesh_rewards.table import read_rows, read_text


class Text:
    def __init__(self, model: str, data: str, window: int, rows: int, ctx: RankContext) -> None:
        path, tokenizer, tokens = Path(ctx.base, data), AutoTokenizer.from_pretrained(Path(ctx.base, model)), []
        for text in texts(path):
            ids, end = tokenizer(text)["input_ids"], tokenizer.eos_token_id
            tokens += ids if end is None or ids[-1:] == [end] else [*ids, end]
        whole = len(tokens) // window * window
        if not whole:
            raise ValueError(f"{path} has {len(tokens)} tokens, and a window needs {window}")
        self.rows, self.windows = rows, np.array(tokens[:whole], np.int32).reshape(-1, window)

    def next(self, ctx: RankContext) -> Batch:
        """Return the step's windows as `input_ids`. The place in the text follows from the step."""
        ctx.metric(epoch=(ctx.step + 1) * self.rows / len(self.windows))
        places = [divmod(ctx.step * self.rows + each, len(self.windows)) for each in range(self.rows)]
        rows = [np.random.default_rng([epoch]).permutation(len(self.windows))[place] for epoch, place in places]
        return Batch({"input_ids": Ragged.from_rows(list(self.windows[rows]), np.int32)})


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a file, or of those in a folder that are not hidden."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and not any(part.startswith((".", "__")) for part in file.relative_to(path).parts):
            table = file.suffix in (".jsonl", ".json", ".csv", ".parquet")
            rows = read_rows(file) if table else [{"text": read_text(file)}]
            if not all(isinstance(row.get("text"), str) for row in rows):
                raise ValueError(f"a row of {file} has no column text: name the column here, or leave the row out")
            yield from (row["text"] for row in rows)
