"""The facades, each by its own scripts."""
