"""What runs in a rank's process: the loop, edges and their transports. No Ray here."""
