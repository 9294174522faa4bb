"""Public training scripts under `rolemesh launch`, unchanged. The test kills each once; it ends as under torchrun.

``python -m tests.public_scripts FOLDER [NAME …]``: FOLDER has checkouts as ``owner/name``, as they are found on GitHub;
nothing of them is part of this repository. Data, models and tokenizers are made here, tiny. Each script runs under
torchrun, undisturbed, and under ``rolemesh launch``, where one of its workers gets SIGKILL after some steps. The runs
must have the same number of optimizer steps, the same sha256 of each rank's parameters after the last one, and the same
last printed loss, if the script prints one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SCRIPTS", "End", "Public", "compare"]

BIN = Path(sys.executable).parent
LIMIT_S = 400
WORDS = [
    "the",
    "a",
    "of",
    "role",
    "rank",
    "step",
    "loss",
    "train",
    "run",
    "node",
    "slot",
    "edge",
    "flow",
    "lag",
    "kill",
]
OBSERVER = '''
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

class Observer(MetaPathFinder):
    """Registers the hook as soon as torch's optimizers are imported, and imports nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.optim.optimizer":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        execute = spec.loader.exec_module
        def observed(module):
            execute(module)
            module.register_optimizer_step_post_hook(stepped)
        spec.loader.exec_module = observed
        return spec

exec(os.environ.get("OBSERVER_FIXES", ""))
steps = 0

def stepped(optimizer, *_):
    import hashlib, json, signal
    global steps
    if "RANK" not in os.environ:
        return
    steps += 1
    rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if life == 0 and os.environ.get("OBSERVER_KILL") == f"{rank}:{steps}":
        os.kill(os.getpid(), signal.SIGKILL)
    import torch
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for found in group["params"]:
            found = getattr(found, "_local_tensor", found).detach()
            digest.update(found.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    path = os.path.join(os.environ["OBSERVER_FOLDER"], f"{rank}.json")
    with open(path + ".new", "w") as file:
        json.dump({"life": life, "steps": steps, "digest": digest.hexdigest()}, file)
    os.replace(path + ".new", path)

sys.meta_path.insert(0, Observer())
'''
"""``sitecustomize`` of every process. It records the parameters after each step, and kills a chosen process."""
ONE_SEED = """
import numpy.random
drawn = numpy.random.default_rng
numpy.random.default_rng = lambda seed=None: drawn(0 if seed is None else seed)
"""
"""A seed for a script that draws its data without one. Without it, two runs differ under torchrun as well."""


def sine(folder: Path) -> None:
    """Write a smaller version of the output of ``generate_sine_wave.py``."""
    import numpy as np
    import torch

    shift = np.random.default_rng(0).integers(-40, 40, (6, 1))
    torch.save(np.sin((np.arange(60)[None, :] + shift) / 5.0), folder / "traindata.pt")


def text(folder: Path, lines: int = 400) -> None:
    """``data/wikitext-2`` and ``data/wikitext-2.txt``."""
    import numpy as np

    rng = np.random.default_rng(0)
    said = "\n".join(" ".join(rng.choice(WORDS, 11)) for _ in range(lines))
    (folder / "data/wikitext-2").mkdir(parents=True)
    for name in ("wikitext-2/train.txt", "wikitext-2/valid.txt", "wikitext-2/test.txt", "wikitext-2.txt"):
        (folder / "data" / name).write_text(said)


def long_text(folder: Path) -> None:
    """Enough for 4,200 windows of 35 words, of which Lightning's example keeps 4,000 for validation."""
    text(folder, 4200 * 35 // 12 + 10)


def _tokenizer(folder: Path, marks: dict[str, str]) -> int:
    """A tokenizer of `WORDS` and `marks`; the number of its tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: at for at, word in enumerate((*dict.fromkeys(marks.values()), *WORDS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=marks["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **marks).save_pretrained(folder)
    return len(vocabulary)


def bert(folder: Path) -> None:
    """``bert-base-cased``, in a word."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    size = _tokenizer(folder / "bert-base-cased", marks)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertForSequenceClassification(config).save_pretrained(folder / "bert-base-cased")


def glue(folder: Path) -> None:
    """``nyu-mll/glue``, ``mrpc``: pairs of sentences; and the metric ``glue``."""
    import numpy as np

    bert(folder)
    rng = np.random.default_rng(0)
    where = folder / "nyu-mll/glue"
    (where / "mrpc").mkdir(parents=True)
    for split, rows in (("train", 160), ("validation", 24), ("test", 24)):
        lines = [
            {
                "sentence1": " ".join(rng.choice(WORDS, 6)),
                "sentence2": " ".join(rng.choice(WORDS, 6)),
                "label": int(rng.integers(2)),
                "idx": at,
            }
            for at in range(rows)
        ]
        (where / "mrpc" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    configs = "".join(
        f"      - {{split: {split}, path: mrpc/{split}.jsonl}}\n" for split in ("train", "validation", "test")
    )
    (where / "README.md").write_text(f"---\nconfigs:\n  - config_name: mrpc\n    data_files:\n{configs}---\n")
    (folder / "glue").mkdir()
    (folder / "glue/glue.py").write_text(
        "import datasets\nimport evaluate\n"
        "class Glue(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        one = datasets.Value('int64')\n"
        "        return evaluate.MetricInfo(description='', citation='', inputs_description='',\n"
        "            features=datasets.Features({'predictions': one, 'references': one}))\n"
        "    def _compute(self, predictions, references):\n"
        "        same = [p == r for p, r in zip(predictions, references)]\n"
        "        return {'accuracy': sum(same) / len(same), 'f1': sum(same) / len(same)}\n"
    )


def llama(folder: Path) -> None:
    """``tiny``, a Llama, and the data set ``texts`` to fine-tune it with."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size = _tokenizer(
        folder / "tiny", {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "tiny")
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(rng.choice(WORDS, 10))} for _ in range(64)]
    (folder / "texts").mkdir()
    (folder / "texts/train.json").write_text(json.dumps(rows))


@dataclass(frozen=True)
class Public:
    """A script: where it is, below FOLDER or as ``-m module`` of what is installed, and how it is run.

    `data` makes its data; `kill`: the step in which its last worker is killed; `figure`: what it prints as its loss;
    `fixes`: what the observer runs first in each process, so that the script trains the same in every run; `seeded`: it
    does.
    """

    script: str
    arguments: str = ""
    workers: int = 1
    data: Callable[[Path], None] | None = None
    kill: int = 5
    figure: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    fixes: str = ""
    seeded: bool = True


EXAMPLES, ACCELERATE = "pytorch/examples/", "huggingface/accelerate/examples/"
LIGHTNING = "Lightning-AI/pytorch-lightning/examples/"
ON_CPUS = {"ACCELERATE_USE_CPU": "true"}
"""Or accelerate's workers are no group without a GPU: each is the first, and removes the same file."""
SCRIPTS = (
    Public(
        EXAMPLES + "time_sequence_prediction/train.py", "--steps 4", data=sine, kill=3, figure=r"test loss: (\S+)",
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    ),
    Public(
        EXAMPLES + "word_language_model/main.py",
        "--model Transformer --emsize 16 --nhid 16 --epochs 2 --use-optimizer --lr 0.001 --log-interval 5",
        data=text, figure=r"test loss +(\S+)",
    ),
    *(
        Public(ACCELERATE + path, "--cpu", 2, glue, figure=r"epoch \d+: (.*)")
        for path in (
            "nlp_example.py", "complete_nlp_example.py", "by_feature/gradient_accumulation.py",
            "by_feature/local_sgd.py", "by_feature/ddp_comm_hook.py", "by_feature/early_stopping.py",
            "by_feature/multi_process_metrics.py",
        )
    ),
    Public(
        ACCELERATE + "by_feature/automatic_gradient_accumulation.py", "--cpu", 2, glue, kill=2,
        figure=r"epoch \d+: (.*)",
    ),
    Public(
        ACCELERATE + "by_feature/checkpointing.py", "--cpu --checkpointing_steps epoch --output_dir out", 2, glue,
        kill=8, figure=r"epoch \d+: (.*)",
    ),
    Public("-m accelerate.test_utils.scripts.test_script", workers=2, environment=ON_CPUS),
    Public("-m accelerate.test_utils.scripts.test_sync", workers=2, environment=ON_CPUS, fixes=ONE_SEED),
    Public(
        "-m trl.scripts.sft",
        "--model_name_or_path tiny --dataset_name texts --output_dir out --report_to none --use_cpu --max_steps 12",
        2, llama, figure=r"'train_loss': '?([^',]+)",
    ),
    Public(LIGHTNING + "pytorch/bug_report/bug_report_model.py", workers=2, kill=1, seeded=False),
    Public(LIGHTNING + "pytorch/basics/transformer.py", workers=2, data=long_text, figure=r"test_loss\W+([\d.]+)"),
    Public(LIGHTNING + "fabric/language_model/train.py", workers=2, data=long_text, figure=r"val loss (\S+)"),
)  # fmt: skip


class End(NamedTuple):
    """How a run has ended. `ranks`: by rank, what the observer has noted."""

    code: int
    seconds: float
    ranks: dict[int, dict[str, Any]]
    figure: str
    said: str


def run(public: Public, folder: Path, command: tuple[str, ...], kill: str = "") -> End:
    """Run it in a new folder with its data."""
    with tempfile.TemporaryDirectory(prefix="rolemesh-public-") as temporary:
        place = Path(temporary)
        for name in ("work", "observer", "noted", "home"):
            (place / name).mkdir()
        if public.data is not None:
            public.data(place / "work")
        (place / "observer/sitecustomize.py").write_text(OBSERVER)
        environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        environment |= {
            "HOME": str(place / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", "TORCH_EXTENSIONS_DIR": str(folder / ".torch_extensions"),
            "PYTHONPATH": str(place / "observer"), "OMP_NUM_THREADS": "1",
            "OBSERVER_FOLDER": str(place / "noted"), "OBSERVER_KILL": kill,
            "OBSERVER_FIXES": public.fixes, **public.environment,
        }  # fmt: skip
        module = public.script.startswith("-m ")
        target = public.script.split() if module else [str(folder / public.script)]
        began = time.monotonic()
        with (place / "said").open("w+") as said:
            process = subprocess.Popen(
                [*command, "--nproc-per-node", str(public.workers), *target, *public.arguments.split()],
                cwd=place / "work", env=environment, stdout=said, stderr=said,
            )  # fmt: skip
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                code = process.wait(60)
        text = (place / "said").read_text(errors="replace")
        noted = {int(path.stem): json.loads(path.read_text()) for path in (place / "noted").glob("*.json")}
        found = re.findall(public.figure, text) if public.figure else []
        return End(code, time.monotonic() - began, noted, found[-1] if found else "", text)


def compare(public: Public, folder: Path) -> tuple[list[str], End, End]:
    """Run it both ways; what is wrong, and how both have ended."""
    calm = run(public, folder, (str(BIN / "torchrun"), "--standalone"))
    killed = run(
        public, folder, (str(BIN / "rolemesh"), "launch", "--max-restarts", "3"), f"{public.workers - 1}:{public.kill}"
    )
    wrong = []
    if calm.code or not calm.ranks:
        wrong.append(f"torchrun: exit code {calm.code}, {len(calm.ranks)} ranks have stepped")
    if killed.code:
        wrong.append(f"rolemesh launch: exit code {killed.code}")
    if {found["life"] for found in killed.ranks.values()} != {1}:
        wrong.append("nobody was killed")
    ends = [
        {rank: (found["steps"], found["digest"] if public.seeded else "") for rank, found in end.ranks.items()}
        for end in (calm, killed)
    ]
    if ends[0] != ends[1]:
        wrong.append(f"parameters: {ends[0]} and {ends[1]}")
    if calm.figure != killed.figure:
        wrong.append(f"the last figure printed: {calm.figure!r} and {killed.figure!r}")
    return wrong, calm, killed


def main(arguments: list[str]) -> int:
    """Print a line for each script; 1 if one did not end as under torchrun."""
    folder, *names = arguments
    bad = 0
    for public in SCRIPTS:
        if names and not any(name in public.script for name in names):
            continue
        if not public.script.startswith("-m ") and not (Path(folder) / public.script).is_file():
            print(f"- {public.script}: is not there", flush=True)
            continue
        wrong, calm, killed = compare(public, Path(folder).resolve())
        bad += bool(wrong)
        steps = {found["steps"] for found in killed.ranks.values()}
        print(
            f"{'✘' if wrong else '✔'} {public.script} | workers {public.workers} | killed in step {public.kill}"
            f" of {sorted(steps)} | {killed.figure or '-'} | {calm.seconds:.0f} s, {killed.seconds:.0f} s",
            flush=True,
        )
        for text in wrong:
            print("   ", text, flush=True)
        if wrong:
            for name, end in (("torchrun", calm), ("rolemesh launch", killed)):
                print(f"--- {name}\n{end.said[-3000:]}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
