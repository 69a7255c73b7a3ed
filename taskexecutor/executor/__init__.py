"""The PySpark executor: the process in a slot. It holds one SparkSession and runs each of the
slot's tasks in a thread.
"""

# Shared by the TaskExecutor and the process. The configuration is JSON in an environment variable,
# because every user of the machine can read arguments.
CONFIG_VARIABLE = "FIRESTEEL_SLOT_CONFIG"
JVM_LOST_EXIT_CODE = 71
ABANDONED_THREAD_EXIT_CODE = 72  # a thread of the released job is still running
LINK_LOST_EXIT_CODE = 73
PROGRAM_MODULES = "program-modules"  # in the job's folder: the program's own modules

# Environment variable: the path of the slot's log, for Spark's Python workers.
LOG_VARIABLE = "FIRESTEEL_SLOT_LOG"

# Prefix of the metrics of a slot's JVM.
JVM_STATUS = "flink_taskmanager_Status_JVM_"
MANAGED_MEMORY = "flink_taskmanager_Status_Flink_Memory_Managed_"
