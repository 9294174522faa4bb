"""For verbs and tools: the runs in a runs folder, the jobs that live there, and the questions that a master answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.control.asking import Request as Request
    from rolemesh_durable.control.asking import ask as ask
    from rolemesh_durable.control.client import ControlClient as ControlClient
    from rolemesh_durable.control.client import MasterGoneError as MasterGoneError
    from rolemesh_durable.control.client import RefusedError as RefusedError
    from rolemesh_durable.control.living import LivingRun as LivingRun
    from rolemesh_durable.control.resume import ResumePoint as ResumePoint
    from rolemesh_durable.control.resume import Unfinished as Unfinished
    from rolemesh_durable.control.resume import find_source as find_source
    from rolemesh_durable.control.resume import unfinished as unfinished
    from rolemesh_durable.control.watch import ANSWER_S as ANSWER_S
    from rolemesh_durable.extensions.hangs.agent import take_stacks as take_stacks
    from rolemesh_durable.extensions.rehearsal.faults import LASTING_S as LASTING_S
    from rolemesh_durable.extensions.rehearsal.requests import InjectFault as InjectFault
    from rolemesh_durable.extensions.rehearsal.requests import Release as Release
    from rolemesh_durable.extensions.relayout.requests import DrainNode as DrainNode
    from rolemesh_durable.extensions.relayout.requests import ResizeJob as ResizeJob
    from rolemesh_durable.extensions.relayout.requests import ResizeRequest as ResizeRequest
    from rolemesh_durable.extensions.signals.requests import SignalJob as SignalJob
    from rolemesh_durable.options import options_in as options_in
    from rolemesh_durable.protocol.failures import FaultKind as FaultKind
    from rolemesh_durable.runs import SCRIPT_RUNS as SCRIPT_RUNS
    from rolemesh_durable.runs import ControlFile as ControlFile
    from rolemesh_durable.runs import Run as Run
    from rolemesh_durable.runs import find_run as find_run
    from rolemesh_durable.runs import list_runs as list_runs

_HOMES = {
    "control.asking": "Request ask",
    "control.client": "ControlClient MasterGoneError RefusedError",
    "control.living": "LivingRun",
    "control.resume": "ResumePoint Unfinished find_source unfinished",
    "control.watch": "ANSWER_S",
    "extensions.hangs.agent": "take_stacks",
    "extensions.rehearsal.requests": "InjectFault Release",
    "extensions.relayout.requests": "DrainNode ResizeJob ResizeRequest",
    "extensions.rehearsal.faults": "LASTING_S",
    "extensions.signals.requests": "SignalJob",
    "options": "options_in",
    "protocol.failures": "FaultKind",
    "runs": "SCRIPT_RUNS ControlFile Run find_run list_runs",
}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
