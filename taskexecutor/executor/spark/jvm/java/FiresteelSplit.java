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

/** The rows of one part of a file, as far as the bundle goes. */
final class FiresteelPart extends scala.collection.AbstractIterator {
    private final FiresteelSplit split;
    private final int number;

    FiresteelPart(FiresteelSplit split, int number) {
        this.split = split;
        this.number = number;
    }

    public boolean hasNext() { return split.hasNext(number); }
    public Object next() { return split.next(); }
}

/**
 * Reads the files of a split bundle by bundle: a run of the plan finds that its files end where the
 * bundle does, and the next run goes on there. It takes the place of the function by which the
 * plan's scan opens a part of a file. See files/plans.py.
 */
public final class FiresteelSplit extends scala.runtime.AbstractFunction1 {
    private static final int CHECK_ROWS = 16;  // between looking at the clock
    private static final int CANCEL_ROWS = 1024;
    private static final int WRAPPED = 3;  // functions of Spark's around that which reads, at most

    private final Function1 opener;
    private final Properties properties;
    private final MemoryManager memory;
    private final BlockInfoManager blocks;
    private FiresteelTask owner;    // of what is open, for longer than a run of the plan
    private FiresteelTask run;
    private PartitionedFile[] files;
    private int part;               // the first one that has not been read to its end
    private long rows;              // of it that have been read
    private long skipped;           // of it that a bundle before has read, in another attempt
    private Iterator reader;        // of it; null: it is not open
    private long deadline;
    private boolean over;           // the bundle
    private IllegalStateException problem;

    /** `scan`: a FileScanRDD, which belongs to this split from now on. */
    public FiresteelSplit(
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
        if (found == null) throw new IllegalStateException("FileScanRDD has no function that reads");
        found.setAccessible(true);
        opener = (Function1) found.get(scan);
        found.set(scan, this);
        keepConfiguration(opener, WRAPPED);
    }

    /**
     * Hadoop's readers copy a configuration for each file, which takes longer than to read a small
     * one, unless it is a JobConf. `function` has it, or has another function that does.
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

    /** Begins at the given part, behind its first rows. `group` is not that of the plan's runs. */
    public void begin(FilePartition split, int part, long rows, String group) {
        owner = new FiresteelTask(group, properties, memory, blocks);
        files = split.files();
        this.part = part;
        this.rows = 0;
        skipped = rows;
        reader = null;
        problem = null;
    }

    /** Begins a bundle, which ends with the rows that are read at that time. Its task. */
    public FiresteelTask bundle(String group, long nanos) {
        over = false;
        deadline = System.nanoTime() + nanos;
        run = new FiresteelTask(group, properties, memory, blocks);
        return run;
    }

    /** The plan's rows for the bundle. */
    public Iterator rows(RDD plan) {
        run.enter();
        try {
            Object[] rest = Arrays.copyOfRange(files, Math.min(part, files.length), files.length);
            return plan.iterator(
                new FilePartition(0, (PartitionedFile[]) rest), run.context());
        } finally {
            FiresteelTask.leave();
        }
    }

    /** The position, and how many rows the bundle has read. */
    public byte[] state() {
        if (problem != null) throw problem;
        ByteBuffer out = ByteBuffer.allocate(24).order(ByteOrder.LITTLE_ENDIAN);
        out.putLong(part);
        out.putLong(rows);
        out.putLong(run == null ? 0 : run.recordsRead());
        return out.array();
    }

    /** Closes what is open. Idempotent. */
    public void end() {
        if (run != null) run.end();
        if (owner != null) owner.end();
        run = null;
        owner = null;
        reader = null;
        files = null;
    }

    /** Called by the scan, which goes on to its next part. */
    public Object apply(Object file) {
        if (over) return new FiresteelPart(this, -1);
        if (reader == null) open(file);
        return new FiresteelPart(this, part);
    }

    private void open(Object file) {
        TaskContext inner = TaskContext$.MODULE$.get();
        owner.enter();
        boolean opened = false;
        try {
            reader = (Iterator) opener.apply(file);
            reader.hasNext();  // some open their stream only then, and close it with the task
            skip();
            opened = true;
        } finally {
            TaskContext$.MODULE$.setTaskContext(inner);
            if (!opened) advance();  // an option may tell the scan to go on behind it
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
                "the position is behind " + wanted + " rows, and there are " + rows);
            rows += size(reader.next());
        }
        if (rows > wanted) throw problem(
            "the position is behind " + wanted + " rows, inside a batch that ends with row " + rows
            + ": the settings of Spark's readers were others when it was taken");
    }

    /** Kept, because options let the scan go on after exceptions. */
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
