"""`python -m contrapose` is `contrapose`."""

from contrapose.cli import main

main()
