package org.apache.spark.unsafe;

/** Values of variable length: their offsets, and their bytes or children. */
public abstract class FiresteelVariableColumn extends FiresteelColumn {
    protected transient long ends;
    private transient FiresteelBuffer offsets;

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        offsets = from[at + 1];
        offsets.grow(4L * (rows + 1));
        ends = offsets.address + 4;
        Platform.putInt(null, offsets.address, 0);
    }

    final void grow() {
        int larger = twice();
        offsets.grow(4L * (larger + 1));
        ends = offsets.address + 4;
        enlarge(larger);
    }

    /** Ends a value, which extends up to `end`. */
    protected final void end(int end) {
        Platform.putInt(null, ends + (((long) n) << 2), end);
        n++;
    }
}
