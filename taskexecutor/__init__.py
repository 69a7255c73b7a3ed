"""The TaskExecutor service, one per machine.

It owns slots with one PySpark executor process each, and relays messages between these and the
JobMasters.
"""
