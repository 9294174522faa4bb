"""The guard: a small process beside the rank, which starts the commands of one sandbox, watches and ends them.

It uses the standard library only, and runs without site-packages, so it starts in about 20 milliseconds.
"""
