"""How a command ends: what its exit code says."""

BAD_SETTINGS, FAILED, STOPPED, INTERRUPTED, UNREAD = 2, 1, 143, 130, 141
