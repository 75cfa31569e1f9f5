"""Checks on a run: its setting values, its framework, and whether its data has enough samples."""
