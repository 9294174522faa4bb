"""Benchmarks: one file per claim of speed, ours and the alternative in turns in one run. ``python -m benchmarks``."""
