"""Surogate in Python."""
