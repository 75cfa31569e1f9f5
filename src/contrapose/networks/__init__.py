"""Parts of networks that no modality owns: the encoder's interface, projectors, batch norms, convolutions."""
