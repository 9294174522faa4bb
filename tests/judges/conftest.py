"""The judges on the path, tiny models to judge with, and groups of ranks of each trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(sys.prefix, "judges")
sys.path.insert(0, str(ROOT / "plugins/workloads/training/tests"))  # trainer_group

WORKLOADS = {
    "fsdp": "rolemesh_fsdp:FSDPWorkload",
    "ddp": "rolemesh_ddp:DDPWorkload",
    "deepspeed": "rolemesh_deepspeed:DeepSpeedWorkload",
}


@pytest.fixture(scope="session", autouse=True)
def alone() -> Iterator[None]:
    """No network, no tracker, one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}.items():
            patch.setenv(name, value)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def trl(alone: None) -> Iterator[None]:
    """TRL can be imported."""
    if not (FOLDER / "trl").is_dir():
        pytest.skip(f"TRL is not installed in {FOLDER}: make judges")
    sys.path.append(str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a Llama with tied embeddings, another one without, and a GPT-2 with its usual dropout of 0.1."""
    import torch
    from tests.judges.sides import VOCABULARY, tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    def llama(tied: bool) -> Any:
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=128,
                initializer_range=0.15,
                tie_word_embeddings=tied,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        )

    def gpt2() -> Any:
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=2, n_head=4, initializer_range=0.15, **ids
            )
        )

    folders = {}
    for name, make in {"llama": lambda: llama(True), "other": lambda: llama(False), "gpt2": gpt2}.items():
        torch.manual_seed(len(folders))
        folders[name] = tmp_path_factory.mktemp(name)
        make().save_pretrained(folders[name])
        tokenizer().save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def groups() -> Iterator[Callable[[str], Callable[..., list[Any]]]]:
    """``groups("fsdp")(scenario, world_size, options, *args)``: each rank's result; the ranks of a trainer are forked
    from one process, which starts when it is first asked for."""
    import trainer_group

    running: dict[str, Iterator[Any]] = {}
    runs: dict[str, Callable[..., list[Any]]] = {}

    def group(name: str) -> Callable[..., list[Any]]:
        if name not in runs:
            running[name] = trainer_group.served(WORKLOADS[name])
            runs[name] = next(running[name])
        return runs[name]

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    yield group
    for each in running.values():
        next(each, None)
