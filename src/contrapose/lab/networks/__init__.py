"""Parts of networks that all modalities share: the encoder interface, projectors and batch norms."""
