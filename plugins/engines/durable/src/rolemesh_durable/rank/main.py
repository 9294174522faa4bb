"""A rank's process after its fork: import the plugin, open the inbox, meet the peers, set up, run, report, leave."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.import_ref import import_paths
from rolemesh.api.workload import RankContext, Rendezvous, Workload
from rolemesh.errors import RolemeshError
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_dataplane.transports import Site
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.job import PluginUse
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.master_mail import MasterMail
from rolemesh_durable.protocol.rank.page import GENERATION, IDLE, LAYOUT, PID, REFUSED, STOPPING
from rolemesh_durable.protocol.snapshot_plan import known
from rolemesh_durable.protocol.starts import RankStart
from rolemesh_durable.rank.breakpoints import explain_breakpoints
from rolemesh_durable.rank.context import StepContext
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.generators import seed_generators
from rolemesh_durable.rank.life import Life
from rolemesh_durable.rank.mail import EndpointMail
from rolemesh_durable.rank.port import EnginePort, port_of
from rolemesh_durable.rank.said import Said
from rolemesh_durable.rank.services import Extending, RankPlace
from rolemesh_durable.rank.signals import on_sigterm
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.waits import ProcessWaits
from rolemesh_durable.resolved import check_before_forks, load_exact
from rolemesh_processes.beginning import entitle
from rolemesh_runtime.constructing import constructed
from rolemesh_runtime.operator_failure import OperatorFailed, cause_of, summarize, user_traceback

__all__ = ["main", "prepare"]

FAULT_EXIT_CODE = 3
"""Exit code of a rank that a rehearsal has told to exit."""
ENGINE = str(Path(__file__).parents[1]) + "/"
"""Folder whose frames do not concern the reader of a traceback."""


_decode = msgspec.msgpack.Decoder(RankStart).decode


def prepare(start: bytes) -> RankStart:
    """Before the fork, do the work that many ranks share: decode the start, and check its plugins."""
    decoded = _decode(start)
    job = decoded.job
    listed = job.plugins.get("extensions", {}).values()
    for use in (job.roles[role := decoded.launch.role], *job.transports[role].values(), *listed):
        check_before_forks(msgspec.convert(use.record, PluginRecord))
    return decoded


def main(start: RankStart, shipped: Sequence[type[Any]]) -> int:
    """Run a rank with the `shipped` extensions and those of the job; return the process's exit code."""
    entitle(start.job.name, f"{start.launch.ref}")
    explain_breakpoints()
    return _Rank(start, shipped).run()


def _load(use: PluginUse, base: str) -> Any:
    cls = load_exact(msgspec.convert(use.record, PluginRecord))
    return cls(cls.Options.model_validate(use.options, context={"base": base}))


class _LogLine(logging.Formatter):
    """A line with its time as ISO 8601 has it, in UTC: the nodes of a job may have different time zones."""

    converter = staticmethod(time.gmtime)
    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"


class _Rank:
    def __init__(self, start: RankStart, shipped: Sequence[type[Any]]) -> None:
        self.start, self.job, self.launch = start, start.job, start.launch
        launch = start.launch
        handler = logging.StreamHandler()
        handler.setFormatter(_LogLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        import_paths(self.job.base)
        self.status_page = StatusPage.open(start.status_page)
        self.status_page.fields[PID] = os.getpid()
        self.status_page.fields[GENERATION] = launch.generation
        self.status_page.fields[LAYOUT] = launch.layout.number
        self.control = Control(partial(os._exit, FAULT_EXIT_CODE))
        self.control.on_adopted.append(self._say_again)
        self.said = Said(start.socket_dir, launch.role, launch.rank, launch.generation)
        place = launch.role, launch.rank, start.node, launch.generation
        site = Site(*place, start.host, start.socket_dir, start.shm_dir, self.job.keys)
        self.endpoint = Endpoint(
            site,
            transports={name: _load(use, self.job.base) for name, use in self.job.transports[launch.role].items()},
            local="local",
            remote=self.job.remote,
            on_control=self.control,
            agent_address=start.agent_address,
            peers=len(Neighbours(self.job.graph, self.job.world_sizes).of(launch.ref, launch.collective)),
            keep_slots=self.job.snapshots.enabled,
        )
        self.endpoint.assign(self.job.edges)
        self.endpoint.watch_refusals(lambda refused: self.status_page.fields.__setitem__(REFUSED, refused))
        group = launch.collective and launch.world_size > 1
        self.barrier = GroupBarrier(EndpointMail(self.endpoint), launch.world_size) if group else None
        master = MasterMail(launch.start, self.control, self.endpoint.report)
        self.waits = waits = ProcessWaits(self.endpoint, self.status_page)
        self.place = RankPlace(start, self.endpoint, self.status_page, master, self.barrier, waits)
        listed = self.job.plugins.get("extensions", {}).values()
        self.extensions: list[Extending] = [extension(None) for extension in shipped]
        self.extensions += [_load(use, self.job.base) for use in listed]
        for extension in self.extensions:
            extension.started(self.place)
        self.step = -1
        self.operator = ""
        self.over = False
        """True if only the interpreter's own end is left."""
        on_sigterm(lambda: self.status_page.fields[STOPPING], self._stop)

    def _stop(self) -> None:
        """Leave an operator that takes too long while the job stops, unless the rank has left it already."""
        if self.operator != "teardown" and not self.over:
            self.endpoint.stop()
            self.control(m.Stop(0, 0.0))
            raise Stopping

    def run(self) -> int:
        try:
            try:
                return self._life()
            except Stopping:
                return 0
            except OperatorFailed as failed:
                self._report(failed.error, failed.label, failed.step)
            except BaseException as error:
                self._report(error, self.operator, self.step)
            return 1
        finally:
            self.over = True
            self.endpoint.close()

    def _life(self) -> int:
        launch = self.launch
        listener = self._listen() if launch.collective and launch.rank == 0 else None
        port = listener.getsockname()[1] if listener is not None else None
        self._say(m.RankHello(launch.role, launch.rank, launch.generation, os.getpid(), self.endpoint.addresses, port))
        workload, ctx = self._set_up(listener)
        life: Life | None = None
        try:
            self.operator = "restore"
            life = Life(self.place, self.control, workload, ctx, self.extensions)
            self.operator = ""
            self._say(m.RankReady(launch.role, launch.rank, launch.generation, self.setup_s))
            last = life.run()
            self.operator = "snapshot"
            done = life.conclude(last)
            self.operator = ""
            self._say(done)
            life.wait()
        except Stopping:
            pass
        self.operator = "teardown"
        try:
            if life is not None:
                life.acknowledge()
                life.close()
        finally:
            workload.teardown()
        if lost := port_of(ctx).reported():
            ctx.log.warning("no line of metrics.jsonl follows, so it lacks these reports: %s", ", ".join(lost))
        self.over = True
        self._say(m.RankEnds(*launch.start))
        return 0

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.start.host else socket.AF_INET
        listener = socket.create_server((self.start.host, 0), family=family, backlog=1024)
        os.set_inheritable(listener.fileno(), False)
        return listener

    def _set_up(self, listener: socket.socket | None) -> tuple[Workload, RankContext]:
        launch, job = self.launch, self.job
        peers = self.control.peers
        # Earlier addresses may name the group's former meeting point.
        self.waits.until(lambda: launch.ref in peers and peers[launch.ref].generation == launch.generation, IDLE)
        self.endpoint.connect(tuple(peers.values()))
        rendezvous = None
        if launch.collective and (at := self.control.rendezvous) is not None:
            fd = listener.detach() if listener is not None else None
            rendezvous = Rendezvous(at.address, at.port, at.generation, fd)
        for extension in self.extensions:
            extension.before_setup(self.place)
        begun = time.monotonic()
        self.operator = "setup"
        use = job.roles[launch.role]
        cls = load_exact(msgspec.convert(use.record, PluginRecord))
        options = cls.Options.model_validate(use.options, context={"base": job.base})
        sends = any(job.graph.ops[edge.src].role == launch.role for edge in job.graph.edges)
        ctx = StepContext(
            options=options,
            job=job.name,
            role=launch.role,
            rank=launch.rank,
            world_size=launch.world_size,
            local_rank=launch.local_rank,
            local_world_size=launch.local_world_size,
            node=self.start.node,
            seed=job.seed,
            steps=known(job.steps),
            gpus=tuple(range(len(launch.gpus))),
            cpus=launch.cpus,
            memory_gb=launch.memory_gb,
            share=launch.share,
            turns=bool(launch.turns),
            peers=launch.peers,
            rendezvous=rendezvous,
            generation=launch.generation,
            run_dir=Path(job.run_dir),
            tmp_dir=Path(self.start.tmp_dir),
            base=Path(job.base),
            port=EnginePort(self.endpoint.lender if sends else None),
            plugins={
                (kind, n): partial(_load, u, job.base) for kind, uses in job.plugins.items() for n, u in uses.items()
            },
        )
        seed_generators(ctx, launch.resume)
        workload = constructed(cls, ctx.options)
        workload.setup(ctx)
        self.setup_s = time.monotonic() - begun
        self.operator = ""
        return workload, ctx

    def _report(self, error: BaseException, operator: str, step: int) -> None:
        text = user_traceback(error, ENGINE)
        known = isinstance(error, RolemeshError)
        shown = text or (summarize(error) if known else "".join(traceback.format_exception(error)))
        print(shown, file=sys.stderr, flush=True)
        failure = Failure(
            "log_lost" if isinstance(error, LogLost) else cause_of(error), self.launch.role, self.launch.rank,
            self.start.node, operator, step, summarize(error), text, generation=self.launch.generation,
        )  # fmt: skip
        self._say(m.RankFailed(failure))

    def _say(self, message: m.RankToAgent) -> None:
        """Tell the agent, and its later incarnations."""
        self.said.keep(message)
        self.endpoint.report(message)

    def _say_again(self) -> None:
        for message in self.said.all():
            self.endpoint.report(message)
