"""The version, in one place: the build, `restoke.__version__` and the manifest of a checkpoint read it here."""

__version__ = "0.1.0"
