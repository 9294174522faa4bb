"""Mistakes of users on the real command line: exit code, and one message with place, cause and remedy.

A mistake that is found before the start has exit code 2 and leaves no folder. A job that fails has exit code 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pytest
from tests.e2e.harness import leftovers
from tests.e2e.stranger import FLOW, JOB, MAKE, ROLES, Stranger
from tests.waiting import until

BOTH = FLOW.replace("    job.taker.take(job.maker.make())\n", "{}")


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    folder = tmp_path / "job"
    folder.mkdir()
    job = Stranger(folder)
    yield job.write()
    if (folder / "runs" / "odd" / "result.json").exists():
        ids = {str(job.result()["job_id"])}
        until(lambda: not leftovers(ids), "nothing is left of the job")


def refused(job: Stranger, *words: str, args: tuple[str, ...] = (), verbs: tuple[str, ...] = ("run",)) -> str:
    """Every verb of `verbs` says the same on stderr, with all `words` in it, and nothing was started."""
    said = set()
    for verb in verbs:
        done = job.run(*args) if verb == "run" else job.cli(verb, "job.yaml", *args)
        assert done.returncode == 2, f"{verb}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        said.add(done.stderr)
    assert len(said) == 1, said
    text = said.pop()
    for word in words:
        assert word in text, text
    assert text.startswith("error: ")
    assert not (job.folder / "runs" / "odd").exists()
    return text


def swap(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new, 1)


# ----------------------------------------------------------------------------------------------------- the job file


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("steps: 3", "steps: 3\nseeed: 1", ("job.yaml:4: seeed", "unknown key", "did you mean 'seed'?")),
        ("resources", "resorces", ("job.yaml:5: roles.maker.resorces", "did you mean 'resources'?")),
        ("steps: 3", "steps: many", ("job.yaml:3: steps", "expected an integer, got 'many' (a string)")),
        ("steps: 3", "steps: 0", ("job.yaml:3: steps", "greater than or equal to 1")),
        ("steps: 3", "steps: 3\nsteps: 4", ("job.yaml:4: steps", "duplicate key", "line 3")),
        ("steps: 3", "steps: ${NOT_SET_HERE}", ("job.yaml:3: steps", "NOT_SET_HERE", "export")),
        ("name: odd", "name: 'o d/ü'", ("job.yaml:1: name", "letters, digits")),
        ("name: odd", "name: ..", ("job.yaml:1: name",)),
        ("use: function", "use: functon", ("job.yaml:5: roles.maker.use", "did you mean 'function'?", "installed: ")),
        ("use: function", "use: megatron", ("job.yaml:5: roles.maker.use", "pip install", "installed: ", "function")),
        ("flow.py:pairs", "flows.py:pairs", ("job.yaml:2: flow", "there is no file")),
        ("flow.py:pairs", "flow.py:pair", ("job.yaml:2: flow", "did you mean 'pairs'?")),
        ("flow.py:pairs", "flow.py", ("job.yaml:2: flow", "not an import string", "file.py:name")),
        ("roles.py:Maker", "roles.py:Makr", ("job.yaml:5: roles.maker.options.target", "did you mean 'Maker'?")),
        ('"roles.py:Maker"', '"roles.py:Maker", kwargs: {z: 1}', ("job.yaml:5: roles.maker.options.kwargs", "'z'")),
        ("steps: 3", "\tsteps: 3", ("job.yaml:3:1", "tabs")),
    ],
)
def test_errors_in_the_job_file_have_their_line(stranger: Stranger, old: str, new: str, words: tuple[str, ...]) -> None:
    refused(stranger.write(job=swap(JOB, old, new)), *words)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("roles.maker.worldsize=2", ("roles.maker.worldsize=2", "did you mean 'world_size'?")),
        ("nonsense", ("'nonsense' is not an override", "path.to.key=value")),
        ("roles.maker.world_size=0", ("roles.maker.world_size=0", "greater than or equal to 1")),
    ],
)
def test_the_error_for_an_override_quotes_it_as_typed(
    stranger: Stranger, override: str, words: tuple[str, ...]
) -> None:
    refused(stranger, "command line: ", *words, args=(override,), verbs=("validate", "run"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ("job.yaml", "empty", "begin with")),
        (bytes(range(256)), ("job.yaml", "UTF-8")),
        (b"- a\n", ("job.yaml", "not a mapping")),
        (b"name: [\n", ("job.yaml:2:1", "not valid YAML")),
    ],
)
def test_a_file_that_is_no_job_file_is_refused(stranger: Stranger, content: bytes, words: tuple[str, ...]) -> None:
    (stranger.folder / "job.yaml").write_bytes(content)
    refused(stranger, *words)


def test_a_folder_and_a_missing_file_are_no_job_files(stranger: Stranger) -> None:
    (stranger.folder / "job.yaml").unlink()
    refused(stranger, "there is no file job.yaml")
    (stranger.folder / "job.yaml").mkdir()
    refused(stranger, "job.yaml is a folder")


@pytest.mark.parametrize(
    ("use", "options", "words"),
    [
        ("fsdp", "{model: nowhere}", ("job.yaml:5: roles.maker.options.model", "nowhere")),
        (
            "fsdp",
            "{model: ., init: random, loss: 'losses.py:mine'}",
            ("job.yaml:5: roles.maker.options.loss", "losses"),
        ),
        ("vllm", "{model: nowhere}", ("job.yaml:5: roles.maker.options.model", "nowhere")),
    ],
)
def test_the_error_for_a_missing_model_folder_or_loss_has_its_line(
    stranger: Stranger, use: str, options: str, words: tuple[str, ...]
) -> None:
    job = swap(JOB, 'function, options: {target: "roles.py:Maker"}', f"{use}, options: {options}")
    refused(stranger.write(job=job), *words)


# ----------------------------------------------------------------------------------------------------------- the flow


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    job.taker.tak(job.maker.make())\n", ("flow.py:6", "no operator 'tak'", "did you mean 'take'?")),
        ("    job.takr.take(job.maker.make())\n", ("flow.py:6", "no role 'takr'", "did you mean 'taker'?")),
        ("    job.maker.make()\n    job.taker.take()\n", ("flow.py:7", "taker.take lacks 'rows'")),
        ("    job.maker.make()\n", ("nobody calls role 'taker'", "remove the role")),
        ("    raise ValueError('boo')\n", ("flow.py:6", "ValueError: boo")),
        ("    (\n", ("flow.py:6", "SyntaxError")),
    ],
)
def test_errors_in_the_flow_have_their_line(stranger: Stranger, body: str, words: tuple[str, ...]) -> None:
    refused(stranger.write(flow=BOTH.format(body)), *words)


def test_a_cycle_without_lag_is_printed(stranger: Stranger) -> None:
    roles = swap(
        ROLES,
        "@operator(returns=Split())\n    def make(self)",
        "@operator(old=Split(), returns=Split())\n    def make(self, old)",
    )
    roles = swap(roles, "@operator(rows=Split())", "@operator(rows=Split(), returns=Split())")
    body = '    back = job.feedback("back")\n    back.bind(job.taker.take(job.maker.make(back)))\n'
    refused(
        stranger.write(flow=BOTH.format(body), roles=roles), "flow.py:7", "maker.make → taker.take → maker.make", "lag="
    )


def test_a_partition_mismatch_names_both_ends(stranger: Stranger) -> None:
    roles = swap(ROLES, "@operator(rows=Split())", "@operator(rows=Sharded())")
    refused(stranger.write(roles=roles), "flow.py:6", "maker.make → taker.take(rows)", "Split()", "Sharded()")


@pytest.mark.parametrize(("more", "what"), [("raise RuntimeError('at import')", "at import"), ("(", "never closed")])
def test_the_error_for_a_roles_broken_module_has_both_places(stranger: Stranger, more: str, what: str) -> None:
    line = ROLES.count("\n") + 1
    refused(stranger.write(roles=ROLES + more + "\n"), "job.yaml:5: roles.maker", f"roles.py:{line}", what)


def test_more_than_the_cluster_has_names_the_role_and_how_much_is_missing(stranger: Stranger) -> None:
    words = ("job.yaml:5: roles.maker", "cpu 64", "roles.maker.resources")
    for verb in ("plan", "run"):
        refused(stranger, *words, args=("roles.maker.resources.cpu=64",), verbs=(verb,))
    refused(stranger, "job.yaml:6: roles.taker", "gpu 1", args=("roles.taker.resources.gpu=1",), verbs=("run",))


# -------------------------------------------------------------------------------------------------------- the plugins

OBSERVER = """
import time
from rolemesh import Observer, hookimpl


class Plugin(Observer):
    side = {side!r}

    @hookimpl
    def event(self, event):
        {event}

    @hookimpl
    def steps_finished(self, metrics):
        {steps}
"""


def test_a_plugin_that_cannot_be_imported_names_its_distribution_and_the_cause(stranger: Stranger) -> None:
    stranger.install("rolemesh-broken", "workloads", "broken", "import not_there_at_all\n")
    stranger.write(job=swap(JOB, "use: function", "use: broken"))
    refused(stranger, "job.yaml:5: roles.maker.use", "rolemesh-broken 1.0", "not_there_at_all", "install")


def test_two_distributions_with_one_name_are_both_named(stranger: Stranger) -> None:
    for name in ("first-dist", "second-dist"):
        stranger.install(name, "workloads", "twin", "class Plugin: pass\n")
    stranger.write(job=swap(JOB, "use: function", "use: twin"))
    refused(stranger, "job.yaml:5: roles.maker.use", "'first-dist:twin' or 'second-dist:twin'")


def test_a_strategy_that_raises_is_named(stranger: Stranger) -> None:
    code = "from rolemesh import Scheduler, hookimpl\n\n\nclass Plugin(Scheduler):\n    @hookimpl\n"
    code += "    def place(self, request, cluster, plan):\n        raise ZeroDivisionError('no cluster')\n"
    stranger.install("rolemesh-bad-place", "schedulers", "bad-place", code)
    stranger.write(job=JOB + "placement: {use: bad-place}\n")
    refused(
        stranger, "bad-place", "'place'", "ZeroDivisionError: no cluster", "rolemesh-bad-place", verbs=("plan", "run")
    )


@pytest.mark.parametrize(
    "answer",
    [
        "'everywhere'",
        "PlacementPlan(slots=7)",
        "PlacementPlan(assignments=(1, 2))",
        "PlacementPlan(slots=(Slot(0, 'node-0', 'many'),))",
        "PlacementPlan(constraints=('apart',))",
    ],
)
def test_a_strategy_that_answers_nonsense_is_named(stranger: Stranger, answer: str) -> None:
    code = (
        "from rolemesh import PlacementPlan, Scheduler, Slot, hookimpl\n\n\nclass Plugin(Scheduler):\n    @hookimpl\n"
    )
    code += f"    def place(self, request, cluster, plan):\n        return {answer}\n"
    stranger.install("rolemesh-odd-place", "schedulers", "odd-place", code)
    stranger.write(job=JOB + "placement: {use: odd-place}\n")
    refused(stranger, "job.yaml:8: placement.use", "the placement strategy 'odd-place'", verbs=("plan",))


@pytest.mark.parametrize("side", ["driver", "master"])
def test_an_observer_that_raises_is_reported_once_and_the_job_goes_on(stranger: Stranger, side: str) -> None:
    code = OBSERVER.format(
        side=side, event="raise ValueError('bad observer')", steps="raise ValueError('bad observer')"
    )
    stranger.install("rolemesh-grumpy", "observers", "grumpy", code)
    stranger.write(job=JOB + "observers: [{use: grumpy}]\n")
    done = stranger.run()
    assert done.returncode == 0, done.stderr
    told = done.stderr if side == "driver" else stranger.log("master")
    assert told.count("failed in its hook 'event'") == 1
    assert stranger.result()["committed_steps"] == 3


@pytest.mark.soak
@pytest.mark.parametrize("side", [pytest.param("driver", marks=pytest.mark.soak), "master"])
def test_an_observer_that_is_slow_does_not_cost_the_job_its_life(stranger: Stranger, side: str) -> None:
    code = OBSERVER.format(side=side, event="time.sleep(0.6)", steps="time.sleep(3)")
    stranger.install("rolemesh-slow", "observers", "slow", code)
    stranger.write(job=JOB + "observers: [{use: slow}]\n")
    done = stranger.run()
    assert done.returncode == 0, done.stderr


LEVEL = """
import time
from rolemesh import Budget, FailoverLevel, RecoveryPlan, Verdict, hookimpl


class Plugin(FailoverLevel):
    scope = "process"

    @hookimpl
    def {hook}(self, failure, view):
        {body}
{rest}
"""
OWN_RECOVER = """
    @hookimpl
    def recover(self, failure, view):
        return None
"""
DIES_ONCE = "if self.ctx.generation == 0 and self.ctx.step == 1:\n    os._exit(9)\n" + MAKE.strip()


@pytest.mark.parametrize(
    ("hook", "body"),
    [
        ("recover", "raise KeyError('no plan')"),
        pytest.param("recover", "while True: time.sleep(1)", marks=pytest.mark.soak),
        ("recover", "while True: pass"),
        pytest.param("recover", "return {'restart': 'all'}", marks=pytest.mark.soak),
        pytest.param("recover", "return RecoveryPlan(restart='maker', reason=7)", marks=pytest.mark.soak),
        pytest.param("recover", "return RecoveryPlan(restart=((1, 'maker'),))", marks=pytest.mark.soak),
        pytest.param(
            "recover", "return RecoveryPlan(restart=(('nobody', 5),), avoid=('nowhere',))", marks=pytest.mark.soak
        ),
        pytest.param("recover", "return RecoveryPlan(restart=(), source='moon')", marks=pytest.mark.soak),
        pytest.param("recover", "import sys; sys.exit(1)", marks=pytest.mark.soak),
        pytest.param("diagnose", "while True: time.sleep(1)", marks=pytest.mark.soak),
        ("diagnose", "return 'software'"),
        pytest.param("diagnose", "return Verdict('ghost', 3)", marks=pytest.mark.soak),
    ],
)
def test_a_level_that_raises_hangs_or_answers_nonsense_costs_the_job_nothing(
    stranger: Stranger, hook: str, body: str
) -> None:
    """The next level of the ladder takes over, and the master lives on under its first epoch."""
    rest = OWN_RECOVER if hook == "diagnose" else ""
    stranger.install("rolemesh-odd-level", "failover", "odd-level", LEVEL.format(hook=hook, body=body, rest=rest))
    stranger.make(DIES_ONCE)
    job = (stranger.folder / "job.yaml").read_text()
    (stranger.folder / "job.yaml").write_text(job + "failover: [{use: odd-level}, {use: process}]\n")
    done = stranger.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert stranger.result()["committed_steps"] == 3
    lines = (stranger.folder / "runs" / "odd" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert {event["epoch"] for event in events} == {1}
    (planned,) = [event["data"] for event in events if event["kind"] == "recovery_planned"]
    if "nobody" not in body:
        assert planned["plan"]["level"] == "process"


def test_the_line_of_a_recovery_explains_the_error(stranger: Stranger) -> None:
    illegal = "raise RuntimeError('CUDA error: an illegal memory access was encountered')"
    stranger.make(DIES_ONCE.replace("os._exit(9)", illegal))
    (stranger.folder / "job.yaml").write_text(JOB + "failover: [{use: process}]\n")
    done = stranger.run()
    assert done.returncode == 0, done.stdout + done.stderr
    meaning = "a CUDA kernel crashed, and the process's CUDA context with it"
    assert f"recovery 1 by level process: restarting maker/0 ({meaning})\n" in done.stdout


# ------------------------------------------------------------------------------------------------- while the job runs


def failed(job: Stranger, *words: str, args: tuple[str, ...] = ()) -> str:
    """The job ends at once with the failure; stderr has one message with `words` in it and no frame of the kernel."""
    done = job.cli("run", "job.yaml", *args) if "--engine=inline" in args else job.run(*args)
    assert done.returncode == 1, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("error: ") == 1
    assert not re.search(r'File ".*/rolemesh(_durable)?/', done.stderr), done.stderr
    assert job.result()["status"] == "failed"
    assert job.stops_at_once()
    return done.stderr


WRONG = [
    ("raise ValueError('boo')", ("ValueError: boo", "roles.py", "in make")),
    ("sys.exit(3)", ("SystemExit: 3", "in make")),
    ("raise KeyboardInterrupt", ("KeyboardInterrupt", "in make")),
    ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", ("Odd", "in make")),
    ("return None", ("it returned None", "return it, or leave the call out")),
    ("return {'x': np.arange(4.0)}", ("a dict has no rows to split", "return a Batch")),
    ("return\nyield", ("it yielded nothing", "at least one chunk")),
    ("return Batch({'x': [lambda: 1] * 4})", ("function cannot be sent along an edge", "return arrays")),
    ("return Batch({'x': np.zeros(3), 'y': np.zeros(4)})", ("column 'y' has 4 rows, the others 3",)),
    ("self.ctx.record(r=object())", ("TypeError", "record 'r' is no JSON value")),
    ("self.ctx.metric(r='many')", ("could not convert string to float: 'many'",)),
]
ALIKE = (0, 1, 3, 4, 6, 8, 9, 10)
"""Indexes of the cases for which both engines print the same message."""
SHARED = ALIKE[2:]
"""Indexes of the cases that the same code checks in both engines. With processes they are in the soak."""


@pytest.mark.parametrize(("body", "words"), [WRONG[n] for n in ALIKE])
def test_an_operators_error_in_one_process_reads_as_with_many(
    stranger: Stranger, body: str, words: tuple[str, ...]
) -> None:
    said = failed(stranger.make(body), *words, args=("roles.taker.world_size=2", "--engine=inline"))
    assert "role maker, rank 0 (in operator maker.make at step 0)" in said


@pytest.mark.parametrize(
    ("body", "words"),
    [pytest.param(*case, marks=pytest.mark.soak) if n in SHARED else case for n, case in enumerate(WRONG)],
)
def test_an_operators_error_has_role_rank_operator_and_step(
    stranger: Stranger, body: str, words: tuple[str, ...]
) -> None:
    said = failed(stranger.make(body), *words, args=("roles.taker.world_size=2",))
    assert "role maker, rank 0 (in operator maker.make at step 0)" in said
    assert "logs/maker-0.log" in said


def test_a_process_that_exits_is_reported_with_its_exit_code(stranger: Stranger) -> None:
    failed(stranger.make("os._exit(3)"), "role maker, rank 0", "exit code 3 before its last step")


def test_an_exception_in_setup_is_reported(stranger: Stranger) -> None:
    roles = swap(ROLES, "        self.ctx = ctx\n", "        raise OSError('no such device')\n")
    failed(stranger.write(roles=roles), "role maker, rank 0 (in operator setup)", "OSError: no such device", "__init__")


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        ("raise ValueError('too large')", ("ValueError: too large",)),
        pytest.param(
            "return {'seen': {1, 2}}", ("state['seen'] is a set", "store arrays or bytes"), marks=pytest.mark.soak
        ),
    ],
)
def test_a_failed_last_snapshot_causes_a_warning_and_the_job_is_done(
    stranger: Stranger, snapshot: str, words: tuple[str, ...]
) -> None:
    stranger.make("", f"def snapshot(self):\n    {snapshot}\n\ndef restore(self, state):\n    pass\n")
    done = stranger.run()
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("not kept", "taker/0 has given no last state", *words):
        assert word in done.stdout


def test_a_write_into_an_input_is_an_error(stranger: Stranger) -> None:
    roles = swap(ROLES, "        pass\n", "        rows['x'][0] = 1\n")
    failed(stranger.write(roles=roles), "role taker, rank 0 (in operator taker.take at step 0)", "read-only")


def test_an_exception_in_teardown_is_in_the_log_and_takes_nothing_back(stranger: Stranger) -> None:
    stranger.make("", "def teardown(self):\n    raise ValueError('too late')\n")
    assert stranger.run().returncode == 0
    assert "ValueError: too late" in stranger.log("taker-0")


@pytest.mark.parametrize("inline", [False, True])
def test_without_a_console_the_failure_is_still_printed(stranger: Stranger, inline: bool) -> None:
    stranger.make("raise ValueError('boo')")
    done = stranger.cli(
        "run", "job.yaml", "observers=[]", *(("--engine=inline",) if inline else ("--backend", "local"))
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "role maker, rank 0 (in operator" in done.stderr
    assert done.stderr.count("ValueError: boo") == 2  # in the message and in the traceback


# ------------------------------------------------------------------------------------- odd things that are no errors

ODD = [
    ("return Batch({'x': np.zeros(0)})", "assert rows.rows == 0"),
    ("return Batch({'x': np.zeros(1)})", "assert rows.rows in (0, 1)"),
    ("return Batch({'x': [10**40, -(10**40), 3, 4]})", "assert all(type(v) is int for v in rows['x'])"),
    ("return Batch({'x': np.array(['a', None, 3, 4], dtype=object)})", "assert rows['x'].dtype == object"),
    ("print('x' * 3_000_000)\nsys.stderr.write('y' * 3_000_000)\nreturn Batch({'x': np.arange(4.0)})", "pass"),
    ("os.chdir('/')\nos.environ.clear()\nreturn Batch({'x': np.arange(4.0)})", "pass"),
    (
        "import torch\nreturn Batch({'x': torch.arange(4).bfloat16()})",
        "assert str(rows['x'].dtype) == 'torch.bfloat16'",
    ),
]


def test_odd_values_arrive(stranger: Stranger) -> None:
    """One in each step."""
    bodies, checks = zip(*ODD, strict=True)
    stranger.make("".join(f"if self.ctx.step == {n}:\n{indent(body, '    ')}\n" for n, body in enumerate(bodies)))
    roles = (stranger.folder / "roles.py").read_text()
    checked = "".join(f"        if self.ctx.step == {n}:\n            {check}\n" for n, check in enumerate(checks))
    (stranger.folder / "roles.py").write_text(swap(roles, "        pass\n", checked))
    done = stranger.run("roles.taker.world_size=2", f"steps={len(ODD)}")
    assert done.returncode == 0, done.stderr


def test_a_runs_folder_that_cannot_be_made_is_an_error(stranger: Stranger) -> None:
    for args in (("--runs-dir", "job.yaml"), ("--runs-dir", "/proc/nowhere")):
        refused(stranger, "the run's folder cannot be made", "--runs-dir", args=args, verbs=("run",))


@pytest.mark.parametrize("verb", ["status", "events", "logs", "stop", "attach"])
def test_verbs_about_a_job_that_never_was_say_which_there_are(
    stranger: Stranger, verb: str, ran: Callable[[Stranger], None]
) -> None:
    nothing = stranger.cli(verb, "ood")
    assert nothing.returncode == 2
    assert "there is no run of a job 'ood'" in nothing.stderr
    ran(stranger)
    close = stranger.cli(verb, "ood")
    assert close.returncode == 2
    assert "did you mean 'odd'?" in close.stderr


@pytest.fixture
def ran() -> Callable[[Stranger], None]:
    """Runs the job in one process: there is a run then."""

    def run(job: Stranger) -> None:
        assert job.cli("run", "job.yaml", "--engine=inline").returncode == 0

    return run


def test_a_rank_without_a_log_is_told_with_those_that_have_one(stranger: Stranger) -> None:
    assert stranger.run("steps=1").returncode == 0
    done = stranger.cli("logs", "odd", "maker/7")
    assert done.returncode == 2
    assert "there is no log of 'maker/7'" in done.stderr
    assert "did you mean 'maker/0'?" in done.stderr
