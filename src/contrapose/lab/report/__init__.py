"""Turn numbers into figures and pages: matplotlib figures for files and notebooks, and self-contained HTML. Never trains."""
