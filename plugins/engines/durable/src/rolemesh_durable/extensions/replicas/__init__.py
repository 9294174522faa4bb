"""Copies of snapshots in the memory of another node, so that a job survives the loss of a node."""
