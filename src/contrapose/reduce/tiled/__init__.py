"""The engine for wide embeddings and both directions on a GPU: tiles in kernels, gradients by matrix products."""
