"""What is asked of the operating system: threads, files by offset, disk space."""
