"""What the command line offers for texts alone: a layer of their own, above training and report."""
