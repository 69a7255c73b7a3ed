"""The TaskExecutor: one on each machine. Owns slots with a PySpark executor process each, and
relays between these and the JobMasters.
"""
