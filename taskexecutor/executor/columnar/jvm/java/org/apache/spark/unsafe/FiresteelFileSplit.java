package org.apache.spark.unsafe;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Properties;
import org.apache.hadoop.mapred.JobConf;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.storage.BlockInfoManager;
import org.apache.spark.util.SerializableConfiguration;
import scala.Function1;
import scala.collection.Iterator;

/**
 * Reads the files of a split bundle by bundle: for a run of the plan, its files end where the bundle
 * does, and the next run continues there. Replaces the function with which the plan's scan opens a
 * part of a file. See runners/file_plans.py.
 */
public final class FiresteelFileSplit extends scala.runtime.AbstractFunction1 {
    private static final int CHECK_ROWS = 16;  // between reads of the clock
    private static final int CANCEL_ROWS = 1024;
    private static final int WRAPPED = 3;  // maximum number of Spark's wrappers around the reading function

    private final Function1 opener;
    private final Properties properties;
    private final MemoryManager memory;
    private final BlockInfoManager blocks;
    private FiresteelLocalTask owner;    // of the open file, beyond a run of the plan
    private FiresteelLocalTask run;
    private PartitionedFile[] files;
    private int part;               // the first part that has not been read completely
    private long rows;              // number of its rows that have been read
    private long skipped;           // number of its rows that an earlier attempt has read
    private Iterator reader;        // of the part; null: it is not open
    private long deadline;
    private boolean over;           // the bundle has ended
    private IllegalStateException problem;

    /** `scan` is a FileScanRDD, which this split owns from now on. */
    public FiresteelFileSplit(
            RDD scan, Properties properties, MemoryManager memory, BlockInfoManager blocks)
            throws IllegalAccessException {
        this.properties = properties;
        this.memory = memory;
        this.blocks = blocks;
        Field found = null;
        Field[] fields = scan.getClass().getDeclaredFields();
        for (int i = 0; i < fields.length; i++)
            if (fields[i].getType() == Function1.class && !Modifier.isStatic(fields[i].getModifiers()))
                found = fields[i];
        if (found == null) throw new IllegalStateException("FileScanRDD has no reading function");
        found.setAccessible(true);
        opener = (Function1) found.get(scan);
        found.set(scan, this);
        keepConfiguration(opener, WRAPPED);
    }

    /**
     * Hadoop's readers copy the configuration for each file, which takes longer than reading a small
     * one, unless it is a JobConf. `function` holds it, or wraps another function that does.
     */
    private static void keepConfiguration(Object function, int depth) throws IllegalAccessException {
        Field[] fields = function.getClass().getDeclaredFields();
        for (int i = 0; i < fields.length; i++) {
            if (Modifier.isStatic(fields[i].getModifiers())) continue;
            fields[i].setAccessible(true);
            Object held = fields[i].get(function);
            if (held instanceof Broadcast && ((Broadcast) held).value() instanceof SerializableConfiguration) {
                SerializableConfiguration kept = (SerializableConfiguration) ((Broadcast) held).value();
                if (!(kept.value() instanceof JobConf)) kept.value_$eq(new JobConf(kept.value()));
            } else if (held instanceof Function1 && depth > 0) {
                keepConfiguration(held, depth - 1);
            }
        }
    }

    /** Starts at the given part, after its first rows. `group` differs from that of the plan's runs. */
    public void begin(FilePartition split, int part, long rows, String group) {
        owner = new FiresteelLocalTask(group, properties, memory, blocks);
        files = split.files();
        this.part = part;
        this.rows = 0;
        skipped = rows;
        reader = null;
        problem = null;
    }

    /** Starts a bundle, which ends with the rows that are read in that time, and returns its task. */
    public FiresteelLocalTask bundle(String group, long nanos) {
        over = false;
        deadline = System.nanoTime() + nanos;
        run = new FiresteelLocalTask(group, properties, memory, blocks);
        return run;
    }

    /** Returns the plan's rows for the bundle. */
    public Iterator rows(RDD plan) {
        run.enter();
        try {
            Object[] rest = Arrays.copyOfRange(files, Math.min(part, files.length), files.length);
            return plan.iterator(
                new FilePartition(0, (PartitionedFile[]) rest), run.context());
        } finally {
            FiresteelLocalTask.leave();
        }
    }

    /** Returns the position, and how many rows the bundle has read. */
    public byte[] state() {
        if (problem != null) throw problem;
        ByteBuffer out = ByteBuffer.allocate(24).order(ByteOrder.LITTLE_ENDIAN);
        out.putLong(part);
        out.putLong(rows);
        out.putLong(run == null ? 0 : run.recordsRead());
        return out.array();
    }

    /** Closes the open file. Idempotent. */
    public void end() {
        if (run != null) run.end();
        if (owner != null) owner.end();
        run = null;
        owner = null;
        reader = null;
        files = null;
    }

    /** Called by the scan, which continues with its next part. */
    public Object apply(Object file) {
        if (over) return new FiresteelFilePart(this, -1);
        if (reader == null) open(file);
        return new FiresteelFilePart(this, part);
    }

    private void open(Object file) {
        TaskContext inner = TaskContext$.MODULE$.get();
        owner.enter();
        boolean opened = false;
        try {
            reader = (Iterator) opener.apply(file);
            reader.hasNext();  // some readers only open their stream then, and close it with the task
            skip();
            opened = true;
        } finally {
            TaskContext$.MODULE$.setTaskContext(inner);
            if (!opened) advance();  // an option may let the scan continue after it
        }
    }

    private void skip() {
        long wanted = skipped;
        skipped = 0;
        long checked = 0;
        while (rows < wanted) {
            if (rows >= checked) {
                run.context().killTaskIfInterrupted();
                checked += CANCEL_ROWS;
            }
            if (!reader.hasNext()) throw problem(
                "the position is after " + wanted + " rows, but there are " + rows);
            rows += size(reader.next());
        }
        if (rows > wanted) throw problem(
            "the position is after " + wanted + " rows, inside a batch that ends with row " + rows
            + ": it was taken with different settings of Spark's readers");
    }

    /** Stored, because options let the scan continue after exceptions. */
    private IllegalStateException problem(String text) {
        problem = new IllegalStateException(text);
        return problem;
    }

    private void advance() {
        reader = null;
        part++;
        rows = 0;
    }

    private static int size(Object found) {
        return found instanceof ColumnarBatch ? ((ColumnarBatch) found).numRows() : 1;
    }

    boolean hasNext(int number) {
        if (over || number != part || reader == null) return false;
        boolean more = false;
        boolean failed = true;
        try {
            more = reader.hasNext();
            failed = false;
        } finally {
            if (failed || !more) advance();
        }
        return more;
    }

    Object next() {
        Object found = null;
        try {
            found = reader.next();
        } finally {
            if (found == null) advance();
        }
        rows += size(found);
        if (found instanceof ColumnarBatch || (rows & (CHECK_ROWS - 1)) == 0)
            over = System.nanoTime() - deadline >= 0;
        return found;
    }
}
