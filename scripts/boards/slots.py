"""The board of slots and their TaskExecutors."""

from __future__ import annotations

from scripts.boards.panels import BY_SLOT, EXECUTOR, JVM, OF_CLUSTER, OF_EXECUTOR, Board, Panel

BOARD = Board(
    uid="firesteel-slots",
    title="Firesteel: slots",
    description="Memory of slots by part, their JVMs and their TaskExecutors.",
    variables=(OF_CLUSTER, OF_EXECUTOR),
    rows={
        "Memory": [
            Panel(
                title="Memory against the limit",
                description="Share of its limit that each slot uses. At 100 %, its process is"
                " killed.",
                unit="percentunit",
                queries={
                    BY_SLOT: f"{EXECUTOR}Status_Slot_Memory_Total@"
                    f" / {EXECUTOR}Status_Slot_Memory_Limit@"
                },
            ),
            Panel(
                title="Memory by part",
                description="All slots. Shared memory holds rows between Python and the JVM.",
                unit="bytes",
                queries={
                    part: f"sum({EXECUTOR}Status_Slot_Memory_{part}@)"
                    for part in ("JVM", "Python", "Shared")
                },
                stacked=True,
            ),
            Panel(
                title="Memory of Python",
                description="Resident memory of each slot's Python process and its children.",
                unit="bytes",
                queries={BY_SLOT: f"{EXECUTOR}Status_Slot_Memory_Python@"},
            ),
            Panel(
                title="Managed memory",
                description="Used by state on disk and by paged state.",
                unit="bytes",
                queries={BY_SLOT: f"{EXECUTOR}Status_Flink_Memory_Managed_Used@"},
            ),
        ],
        "JVM": [
            Panel(
                title="Heap",
                description="Used heap of each slot's JVM, and its maximum.",
                unit="bytes",
                queries={
                    BY_SLOT: f'{JVM}Memory_Heap_Used@(slot!="")',
                    f"{BY_SLOT} maximum": f'{JVM}Memory_Heap_Max@(slot!="")',
                },
            ),
            Panel(
                title="Memory outside the heap",
                description="Metaspace and compiled code, and direct buffers.",
                unit="bytes",
                queries={
                    BY_SLOT: f'{JVM}Memory_NonHeap_Used@(slot!="")',
                    f"{BY_SLOT} direct": f"{JVM}Memory_Direct_MemoryUsed@",
                },
            ),
            Panel(
                title="Time in garbage collection",
                description="Share of time. Above 10 %, the heap is too small.",
                unit="percentunit",
                queries={
                    BY_SLOT: f"rate({JVM}GarbageCollector_All_Time@[$__rate_interval]) / 1000"
                },
            ),
            Panel(
                title="Garbage collections",
                description="Collections per second.",
                unit="ops",
                queries={
                    f"{BY_SLOT} young": f"rate({JVM}GarbageCollector_G1_Young_Generation_Count@"
                    "[$__rate_interval])",
                    f"{BY_SLOT} old": f"rate({JVM}GarbageCollector_G1_Old_Generation_Count@"
                    "[$__rate_interval])",
                },
            ),
            Panel(
                title="Threads",
                description="Threads of each JVM, and of each TaskExecutor.",
                unit="short",
                queries={"{{tm_id}} {{slot}}": f"{JVM}Threads_Count@"},
            ),
        ],
        "TaskExecutors": [
            Panel(
                title="CPU",
                description="Share of all cores that each TaskExecutor uses, without its slots.",
                unit="percentunit",
                queries={"{{tm_id}}": f"{JVM}CPU_Load@"},
            ),
            Panel(
                title="Stored results",
                description="Size of blocking results of batch jobs.",
                unit="bytes",
                queries={"{{tm_id}}": f"{EXECUTOR}storedBytes@"},
            ),
            Panel(
                title="Age of static tables",
                description="Time since the read of each table's rows started.",
                unit="ms",
                queries={"{{table}} slot {{slot}}": f"{EXECUTOR}job_staticTable_age@"},
            ),
            Panel(
                title="Free disk space",
                description="Free space on the disk of each directory.",
                unit="bytes",
                queries={"{{host}} {{directory}}": f"{EXECUTOR}Status_Disk_Free@"},
            ),
        ],
    },
)
