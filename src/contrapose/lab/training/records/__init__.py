"""The records of a run: JSON lines, its environment, and extra metrics."""
