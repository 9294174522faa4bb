"""The backend on Ray: a detached, named master actor per job, and a detached agent actor per node in reserved bundles.

Ray starts and places actors, reserves bundles atomically, restarts the master, and reports lost actors and nodes.
Master and agents exchange messages by actor calls that only enqueue.
"""
