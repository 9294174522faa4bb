"""The standard tests of engines, and the job that they run."""
