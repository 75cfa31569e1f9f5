"""From numbers to pictures and pages: matplotlib figures, for files and notebooks, and self-contained HTML. Never trains."""
