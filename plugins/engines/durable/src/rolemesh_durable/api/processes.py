"""For processes of a job: how they begin and end, what they do on signals, and what they leave to their parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.agent.limits import raise_limits as raise_limits
    from rolemesh_durable.agent.openmp import end_threads as end_threads
    from rolemesh_durable.agent.zygote import die_with_parent as die_with_parent
    from rolemesh_durable.agent.zygote_pool import BASE_ENV as BASE_ENV
    from rolemesh_durable.dispositions import handle_unless_ignored as handle_unless_ignored
    from rolemesh_durable.dispositions import pass_over as pass_over
    from rolemesh_durable.ending import awaited as awaited
    from rolemesh_durable.ending import disown_finalizers as disown_finalizers
    from rolemesh_durable.ending import end_program as end_program
    from rolemesh_durable.ending import flush_files as flush_files
    from rolemesh_durable.title import entitle as entitle

_HOMES = {
    "agent.limits": "raise_limits",
    "agent.openmp": "end_threads",
    "agent.zygote": "die_with_parent",
    "agent.zygote_pool": "BASE_ENV",
    "dispositions": "handle_unless_ignored pass_over",
    "ending": "awaited disown_finalizers end_program flush_files",
    "title": "entitle",
}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
