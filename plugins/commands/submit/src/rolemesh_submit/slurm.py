"""A job as an sbatch script: a Ray cluster over the allocation's nodes with the job on it. Both end together."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from rolemesh.errors import JobFileError, PlacementError
from rolemesh_submit.submission import OBJECT_STORE_BYTES, Submission, comment, memory_gb

JOIN_S = 300
NOTICE_S = 60
NAME_CHARACTERS = 50
"""Characters of the job's name in its run's name, which has at most 63 and ends with the number of the Slurm job."""
SETUP = "# As in a script of one's own: activate scripts and modules read unset variables, and fail in passing."
TEMPLATE = r"""#!/usr/bin/env bash
{head}{setup}set -euo pipefail

{environment}
# From inside another job, sbatch passes on that job's variables, which srun would take for this one's.
unset "${{!SLURM_CPU_BIND@}}" "${{!SLURM_MEM_BIND@}}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK
# Others on these nodes cannot join this Ray, nor give it work.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_worker_niceness=0 SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
for tool in rolemesh ray python3; do
  hash "$tool" || {{ echo "error: $tool is not on the path: give --setup a line that puts it there" >&2; exit 2; }}
done
node=({node})
folder=$(mktemp -d "/tmp/ray-$SLURM_JOB_ID.XXXXXX")
# Slurm's notice goes to this script alone. Signals that end the job go to all processes, and this one ends at once.
sleep infinity &
probe=$!
children=("$probe")
# The number of a task may be that of its whole array.
own=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
own=${{own:-$SLURM_JOB_ID}}
head="" step="" job="" drained="" cancelled=""

finish() {{
  trap - EXIT
  trap '' TERM INT
  if [ -n "$cancelled" ]; then
    kill -KILL $job $head 2>/dev/null || true
    rm -rf "$folder" || true
  fi
  for child in "${{children[@]}}"; do kill -TERM "$child" 2>/dev/null || true; done
  if [ -n "$step" ]; then
    # A signal to srun would kill its tasks before they have cleaned up.
    scancel --signal=TERM "$own.0" 2>/dev/null || true
    for _ in {{1..100}}; do kill -0 "$step" 2>/dev/null || break; sleep 0.1 || true; done
    kill -TERM "$step" 2>/dev/null || true
  fi
  wait || true
  rm -rf "$folder"
}}
trap finish EXIT

leave() {{
  noticed=yes
  for _ in {{1..10}}; do
    # scancel, a requeue or the end of the time: Ray has the signal too, so nothing can end in good order, and KillWait
    # after it Slurm kills this script.
    kill -0 "$probe" 2>/dev/null || {{ cancelled=yes; exit 143; }}
    sleep 0.1 || true
  done
  # The first notice comes before the time is up (--signal): the job ends after a step whose state it keeps. The second
  # one ends the job at once.
  if [ -z "$drained" ] && rolemesh stop "$name" --drain --no-wait >&2; then
    drained=yes
  elif [ -n "$job" ]; then
    kill -TERM "$job" 2>/dev/null || true
  fi
}}

# Ray takes any free ports: several jobs may share a node.
ray start --head --port 0 --include-dashboard false --temp-dir "$folder" "${{node[@]}}" --block \
  >"$folder/head.log" 2>&1 &
head=$!
children+=("$head")
until [ -s "$folder/ray_current_cluster" ]; do
  kill -0 "$head" 2>/dev/null || {{ cat "$folder/head.log" >&2; exit 1; }}
  sleep 0.2
done
address=$(<"$folder/ray_current_cluster")
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
  srun --nodes "$others" --ntasks "$others" --exclude "$SLURMD_NODENAME" --no-kill --wait 0 --kill-on-bad-exit=0 \
    --cpu-bind=none bash -c 'trap "kill -KILL \$!" TERM; ray start "$@" --block >/dev/null & wait
      [ -e "$0/head.log" ] || until rm -rf "$0"; do sleep 1; done' "$folder" --address "$address" "${{node[@]}}" &
  step=$!
fi
python3 - "$address" "$SLURM_JOB_NUM_NODES" <<'END' &
import sys, time, ray

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
wanted, end = int(sys.argv[2]), time.monotonic() + {join_s}
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted and time.monotonic() < end:
    time.sleep(0.5)
if there < wanted:
    print(f"{{there}} of {{wanted}} nodes have joined Ray within {join_s} s; going on with them", file=sys.stderr)
END
join=$!
children+=("$join")
code=0
wait -n "$head" "$join" || code=$?
kill -0 "$head" 2>/dev/null || {{ echo "error: Ray's head has ended" >&2; cat "$folder/head.log" >&2; exit 1; }}
[ "$code" -eq 0 ] || exit "$code"

# A run of this Slurm job's own, which a requeue continues.
name={name}-$SLURM_JOB_ID
again=({resuming})
if [ -e "$ROLEMESH_RUNS/$name" ]; then again=(--resume auto); fi
trap leave TERM INT
{command} "name=$name" "${{again[@]}}" &
job=$!
# A notice interrupts wait; the job may end while the notice is handled, so its exit code is asked for again.
noticed=yes
while [ -n "$noticed" ]; do
  noticed="" code=0
  wait "$job" || code=$?
done
all_steps='import json, sys; told = json.load(open(sys.argv[1])); sys.exit(told["committed_steps"] != told["steps"])'
if [ -n "$drained" ] && [ "$code" -eq 0 ] && ! python3 -c "$all_steps" "$ROLEMESH_RUNS/$name/result.json"; then
  echo "the job has ended before its last step; to continue it: scontrol requeue $own" >&2
  code=130
fi
exit "$code"
"""


class Allocation(NamedTuple):
    """Settings that only Slurm needs. `setup`: lines that put `rolemesh` and `ray` on the path, run on the first
    node."""

    partition: str | None = None
    time: str | None = None
    setup: Sequence[str] = ()


def script(submission: Submission, allocation: Allocation) -> str:
    """Return the script. Raises `PlacementError` if the nodes differ in size, and `JobFileError` for an invalid
    partition."""
    if len(submission.groups) > 1:
        what = "an allocation has nodes of one size and no labels, and --nodes has several groups"
        raise PlacementError(what, where="--nodes", remedy="give one group, or a number and --cpus-per-node")
    if allocation.partition and not re.fullmatch(r"[\w.,@+-]+", allocation.partition, re.ASCII):
        what, remedy = f"{allocation.partition!r} is no name of a partition", "sinfo lists them"
        raise JobFileError(what, where="--partition", remedy=remedy)
    head = [*map(comment, (_made(submission), *notes(submission))), *_directives(submission, allocation)]
    required = [each.name for each in submission.variables if each.required]
    environment = [
        *(f': "${{{name}:?the job file uses it, so export it before sbatch}}"' for name in required),
        *(f"export {name}={shlex.quote(value)}" for name, value in submission.settings.items()),
        f"export ROLEMESH_RUNS={shlex.quote(submission.runs)}",
    ]
    command = ["rolemesh run", shlex.quote(submission.job), '--address "$address"']
    return TEMPLATE.format(
        head="".join(head),
        setup="".join(f"{line}\n" for line in (SETUP, *allocation.setup)) if allocation.setup else "",
        environment="\n".join(environment),
        node=shlex.join(_ray_node(submission)),
        join_s=JOIN_S,
        command=" ".join([*command, *map(shlex.quote, submission.prepared.overrides)]),
        name=shlex.quote(submission.name[:NAME_CHARACTERS]),
        resuming=shlex.join(submission.resuming),
    )


def notes(submission: Submission) -> list[str]:
    """Return the requirements for submitting it, one line each."""
    lines = [
        *(f"every node has {need}" for need in submission.needs),
        f"one folder on all nodes: {submission.runs}",
        f"on all nodes, with its flow and what it names: {submission.job}",
    ]
    for name, required in submission.variables:
        told = "must be exported where sbatch runs" if required else "is taken from where sbatch runs, if set there"
        lines.append(f"{name} {told} (--export); its value is not in this file")
    if (group := submission.groups[0]).least < group.most and group.number == group.least:
        lines.append(f"elastic: Slurm gives {group.least} to {group.most} nodes, and the job takes what it gets")
    return lines


def _made(submission: Submission) -> str:
    return f"Made by `rolemesh submit --to slurm`. Job {submission.name}, nodes: {submission.size}."


def _directives(submission: Submission, allocation: Allocation) -> list[str]:
    node, least, count, most = submission.groups[0]
    elastic = count == least < most
    given: dict[str, str | int | None] = {
        "job-name": submission.name,
        "nodes": f"{least}-{most}" if elastic else count,
        "ntasks-per-node": 1,
        "cpus-per-task": int(node.cpu),
        "gpus-per-node": int(node.gpu) or None,
        "mem": f"{round(memory_gb(node) * 1000)}M" if "memory_gb" in node.custom else None,
        "partition": allocation.partition,
        "time": allocation.time,
        "export": "ALL",
        "signal": f"B:TERM@{NOTICE_S}",
    }
    # A failed node is a matter of the job's failover, except the first one.
    options = [f"--{name}={value}" for name, value in given.items() if value]
    return [f"#SBATCH {option}\n" for option in (*options, "--no-kill --requeue --open-mode=append")]


def _ray_node(submission: Submission) -> list[str]:
    node = submission.groups[0].node
    words = ["--num-cpus", f"{int(node.cpu)}", "--num-gpus", f"{int(node.gpu)}"]
    custom = {name: amount for name, amount in sorted(node.custom.items()) if name != "memory_gb"}
    if "memory_gb" in node.custom:
        words += ["--memory", str(int(memory_gb(node) * 1e9))]
    if custom:
        words += ["--resources", json.dumps(custom)]
    if node.labels:
        words += ["--labels", ",".join(f"{name}={value}" for name, value in sorted(node.labels.items()))]
    return [*words, "--object-store-memory", str(OBJECT_STORE_BYTES), "--disable-usage-stats"]
