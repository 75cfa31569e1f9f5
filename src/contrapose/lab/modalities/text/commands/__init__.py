"""Options that exist only for texts: a layer of its own, above training and report."""
