package org.apache.spark.unsafe;

import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import org.apache.spark.sql.connector.read.InputPartition;

/** Batches in files, as columns/spool.py writes them. */
public final class FiresteelSpoolPartition implements InputPartition {
    private final String[] paths;
    private final long[] places;  // for each file, the offset of its batches' locations
    private final long[] sizes;   // sizes of the files
    final long rows;
    final long bytes;

    public FiresteelSpoolPartition(String[] paths, long[] places, long[] sizes, long rows) {
        this.paths = paths;
        this.places = places;
        this.sizes = sizes;
        this.rows = rows;
        long all = 0;
        for (int i = 0; i < sizes.length; i++) all += sizes[i];
        bytes = all;
    }

    int files() { return paths.length; }

    MappedByteBuffer map(int file) {
        try {
            RandomAccessFile opened = new RandomAccessFile(paths[file], "r");
            try {
                return opened.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, sizes[file]);
            } finally {
                opened.close();
            }
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    LongBuffer places(int file, MappedByteBuffer mapped) {
        ByteBuffer all = (ByteBuffer) mapped.duplicate();
        all.position((int) places[file]);
        ByteBuffer tail = (ByteBuffer) all.slice();
        tail.order(ByteOrder.LITTLE_ENDIAN);
        return tail.asLongBuffer();
    }
}
