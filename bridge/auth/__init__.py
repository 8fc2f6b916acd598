"""Credentials on disk."""
