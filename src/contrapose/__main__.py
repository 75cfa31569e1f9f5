"""`python -m contrapose` and the `contrapose` script."""

import os
import signal


def main() -> None:
    """Run the command line."""
    # Importing torch takes seconds; meanwhile SIGTERM would end the process silently, and Ctrl-C would print a traceback.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    # Imported here: every worker process imports the script that started it, and workers do not need the command line.
    from contrapose.lab.cli import main as command_line

    command_line()


def _end(number: int, frame: object) -> None:
    """Exit on a signal that arrives before the command has started or after it has ended."""
    os.write(2, f"contrapose: stopped by signal {number}; run the same command again\n".encode())
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
