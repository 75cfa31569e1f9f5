"""Exit codes of the command line. Above 128 they follow the shell's convention: 128 + the number of the signal."""

BAD_SETTINGS, FAILED, STOPPED, INTERRUPTED, OUTPUT_CLOSED = 2, 1, 143, 130, 141  # SIGTERM, SIGINT and SIGPIPE
