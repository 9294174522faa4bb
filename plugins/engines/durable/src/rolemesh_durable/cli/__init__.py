"""The verbs for running jobs and their runs."""
