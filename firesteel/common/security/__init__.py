"""Roles, tokens, keys, and the cluster's certificate authority."""
