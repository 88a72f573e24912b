"""The command line: each subcommand parses, calls and prints."""
