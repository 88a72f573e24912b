"""Pictures and report of a sweep."""
