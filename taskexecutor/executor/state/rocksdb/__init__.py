"""The `rocksdb` backend: keyed state on the slot's disk, in bounded memory."""

from taskexecutor.executor.state.rocksdb.backend import RocksDbKeyedStateBackend
from taskexecutor.executor.state.rocksdb.database import RocksDbMemory

__all__ = ["RocksDbKeyedStateBackend", "RocksDbMemory"]
