"""Parts of networks that all modalities share: the encoder interface, projectors, batch norms and convolutions."""
