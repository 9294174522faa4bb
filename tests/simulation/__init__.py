"""A deterministic simulation of a whole job: the real machines of the protocol under a seeded scheduler.

``python -m tests.simulation SEED`` plays one schedule again and prints what happened; ``--hours N`` searches for one
that breaks (`tests.simulation.search`).
"""
