"""One drive from start to summary: processes, live status, results."""
