"""The store of a job's transitions."""
