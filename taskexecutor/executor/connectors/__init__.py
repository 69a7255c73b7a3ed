"""Connectors in a slot: the readers and writers for the descriptions in firesteel.connectors.

`runtime` finds the implementation of a description. `split_source` and `writer_sink` run any reader
and writer, including those of a program; the folders hold the additional parts of built-in
connectors.
"""
