"""Exit codes of the command line. Codes above 128 follow the shell's convention: 128 + the signal number."""

BAD_SETTINGS, FAILED, STOPPED, INTERRUPTED, OUTPUT_CLOSED = 2, 1, 143, 130, 141  # SIGTERM, SIGINT and SIGPIPE
