"""The features that the core of the engine does not name. Each has a folder: events, records, state, decisions."""
