"""Commands and options that exist only for images with captions. They are a separate layer, above training and report."""
