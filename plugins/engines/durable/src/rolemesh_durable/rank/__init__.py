"""The process of a rank: the loop, edges and their transports. No Ray here."""
