"""segue: a server that continues text."""

__version__ = "0.1.0"
