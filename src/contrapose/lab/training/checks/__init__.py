"""Checks of a run: its values, its framework, and whether its data has enough samples."""
