package org.apache.spark.unsafe;

import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.Base64;
import java.util.Properties;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition;
import org.apache.spark.storage.BlockInfoManager;
import org.apache.spark.storage.StorageUtils;

/** Runs the bundles of one plan: input as Arrow columns in shared memory, output into a sink. */
public final class FiresteelBundleRuns {
    private final RDD plan;
    private final FiresteelColumnSink sink;
    private final Properties properties;
    private final MemoryManager memory;
    private final BlockInfoManager blocks;
    private FiresteelLocalTask task;
    private MappedByteBuffer input;

    public FiresteelBundleRuns(
            RDD plan, FiresteelColumnSink sink, Properties properties, MemoryManager memory,
            BlockInfoManager blocks) {
        this.plan = plan;
        this.sink = sink;
        this.properties = properties;
        this.memory = memory;
        this.blocks = blocks;
    }

    /** Opens the shared memory for the input of bundles. */
    public void map(String path, long size) throws java.io.IOException {
        if (input != null) StorageUtils.dispose(input);
        input = null;
        RandomAccessFile file = new RandomAccessFile(path, "r");
        try {
            input = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, size);
        } finally {
            file.close();
        }
    }

    /** Starts a bundle and returns its first batch of results, like FiresteelColumnSink.next(). */
    public String first(String group, String packed, int slab) {
        task = new FiresteelLocalTask(group, properties, memory, blocks);
        FiresteelBundlePartition rows = new FiresteelBundlePartition(
            Base64.getDecoder().decode(packed), Platform.getDirectBufferAddress(input));
        boolean begun = false;
        try {
            sink.begin(plan, new DataSourceRDDPartition(0, scala.Option.apply(rows)), task);
            begun = true;
        } finally {
            if (!begun) end();
        }
        return next(slab);
    }

    /** Returns the next batch. The last batch or an error ends the bundle's task. */
    public String next(int slab) {
        boolean more = false;
        try {
            byte[] report = sink.fill(slab);
            more = report[0] == 0;
            return FiresteelColumnSink.text(report);
        } finally {
            if (!more) end();
        }
    }

    /** Ends the bundle. Idempotent. */
    public void end() {
        if (task != null) task.end();
        task = null;
    }

    public void close() {
        if (input != null) StorageUtils.dispose(input);
        input = null;
    }
}
