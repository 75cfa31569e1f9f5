"""The engine for widths up to 256 on a GPU: kernels that keep rows and their gradients in registers."""
