"""TIFFs: their pages, tags and frames."""
