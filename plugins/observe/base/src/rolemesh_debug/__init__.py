"""Debugging of operators: the inputs of one that failed, its replay, a rank's stacks and memory, alarms for metrics.

`extension` and `watch` are extensions of the durable engine. `commands` has the verbs ``debug`` and ``replay-op``.
"""
