"""What a run records: JSON lines, its environment, and metrics beyond the usual ones."""
