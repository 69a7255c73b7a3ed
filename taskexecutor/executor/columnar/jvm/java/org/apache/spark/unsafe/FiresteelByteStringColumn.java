package org.apache.spark.unsafe;

import java.nio.ByteBuffer;

/** Values that are bytes. */
public abstract class FiresteelByteStringColumn extends FiresteelVariableColumn {
    FiresteelColumnSink sink;
    private transient FiresteelBuffer bytes;
    private transient long data;
    private transient long room;
    private transient long used;

    int buffers() { return 3; }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        bytes = from[at + 2];
        bytes.grow(1 << 16);
        data = bytes.address;
        room = bytes.size;
        used = 0;
    }

    protected final void append(Object base, long offset, int size) {
        if (size > room - used) {
            bytes.grow(used + size);
            data = bytes.address;
            room = bytes.size;
        }
        long to = data + used;
        if (size <= 32) {  // most strings: calling copyMemory costs more
            int i = 0;
            for (; i + 8 <= size; i += 8) Platform.putLong(null, to + i, Platform.getLong(base, offset + i));
            for (; i < size; i++) Platform.putByte(null, to + i, Platform.getByte(base, offset + i));
        } else Platform.copyMemory(base, offset, null, to, size);
        used += size;
        if (used > sink.softBytes) sink.full = true;
    }

    protected final void end() { end((int) used); }

    void report(ByteBuffer out) {
        out.putLong(n);
        out.putLong(nulls);
        out.putLong(used);
    }
}
