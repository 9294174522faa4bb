"""Checks of nodes: a node is measured before ranks start there, and an unfit one is a failure."""
