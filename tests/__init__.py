"""The tests; they mirror src/restoke."""
