"""The TaskExecutor: one per machine; owns slots with a PySpark executor each, relays between these
and the JobMasters.
"""
