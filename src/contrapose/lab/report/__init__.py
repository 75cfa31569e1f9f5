"""Turn numbers into matplotlib figures (for files and notebooks) and self-contained HTML pages. This package never trains."""
