"""Bans of nodes: no rank is placed on them for a time, whatever moves it. Failover levels ask for them."""
