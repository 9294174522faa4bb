"""The durable engine of rolemesh: master, agents and ranks that may die, and the verbs that talk to a running job."""
