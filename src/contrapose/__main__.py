"""`python -m contrapose` and the `contrapose` script."""

import os
import signal


def main() -> None:
    """Run the command line."""
    # Importing torch takes seconds, in which SIGTERM would end the process in silence and Ctrl-C with a traceback.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    # Imported here, since every worker process imports the script that started it, and has no use for the command line.
    from contrapose.lab.cli import main as command_line

    command_line()


def _end(number: int, frame: object) -> None:
    """End on a signal that comes before the command has started, or after its end."""
    os.write(2, f"contrapose: stopped by signal {number}; run the same command again\n".encode())
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
