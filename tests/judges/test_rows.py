"""Rows of TRL's forms as tokens: what a new job learns and compares is what TRL's trainers do with the same rows."""

from __future__ import annotations

import runpy
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.judges import trl_side
from tests.judges.sides import loaded, tokenizer
from tokenizers.processors import TemplateProcessing

from rolemesh import RankContext
from rolemesh_torch.chats import answered

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("trl")]

CHATML = (
    "{% for m in messages %}w10 {{ m.role | replace('user', 'w11') | replace('assistant', 'w12') }} {{ m.content }} "
    "w13 {% endfor %}{% if add_generation_prompt %}w10 w12 {% endif %}"
)
TEMPLATES = {
    "a turn ends with another token than a text": CHATML,
    "it ends as a text does": CHATML.replace("w13", "</s>"),
    "nothing marks its end": CHATML.replace("w13", ""),
    "earlier answers are cut": "{% for m in messages %}{% if m.role == 'user' or loop.last %}w9 {{ m.content }} w13 "
    "{% endif %}{% endfor %}{% if add_generation_prompt %}w9 {% endif %}",
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def words_of(first: bool) -> Any:
    """Return a tokenizer. `first`: it writes <s> before each text."""
    words = tokenizer()
    if first:
        words.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return words


PROMPTS = [[user("w20 w21")], [user("w20"), says("w22"), user("w23")]]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["one turn", "three turns"])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_sft_learns_the_tokens_of_trls_sft_trainer(models: Any, template: str, prompt: list[Any]) -> None:
    from trl import SFTConfig, SFTTrainer

    words = tokenizer()
    words.chat_template = template
    answer = [says("w24 w25")]
    judge = SFTTrainer(
        loaded(models["llama"]),
        args=SFTConfig(output_dir=tempfile.mkdtemp(), **_common()),
        train_dataset=trl_side.dataset({"prompt": [prompt], "completion": [answer]}),
        processing_class=words,
    )
    found = next(iter(judge.get_train_dataloader()))
    learned = [token for token in found["labels"][0].tolist() if token != -100]
    same, (ours,) = answered(words, prompt, [answer], {})
    assert [*same, *ours] == found["input_ids"][0].tolist()
    assert ours == learned
    assert answered(words, prompt, ["w24 w25"], {}) == (same, [ours])


@pytest.mark.parametrize("first", [False, True], ids=["", "the tokenizer writes the begin of a text"])
def test_sft_learns_plain_texts_as_trls_sft_trainer_does(models: Any, first: bool) -> None:
    from trl import SFTConfig, SFTTrainer

    words = words_of(first)
    judge = SFTTrainer(
        loaded(models["llama"]),
        args=SFTConfig(output_dir=tempfile.mkdtemp(), **_common()),
        train_dataset=trl_side.dataset({"prompt": ["w20 w21"], "completion": [" w22"]}),
        processing_class=words,
    )
    found = next(iter(judge.get_train_dataloader()))
    same, (ours,) = answered(words, "w20 w21", [" w22"], {})
    assert [*same, *ours] == found["input_ids"][0].tolist()
    assert ours == [token for token in found["labels"][0].tolist() if token != -100]


@pytest.mark.parametrize("first", [False, True], ids=["", "the tokenizer writes the begin of a text"])
def test_pretraining_reads_the_tokens_of_trls_sft_trainer(models: Any, tmp_path: Path, first: bool) -> None:
    from trl import SFTConfig, SFTTrainer

    words = words_of(first)
    words.save_pretrained(tmp_path)
    texts = ["w20 w21", "w22", "w23 </s>"]
    judge = SFTTrainer(
        loaded(models["llama"]),
        args=SFTConfig(output_dir=tempfile.mkdtemp(), **_common()),
        train_dataset=trl_side.dataset({"text": texts}),
        processing_class=words,
    )
    wanted = [token for row in judge.train_dataset for token in row["input_ids"]]
    (tmp_path / "q.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    made = runpy.run_path(str(files("rolemesh_new") / "_jobs/pretrain/data.py"))["Text"]
    ours = made(str(tmp_path), str(tmp_path / "q.jsonl"), len(wanted), 1, RankContext())
    assert ours.windows.tolist() == [wanted]


@pytest.mark.parametrize("form", ["a prompt", "both begin with it"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=["one turn", "three turns"])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_dpo_compares_the_tokens_of_trls_dpo_trainer(models: Any, template: str, prompt: list[Any], form: str) -> None:
    from trl import DPOConfig, DPOTrainer

    words = tokenizer()
    words.chat_template = template
    sides = {"chosen": [says("w24 w25")], "rejected": [says("w26")]}
    if form == "a prompt":
        row: dict[str, Any] = {"prompt": prompt, **sides}
    else:
        row = {name: [*prompt, *chat] for name, chat in sides.items()}
    judge = DPOTrainer(
        loaded(models["llama"]),
        ref_model=loaded(models["other"]),
        args=DPOConfig(output_dir=tempfile.mkdtemp(), **_common()),
        train_dataset=trl_side.dataset({name: [value] for name, value in row.items()}),
        processing_class=words,
    )
    (found,) = judge.train_dataset
    same, (chosen, rejected) = answered(words, prompt, [row["chosen"], row["rejected"]], {})
    assert (same, chosen, rejected) == (found["prompt_ids"], found["chosen_ids"], found["rejected_ids"])


def _common() -> dict[str, Any]:
    return {name: value for name, value in trl_side.COMMON.items() if name != "disable_dropout"}
