"""The backend on Ray: a detached, named master actor per job, and a detached agent actor per node in reserved bundles.

Ray starts and places actors, reserves bundles atomically, restarts the master, and says when an actor or node is gone;
what flows between master and agents are actor calls that only enqueue.
"""
