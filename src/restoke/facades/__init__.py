"""Other libraries' names and argument shapes on restoke's own parts; each facade uses the public API only."""
