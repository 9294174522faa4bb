"""The processes of each node: the agent, its zygotes, the janitor. Imports nothing of `rolemesh_durable.master`."""
