"""The version of the package, which all its parts and the build (`pyproject.toml`) read here.

Imports nothing, so that any part may import it.
"""

__version__ = "0.1.0"
