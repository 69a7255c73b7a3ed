"""Submits and watches jobs: the client, the embedded cluster and the command line."""
