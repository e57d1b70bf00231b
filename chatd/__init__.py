"""chatd: a self-hosted streaming chat backend whose later turns are nearly free."""

__version__ = "0.1.0"
