"""Connectors in a slot: the readers and writers behind the descriptions in firesteel.connectors.

`runtime` finds what belongs to a description. `split_source` and `writer_sink` run any reader and
writer, a program's own too; the folders have what the built-in ones need beyond that.
"""
