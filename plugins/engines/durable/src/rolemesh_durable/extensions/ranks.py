"""The shipped extensions that have a part in ranks, in the order in which a rank calls their hooks.

The order is fixed: with another one, a repeated step could have another result. The first one wraps an operator
innermost. Extensions that a job lists come behind these. `masters` has the parts of the master.
"""

from __future__ import annotations

from rolemesh_durable.extensions import Extension
from rolemesh_durable.extensions.calls.extension import Calls
from rolemesh_durable.extensions.sharing.extension import Sharing
from rolemesh_durable.extensions.turns.extension import Turns

__all__ = ["RANK_EXTENSIONS"]

RANK_EXTENSIONS: tuple[type[Extension], ...] = (Sharing, Turns, Calls)
