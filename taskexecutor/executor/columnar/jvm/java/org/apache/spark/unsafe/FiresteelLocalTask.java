package org.apache.spark.unsafe;

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.executor.TaskMetrics$;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.storage.BlockInfoManager;

/** A Spark task without a scheduler; see jvm/local_tasks.py. */
public final class FiresteelLocalTask {
    /** The scheduler's ids are not negative, and a few ids down to -1024 have a meaning. */
    private static final AtomicLong IDS = new AtomicLong(-1_000_000L);
    /** By group: its running tasks, the innermost last. Guarded by itself. */
    private static final HashMap RUNNING = new HashMap();

    private final String group;
    private final BlockInfoManager blocks;
    private final TaskMemoryManager memory;
    private final TaskContextImpl context;
    private boolean ended;

    public FiresteelLocalTask(
            String group, Properties properties, MemoryManager allMemory, BlockInfoManager blocks) {
        long id = IDS.getAndDecrement();
        this.group = group;
        this.blocks = blocks;
        memory = new TaskMemoryManager(allMemory, id);
        context = new TaskContextImpl(
            0, 0, 0, id, 0, 1, memory, properties, null, TaskMetrics$.MODULE$.empty(),
            TaskContextImpl.$lessinit$greater$default$11(),
            TaskContextImpl.$lessinit$greater$default$12());
        blocks.registerTask(id);  // a broadcast is read with a lock for the task
        synchronized (RUNNING) {
            ArrayDeque tasks = (ArrayDeque) RUNNING.get(group);
            if (tasks == null) {
                tasks = new ArrayDeque();
                RUNNING.put(group, tasks);
            }
            tasks.addLast(this);
        }
    }

    public TaskContextImpl context() {
        return context;
    }

    /** Makes the calling thread run in this task, until leave(). */
    public void enter() {
        TaskContext$.MODULE$.setTaskContext(context);
    }

    public static void leave() {
        TaskContext$.MODULE$.unset();
    }

    /** Returns the exact number of rows that the task has read from files. */
    public long recordsRead() {
        return context.taskMetrics().inputMetrics().recordsRead();
    }

    /** Completes the task and frees its resources. Idempotent. */
    public void end() {
        if (ended) return;
        ended = true;
        synchronized (RUNNING) {
            ArrayDeque tasks = (ArrayDeque) RUNNING.get(group);
            tasks.remove(this);
            if (tasks.isEmpty()) RUNNING.remove(group);
        }
        enter();  // completion listeners request the current task
        try {
            context.markTaskCompleted(scala.Option.empty());
        } finally {
            leave();
            blocks.releaseAllLocksForTask(context.taskAttemptId());
            memory.cleanUpAllAllocatedMemory();
        }
    }

    /** Makes the group's innermost task fail at its next rows, from any thread. Returns false if there
        is none. */
    public static boolean interrupt(String group) {
        synchronized (RUNNING) {
            ArrayDeque tasks = (ArrayDeque) RUNNING.get(group);
            if (tasks == null) return false;
            ((FiresteelLocalTask) tasks.getLast()).context.markInterrupted("the task was cancelled");
            return true;
        }
    }
}
