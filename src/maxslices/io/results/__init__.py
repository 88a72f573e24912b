"""Results: sinks that are whole or not there, and other formats of a whole result."""
