"""One tiny model and one engine for all tests, with the environment that the kernel would set before imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rolemesh_vllm
from rolemesh.api.batch import Batch
from rolemesh.api.workload import RankContext
from rolemesh_vllm import VLLMWorkload

os.environ.update(VLLMWorkload.env)

VOCAB = 128


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The halves start their engines in `test_pd.py`; that the kit starts them too, some ten times, is for the soak."""
    for item in items:
        half = isinstance(item, pytest.Function) and item.cls is not None and item.cls.__name__ in HALVES
        if half and "stage" in item.fixturenames:  # type: ignore[attr-defined]
            item.add_marker("soak")


HALVES = ("TestPrefill", "TestDecode")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with tied embeddings, head_dim 32 and random weights, with a byte-like tokenizer and a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny"
    words = ["<eos>", "<user>", "<assistant>", *(f"w{i}" for i in range(VOCAB - 3))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    template = (
        "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", chat_template=template
    ).save_pretrained(folder)
    torch.manual_seed(1)
    random_llama().save_pretrained(folder)
    assert isinstance(LlamaForCausalLM.from_pretrained(folder).config, LlamaConfig)
    return folder


def random_llama(std: float = 0.3) -> Any:
    """A new random model of the tiny shape, from torch's present seed; `std` large enough for clear argmaxes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=std,
    )
    return LlamaForCausalLM(config).float().eval()


def make_weights(seed: int, version: int) -> tuple[Any, dict[str, Any]]:
    """A random model and its weights as the kernel hands them over: read-only arrays and `__version__`."""
    import torch

    torch.manual_seed(seed)
    model = random_llama()
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    for array in weights.values():
        array.setflags(write=False)
    return model, weights | {"__version__": np.array([version], np.int64)}


def make_adapters(rank: int, seed: int) -> dict[str, Any]:
    """Return adapters of one layer's query and another's down projection, as a trainer with `lora` gives them."""
    rng = np.random.default_rng(seed)
    shapes = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.1.mlp.down_proj": (64, 128)}
    found: dict[str, Any] = {"__version__": np.array([4], np.int64), "__lora_scaling__": np.array([2.0], np.float32)}
    for name, (rows, columns) in shapes.items():
        found[f"{name}.lora_A.weight"] = rng.normal(size=(rank, columns)).astype(np.float32)
        found[f"{name}.lora_B.weight"] = rng.normal(size=(rows, rank), scale=0.3).astype(np.float32)
    return found


def make_prompts(rows: int, first: int = 0) -> Batch:
    """`rows` chats of different lengths; row i's words depend on `first` + i only."""
    messages = []
    for i in range(first, first + rows):
        rng = np.random.default_rng(i)
        words = " ".join(f"w{w}" for w in rng.integers(0, VOCAB - 3, size=40 + i % 5))
        messages.append([{"role": "user", "content": words}])
    return Batch(
        {"messages": messages, "index": np.arange(first, first + rows), "answer": [f"a{i}" for i in range(rows)]}
    )


def greedy_tokens(model: Any, prompt: NDArray[np.int32], tokens: int) -> list[int]:
    """Return the greedy completion of the Hugging Face model."""
    import torch

    ids = torch.tensor(prompt[None], dtype=torch.int64)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="session")
def new_weights() -> Callable[..., Any]:
    return make_weights


@pytest.fixture(scope="session")
def prompts() -> Callable[..., Batch]:
    return make_prompts


@pytest.fixture(scope="session")
def greedy() -> Callable[..., list[int]]:
    return greedy_tokens


@pytest.fixture(scope="session")
def adapters() -> Callable[..., dict[str, Any]]:
    return make_adapters


@pytest.fixture(scope="session")
def rollout(tiny_model: Path) -> Iterator[VLLMWorkload]:
    """A workload with a living engine; tests may load other weights and change the step."""
    import torch

    set_num_threads = torch.set_num_threads  # vllm's worker replaces it for the whole process
    options = {"model": str(tiny_model), "samples": 3, "max_tokens": 8, "engine": {"max_model_len": 128}}
    workload = VLLMWorkload(VLLMWorkload.Options(**options))
    workload.setup(RankContext(seed=7))
    yield workload
    workload.teardown()
    torch.set_num_threads = set_num_threads


class Rank:
    """A workload in a process of its own (`rank_process.py`): `call` an operator and get its value and its counts."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._listener = Listener(family="AF_UNIX")
        env = os.environ | dict(getattr(rolemesh_vllm, name).env) | {"OMP_NUM_THREADS": "1"}
        script = Path(__file__).with_name("rank_process.py")
        command = [sys.executable, str(script), str(self._listener.address)]
        self.process = subprocess.Popen(command, env=env, start_new_session=True)
        self._connection = self._listener.accept()
        self._connection.send((name, options, 7))

    def ready(self) -> list[int]:
        """Wait for the end of `setup`; the cores that the process may run on."""
        return list(self._answer())

    def call(self, operator: str, *args: Any, step: int = 0) -> tuple[Any, dict[str, float]]:
        """Run the operator; return its result and its counts."""
        self.begin(operator, *args, step=step)
        return self.end()

    def begin(self, operator: str, *args: Any, step: int = 0) -> None:
        """Ask for a call whose answer `end` waits for."""
        self._connection.send((operator, args, step))

    def end(self) -> tuple[Any, dict[str, float]]:
        """As `call`, of what was begun."""
        answer: tuple[Any, dict[str, float]] = self._answer()
        return answer

    def _answer(self) -> Any:
        error, value = self._connection.recv()
        if error is not None:
            raise error
        return value

    def hang_up(self) -> None:
        """Let it tear down."""
        self._connection.close()
        self._listener.close()


@pytest.fixture(scope="module")
def make_rank(tiny_model: Path) -> Iterator[Callable[..., Rank]]:
    made: list[Rank] = []

    def make(name: str, **options: Any) -> Rank:
        engine = {"max_model_len": 128, "kv_cache_memory_bytes": 8 << 20}
        made.append(Rank(name, {"model": str(tiny_model), "engine": engine} | options))
        return made[-1]

    yield make
    living = [rank for rank in made if rank.process.poll() is None]
    for rank in living:
        rank.hang_up()
    assert [rank.process.wait() for rank in living] == [0] * len(living)
