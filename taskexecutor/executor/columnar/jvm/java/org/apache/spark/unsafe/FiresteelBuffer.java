package org.apache.spark.unsafe;

import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import org.apache.spark.storage.StorageUtils;

/** An Arrow buffer in shared memory. Its range in the file has room for any size, so that it grows
    in place: no bytes are copied. */
final class FiresteelBuffer {
    static final long ROOM = 1L << 32;  // file range of each buffer; the file is sparse

    private final FiresteelSlab slab;
    private final long place;
    private MappedByteBuffer mapped;
    long address;
    long size;

    FiresteelBuffer(FiresteelSlab slab, int index) {
        this.slab = slab;
        place = index * ROOM;
    }

    /** Grows the buffer to at least this size. Its address changes, its content stays. */
    void grow(long wanted) {
        if (wanted <= size) return;
        long larger = Math.min(Math.max(wanted, 2 * size), Integer.MAX_VALUE);
        if (wanted > larger) throw new IllegalStateException(
            "a column of a batch has " + wanted + " bytes, but Arrow's limit is 2 GiB");
        slab.grows(larger - size);
        MappedByteBuffer old = mapped;
        try {
            mapped = slab.file.map(FileChannel.MapMode.READ_WRITE, place, larger);
        } catch (java.io.IOException error) {
            throw new IllegalStateException("cannot map " + larger + " bytes of shared memory", error);
        }
        address = Platform.getDirectBufferAddress(mapped);
        size = larger;
        if (old != null) StorageUtils.dispose(old);
    }

    void close() {
        if (mapped != null) StorageUtils.dispose(mapped);
        mapped = null;
    }
}
