"""The engine that runs a job in the process that waits for it."""
