"""A rank's life as the kernel runs it: preloaded in a zygote, forked, torn down without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolemesh_vllm import VLLMWorkload

SCRIPT = """
import importlib, os, sys, threading
import numpy as np
from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.workload import RankContext
from rolemesh_vllm import VLLMWorkload

for module in VLLMWorkload.preload:
    importlib.import_module(module)
print("threads", threading.active_count(), len(os.listdir("/proc/self/task")), flush=True)
pid = os.fork()
if pid == 0:
    options = VLLMWorkload.Options(model=sys.argv[1], max_tokens=4, engine={"max_model_len": 64})
    workload = VLLMWorkload(options)
    workload.setup(RankContext())
    prompts = Batch({"prompt_ids": Ragged.from_rows([[5, 6, 7]], dtype=np.int32), "index": np.zeros(1, np.int64)})
    print("rows", workload.generate(prompts).rows, flush=True)
    workload.teardown()
    os._exit(0)
print("child", os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.mark.soak
def test_a_forked_rank_generates_and_leaves_no_file_behind(tiny_model: Path, tmp_path: Path) -> None:
    env = os.environ | VLLMWorkload.env | {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tiny_model)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "threads 1 1" in lines, "a zygote must not fork with more than one thread"
    assert "rows 1" in lines, done.stderr
    assert "child 0" in lines, done.stderr
    assert not list(tmp_path.glob("vllm_dist_*"))
