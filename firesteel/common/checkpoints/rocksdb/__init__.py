"""What the `rocksdb` backend writes, as others read it too."""
