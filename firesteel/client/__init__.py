"""Submitting and watching jobs: the client, the embedded cluster and the command line."""
