"""Worker processes: making them, talking to them, and proving that they are dead."""
