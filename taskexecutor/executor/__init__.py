"""The PySpark executor: the process in a slot. It holds one SparkSession and runs the slot's tasks,
each in a thread.
"""

# What the TaskExecutor and the process agree on. The configuration is JSON, and not an argument,
# which every user of the machine could read.
CONFIG_VARIABLE = "FIRESTEEL_SLOT_CONFIG"
JVM_LOST_EXIT_CODE = 71
ABANDONED_THREAD_EXIT_CODE = 72  # a thread of the released job lives on
LINK_LOST_EXIT_CODE = 73
PROGRAM_MODULES = "program-modules"  # the folder of the program's own modules, in the job's

# Environment variable: the path of the slot's log, for Spark's Python workers.
LOG_VARIABLE = "FIRESTEEL_SLOT_LOG"
