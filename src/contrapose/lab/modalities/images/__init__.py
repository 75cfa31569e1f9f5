"""Images: data sets, augmentation and encoders."""
