"""Options that exist only for texts. They are a separate layer, above training and report."""
