"""The controller of one job. Imports nothing of `rolemesh.agent`."""
