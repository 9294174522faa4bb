"""The controller of one job. Imports nothing of `rolemesh_durable.agent`."""
