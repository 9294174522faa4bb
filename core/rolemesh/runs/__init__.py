"""The output of a run, for any engine: its folder, lines of events and metrics, digests, and its
lock."""
