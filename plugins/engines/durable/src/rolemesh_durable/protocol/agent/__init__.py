"""The agent's side of the protocol: events in, effects out."""
