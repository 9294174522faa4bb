"""The observer `console`: shows a job on a terminal."""
