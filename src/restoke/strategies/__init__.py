"""One file a strategy: a function `prepare` that makes parts of a model and an optimizer. None imports another."""
