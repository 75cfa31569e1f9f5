"""What the command line offers for images with captions alone: a layer of their own, above training and report."""
