"""The durable engine of rolemesh: master, agents and ranks that may die.

Other distributions import the modules of `rolemesh_durable.api`, and those of the kinds of plugins.
"""
