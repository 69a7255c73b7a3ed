"""The files of the `rocksdb` backend, for the backend and for other readers."""
