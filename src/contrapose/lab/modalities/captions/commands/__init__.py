"""Commands and options that exist only for images with captions: a layer of its own, above training and report."""
