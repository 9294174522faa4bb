"""Processes of jobs: how they begin and end, and what cleans up after them. Import the module that you need."""
