"""How a command ends: what its exit code says."""

BAD_SETTINGS, FAILED, STOPPED, INTERRUPTED = 2, 1, 143, 130
