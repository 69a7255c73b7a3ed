package org.apache.spark.unsafe;

import java.io.RandomAccessFile;
import java.nio.channels.FileChannel;

/** Shared memory for one batch at a time. */
final class FiresteelSlab {
    private final long limit;
    private long total;
    final FileChannel file;
    final FiresteelBuffer[] buffers;

    FiresteelSlab(String path, int count, long limit) throws java.io.IOException {
        this.limit = limit;
        RandomAccessFile opened = new RandomAccessFile(path, "rw");
        file = opened.getChannel();
        buffers = new FiresteelBuffer[count];
        for (int i = 0; i < count; i++) buffers[i] = new FiresteelBuffer(this, i);
    }

    void grows(long bytes) {
        total += bytes;
        if (total > limit) throw new IllegalStateException(
            "a batch of results needs more than " + limit + " bytes: one input row became too many"
            + " or too long output rows");
    }

    void close() throws java.io.IOException {
        for (int i = 0; i < buffers.length; i++) buffers[i].close();
        file.close();
    }
}
