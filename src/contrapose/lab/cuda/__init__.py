"""CUDA streams and graphs."""
