"""From a declaration to running processes: what to start, how, and what to say when one of them dies."""
