"""Services of the operating system: threads, file access by offset, disk space."""
