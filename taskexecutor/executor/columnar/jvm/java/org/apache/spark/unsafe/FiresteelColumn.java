package org.apache.spark.unsafe;

import java.io.Serializable;
import java.nio.ByteBuffer;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

/** A column of the batch that is being written. Generated code calls `put`, and the column's parent
    calls `add`. */
public abstract class FiresteelColumn implements Serializable {
    protected transient int n;          // number of values so far
    protected transient int limit;      // number of values for which there is room
    protected transient int nulls;
    private transient FiresteelBuffer validity;

    /** Adds the value of a row, of an array or of a struct. */
    abstract void add(SpecializedGetters from, int ordinal);

    /** Adds a null. */
    abstract void addNull();

    /** Returns the number of its buffers, including those of its children. */
    abstract int buffers();

    /** Uses the empty buffers from `at` on. */
    void use(FiresteelBuffer[] from, int at, int rows) {
        validity = from[at];
        n = 0;
        nulls = 0;
        limit = rows;
    }

    /** Makes room for more values. */
    abstract void grow();

    protected final void enlarge(int larger) {
        if (nulls > 0) {
            int before = (limit + 7) >> 3;
            int after = (larger + 7) >> 3;
            validity.grow(after);
            Platform.setMemory(validity.address + before, (byte) -1, after - before);
        }
        limit = larger;
    }

    protected final int twice() {
        if (limit >= 1 << 30) throw new IllegalStateException("a batch has more than 2^30 values");
        return 2 * limit;
    }

    protected final void setNull(int at) {
        if (nulls++ == 0) {
            int bytes = (limit + 7) >> 3;
            validity.grow(bytes);
            Platform.setMemory(validity.address, (byte) -1, bytes);
        }
        long place = validity.address + (at >> 3);
        Platform.putByte(null, place, (byte) (Platform.getByte(null, place) & ~(1 << (at & 7))));
    }

    /** Reports to Python: number of values, of nulls, and of bytes of strings. */
    void report(ByteBuffer out) {
        out.putLong(n);
        out.putLong(nulls);
        out.putLong(0);
    }
    int reports() { return 1; }
}
