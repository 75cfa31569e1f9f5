"""`python -m contrapose` and the `contrapose` script."""


def main() -> None:
    """Run the command line."""
    # Imported here, since every worker process imports the script that started it, and has no use for the command line.
    from contrapose.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
