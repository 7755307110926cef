"""Measures the package next to the C library, in one run: ``./dev bench python``. bench/README.md says what the figures mean."""
