"""What a run leaves, whoever executes it: its folder, lines of events and metrics, digests, its
lock."""
