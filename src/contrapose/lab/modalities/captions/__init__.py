"""Images with captions: a folder or tars of both, views of both, and two encoders."""
