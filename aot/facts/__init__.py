"""How plain facts are written down in classes."""
