"""The workload `script`: each rank runs a training script, unchanged, as its main program."""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from rolemesh import Gathered, OptionsError, RankContext, State, Workload, operator
from rolemesh.api.workload import Rendezvous
from rolemesh_launch import tracking
from rolemesh_launch.environment import Worker, variables
from rolemesh_launch.flags import BYTES
from rolemesh_launch.process import after_import, as_python_starts
from rolemesh_launch.program import Program, trim
from rolemesh_launch.rounds import LOOK_S, Alone, Rounds
from rolemesh_launch.states import Blocks, generators, set_generators
from rolemesh_launch.stdin import take
from rolemesh_processes.guard import MARKER
from rolemesh_processes.loopback import loopback
from rolemesh_processes.output import part_errors

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from rolemesh.job.prepared import CheckedJob

__all__ = ["Script", "ScriptOptions"]

MEET_S = 300.0
POLL_S = 0.05


def _use_all_processors() -> None:
    """Give libraries that the rank has loaded with one thread as many as they would take in a new process."""
    count = len(os.sched_getaffinity(0))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
    if "numpy" in sys.modules:
        before = os.environ.copy()
        from threadpoolctl import threadpool_limits  # it sets a variable

        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        threads = before.get("OPENBLAS_NUM_THREADS", "")
        threadpool_limits(int(threads) if threads.isdecimal() and int(threads) else count, "blas")


class ScriptOptions(BaseModel, extra="forbid"):
    """The script and its arguments."""

    target: str = Field(description="The script's path (relative to the job file), a module's name, or an executable.")
    how: Literal["path", "module", "executable"] = Field(default="path", description="The kind of `target`.")
    arguments: list[str] = Field(default=[], description="The script's arguments.")
    folder: str | None = Field(
        default=None, description="Working folder of the script. Default: the job file's folder."
    )
    max_restarts: int = Field(default=0, ge=0, description="Value of TORCHELASTIC_MAX_RESTARTS.")
    run_id: str = Field(default="none", description="Value of TORCHELASTIC_RUN_ID.")
    role_name: str = Field(default="default", description="Value of ROLE_NAME.")
    threads: bool = Field(
        default=False, description="Leave the number of threads to the script, instead of one per process."
    )
    preload: bool = Field(
        default=True,
        description="Import torch once for all workers. If false, each worker imports it with its script, which takes "
        "seconds; scripts that set variables for torch before they import it need that.",
    )
    stdin: str = Field(default="", description="Folder in which the command gives its standard input; none by default.")
    open_files: int | None = Field(
        default=None, ge=0, description="Soft limit of open files. Default: that of rolemesh's processes, the hard one."
    )
    environment: dict[str, str | None] = Field(
        default={}, description="Variables to add to its environment, or to remove (null)."
    )


class Script(Workload):
    """Runs a training script as torchrun does.

    A step of the job consists of some steps of the script's optimizers. After the script has called `track`, it
    consists of the work between two calls of `Run.done`.
    """

    Options = ScriptOptions
    options: ScriptOptions
    api_version = 1
    group = "collective"
    lockstep = False
    own_signals = True
    preload = ("torch", "torch.distributed", "torch._dynamo")

    @classmethod
    def process(cls, options: ScriptOptions) -> tuple[Sequence[str], Mapping[str, str]]:
        """See `Workload.process`: preload torch, and set the variables that libraries may read at import."""
        given = {name: value for name, value in options.environment.items() if value is not None and name != "TMPDIR"}
        return cls.preload if options.preload else (), given

    @classmethod
    def check_flow(cls, options: ScriptOptions, role: str, job: CheckedJob) -> None:
        """See `Workload.check_flow`: check that the script exists."""
        if options.how == "path" and not Path(job.base, options.target).exists():
            remedy = "give its path, or -m and a module's name"
            raise OptionsError(f"there is no script {options.target!r}", where="target", remedy=remedy)

    @classmethod
    def stateful(cls, options: Any) -> bool:
        """See `Workload.stateful`: true, because no call is replayed to a script that restarts."""
        return True

    def setup(self, ctx: RankContext) -> None:
        """See `Workload.setup`: the ranks meet, and the script gets torchrun's environment."""
        options, at = self.options, ctx.rendezvous
        self._own_process = MARKER in os.environ
        if self._own_process:
            part_errors()
            if options.stdin:
                take(options.stdin)
            if options.open_files is not None:
                resource.setrlimit(
                    resource.RLIMIT_NOFILE, (options.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
                )
        as_python_starts(ctx.base)
        self._ctx, self._steps, self._counted = ctx, 0, 0
        self._objects: Mapping[str, tracking.Stateful] | None = None
        self._left: State = Gathered()
        self._done, self._blocks, self._over = 0, Blocks(), False
        self._store: TCPStore | None = None
        os.chdir(Path(ctx.base, options.folder or "."))
        if at is None:
            host = loopback()
            alone = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            at = Rendezvous(host, alone.getsockname()[1], 0, alone.detach())
        self._at = at
        errors = ctx.tmp_dir / f"error-{ctx.role}-{ctx.rank}.json"
        worker = Worker(
            ctx.rank, ctx.world_size, ctx.local_rank, ctx.local_world_size, ctx.generation, options.max_restarts,
            "localhost" if at.address in ("127.0.0.1", "::1") else at.address, at.port, options.run_id,
            options.role_name, str(errors),
        )  # fmt: skip
        os.environ.update(variables(worker))
        self._see_devices()
        if options.threads:
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # those of the rank
                os.environ.pop(name, None)
        for name, value in options.environment.items():
            if name == "CUDA_VISIBLE_DEVICES" and ctx.gpus:
                continue  # the devices of the plan
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        if "PWD" in os.environ:
            os.environ["PWD"] = os.getcwd()
        tempfile.tempdir = None
        if options.threads:
            _use_all_processors()
        # The end of a program leaves no thread pools, without which torch cannot be imported.
        self._program = Program(
            options.target, options.how, self._arguments(options.arguments), before_end=lambda: self._rounds
        )
        # Torch reads variables when it is imported, which the script may do after it has set them.
        after_import("torch.optim.optimizer", lambda module: module.register_optimizer_step_post_hook(self._stepped))
        if ctx.rank == 0 or "torch" in sys.modules:
            after_import("torch.distributed.rendezvous", lambda module: self._open_store())

    def _open_store(self) -> TCPStore:
        """Open the store of all ranks, once torch is imported. The script's process group uses it, too."""
        from torch.distributed import TCPStore

        if self._store is None:
            ctx, at = self._ctx, self._at
            self._store = TCPStore(
                at.address,
                at.port,
                world_size=ctx.world_size,
                is_master=ctx.rank == 0,
                timeout=timedelta(seconds=MEET_S),
                wait_for_workers=False,
                master_listen_fd=at.listen_fd,
            )
        return self._store

    @cached_property
    def _rounds(self) -> Rounds:
        """The rounds of all ranks. A rank alone needs no torch."""
        if self._ctx.world_size == 1:
            return Rounds(Alone(), 1)
        from torch.distributed import PrefixStore

        return Rounds(PrefixStore("rolemesh", self._open_store()), self._ctx.world_size)

    def _arguments(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with the macro ``${local_rank}`` and those of `plain` replaced. Like torchrun, this also
        halves ``$$``."""
        macros = BYTES | {"local_rank": str(self._ctx.local_rank)}
        return [Template(argument).safe_substitute(macros) for argument in arguments]

    def _see_devices(self) -> None:
        """Make the devices of all ranks of the node visible, in their order. A script selects its own by LOCAL_RANK."""
        ctx, name = self._ctx, "CUDA_VISIBLE_DEVICES"
        if ctx.local_world_size > 1 and os.environ.get(name):
            paths = [
                ctx.tmp_dir / f"devices-{ctx.role}-{self._at.generation}-{ctx.rank - ctx.local_rank + local}"
                for local in range(ctx.local_world_size)
            ]
            new = ctx.tmp_dir / f".{paths[ctx.local_rank].name}"
            new.write_text(os.environ[name])
            new.replace(paths[ctx.local_rank])
            until = time.monotonic() + MEET_S
            while not all(path.exists() for path in paths) and time.monotonic() < until:
                time.sleep(POLL_S)
            held = (path.read_text() for path in paths)
            os.environ[name] = ",".join(dict.fromkeys(",".join(held).split(",")))

    @operator()
    def step(self) -> None:
        """Continue the script for some of its steps."""
        program, ctx = self._program, self._ctx
        if not self._over:
            tracking.current = self
            try:
                program.go()
            except BaseException as error:
                trim(error)
                raise
            if program.ended:
                self._over, rounds = True, self._rounds
                with suppress(RuntimeError):  # rank 0 has ended: see `_wait_for_others`
                    rounds.end()
        ctx.count(optimizer_steps=self._steps - self._counted)
        self._counted = self._steps
        if self._over:
            self._wait_for_others()
        self._rounds.next()

    def _wait_for_others(self) -> None:
        """The script of this rank has ended: wait until the others have ended, or are about to take their next step, or
        the job stops."""
        rounds = self._rounds
        try:
            while not (over := rounds.all_ended()) and not rounds.all_here() and not self._program.dismissed:
                time.sleep(POLL_S)
        except RuntimeError:  # rank 0 has ended, and so does the job: it is being stopped, or has failed
            return
        if over:
            self._ctx.finish("the script has ended")

    def kept(self, name: str) -> Any:
        """See `tracking.Host.kept`."""
        return self._left["tracked"].get(name) if self._left else None

    def forget(self) -> None:
        """See `tracking.Host.forget`."""
        self._left = {}

    def begin(self, objects: Mapping[str, tracking.Stateful]) -> int:
        """See `tracking.Host.begin`: from here on all ranks end their steps together."""
        program, rounds = self._program, self._rounds
        if self._objects is not None:
            raise RuntimeError("track() was called before; give it everything at once")
        if not program.here:
            raise RuntimeError("track() belongs into the script's main thread")
        rounds.meet()
        while not rounds.all_met():
            time.sleep(LOOK_S)
        while rounds.full():
            program.pause()
        if left := self._left:
            if left["tracked"].keys() != objects.keys():
                names = f"{sorted(left['tracked'])}, not of {sorted(objects)}"
                raise ValueError(f"the snapshot is of {names}: track() needs the same names in every life")
            for name, found in objects.items():
                self._blocks.load(found, left["tracked"][name])
            set_generators(left["random"], self._ctx.rank)
            self._done = int(left["step"])
        self._objects, self._left = dict(objects), {}
        return self._done

    def done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """See `tracking.Host.done`: the job's step ends here, in all ranks."""
        program = self._program
        if program.ending:
            return
        if not program.here:
            raise RuntimeError("done() belongs into the script's main thread")
        self._done = step
        self._ctx.metric(
            **{name: float(value.item() if hasattr(value, "item") else value) for name, value in metrics.items()}
        )
        self._rounds.all_here()  # for ranks whose script has ended already
        program.pause()

    def snapshot(self) -> State:
        """See `Workload.snapshot`: the tracked state; before `track`, the state of an earlier life."""
        if self._objects is None:
            return self._left
        ctx, store = self._ctx, self._blocks.store
        return {
            "step": self._done,
            "random": generators(ctx.rank, ctx.world_size),
            "tracked": {name: store(found.state_dict()) for name, found in self._objects.items()},
        }

    def restore(self, state: State) -> None:
        """See `Workload.restore`: the script starts from its beginning, and gets this state when it calls `track`."""
        self._left = state

    def teardown(self) -> None:
        """See `Workload.teardown`: the script runs to its end. The agent sends it the signal that stops the job, and as
        under torchrun this kills a script without a handler, without running exit handlers."""
        program = self._program
        if program.left and self._own_process:
            os._exit(0)
        if self._own_process:
            try:
                program.end()
            except BaseException as error:
                trim(error)
                raise

    def _stepped(self, *_: object) -> None:
        """Count a step of an optimizer."""
        if self._program.forked:
            return
        self._steps += 1
        self._ctx.progress(self._steps)
        if self._objects is None and self._program.here and self._may_end():
            self._program.pause()

    def _may_end(self) -> bool:
        try:
            return self._rounds.may_end()
        except RuntimeError:  # rank 0 has ended, because the job stops: the script goes on to its own end
            self._program.ending = True
            return False
