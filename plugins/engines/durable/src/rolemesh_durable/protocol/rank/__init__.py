"""A rank without its process: its edges, its group, its snapshots and its steps, on effects that a driver gives it."""
