"""Limits of keys that several bridges share in a Valkey or Redis server."""
