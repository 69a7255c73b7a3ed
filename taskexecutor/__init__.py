"""The TaskExecutor: one per machine; owns slots, keeps a PySpark executor process in each, relays between it and the JobMasters."""
