"""Firesteel's own routes, below /firesteel/v1."""
