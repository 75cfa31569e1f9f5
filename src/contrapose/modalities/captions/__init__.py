"""Images with captions: data sets of one or more captions for each image."""
