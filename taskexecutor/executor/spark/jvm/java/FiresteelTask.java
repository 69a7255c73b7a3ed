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

/** A Spark task without a scheduler; see local_tasks.py. */
public final class FiresteelTask {
    /** The scheduler's are not negative, and a few others, down to -1024, have a meaning. */
    private static final AtomicLong IDS = new AtomicLong(-1_000_000L);
    /** Of a group: its tasks that have begun, the innermost last. Guarded by itself. */
    private static final HashMap RUNNING = new HashMap();

    private final String group;
    private final BlockInfoManager blocks;
    private final TaskMemoryManager memory;
    private final TaskContextImpl context;
    private boolean ended;

    public FiresteelTask(
            String group, Properties properties, MemoryManager allMemory, BlockInfoManager blocks) {
        long id = IDS.getAndDecrement();
        this.group = group;
        this.blocks = blocks;
        memory = new TaskMemoryManager(allMemory, id);
        context = new TaskContextImpl(
            0, 0, 0, id, 0, 1, memory, properties, null, TaskMetrics$.MODULE$.empty(),
            TaskContextImpl.$lessinit$greater$default$11(),
            TaskContextImpl.$lessinit$greater$default$12());
        blocks.registerTask(id);  // reading a broadcast takes a lock in the task's name
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

    /** The calling thread runs in this task, until leave(). */
    public void enter() {
        TaskContext$.MODULE$.setTaskContext(context);
    }

    public static void leave() {
        TaskContext$.MODULE$.unset();
    }

    /** Rows that the task has read from files, exactly. */
    public long recordsRead() {
        return context.taskMetrics().inputMetrics().recordsRead();
    }

    /** Completes the task and frees what it holds. Idempotent. */
    public void end() {
        if (ended) return;
        ended = true;
        synchronized (RUNNING) {
            ArrayDeque tasks = (ArrayDeque) RUNNING.get(group);
            tasks.remove(this);
            if (tasks.isEmpty()) RUNNING.remove(group);
        }
        enter();  // completion listeners ask for the current task
        try {
            context.markTaskCompleted(scala.Option.empty());
        } finally {
            leave();
            blocks.releaseAllLocksForTask(context.taskAttemptId());
            memory.cleanUpAllAllocatedMemory();
        }
    }

    /** From any thread: makes the group's innermost task fail at its next rows; false without one. */
    public static boolean interrupt(String group) {
        synchronized (RUNNING) {
            ArrayDeque tasks = (ArrayDeque) RUNNING.get(group);
            if (tasks == null) return false;
            ((FiresteelTask) tasks.getLast()).context.markInterrupted("the task was cancelled");
            return true;
        }
    }
}
