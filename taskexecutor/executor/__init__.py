"""The PySpark executor: the process in a slot. It holds one SparkSession and runs the slot's tasks,
each in a thread.
"""

# What its TaskExecutor and the process itself must agree on.
CONFIG_VARIABLE = (
    "FIRESTEEL_SLOT_CONFIG"  # JSON; not an argument, where every user of the machine could read it
)
JVM_LOST_EXIT_CODE = 71
ABANDONED_THREAD_EXIT_CODE = 72  # a thread of the released job lives on
