"""The `rocksdb` backend: keyed state on the slot's disk, in bounded memory."""

from taskexecutor.executor.state.rocksdb.backend import RocksDbKeyedStateBackend
from taskexecutor.executor.state.rocksdb.database import RocksDbMemory
from taskexecutor.executor.state.rocksdb.local_tables import LocalTables

__all__ = ["LocalTables", "RocksDbKeyedStateBackend", "RocksDbMemory"]
