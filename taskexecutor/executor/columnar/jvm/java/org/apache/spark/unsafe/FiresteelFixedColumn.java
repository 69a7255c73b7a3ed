package org.apache.spark.unsafe;

/** Values of a fixed width. */
public abstract class FiresteelFixedColumn extends FiresteelColumn {
    protected transient long data;
    private transient FiresteelBuffer values;

    abstract long bytes(int count);

    int buffers() { return 2; }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        values = from[at + 1];
        values.grow(bytes(rows));
        data = values.address;
    }

    final void grow() {
        int larger = twice();
        values.grow(bytes(larger));
        data = values.address;
        enlarge(larger);
    }
}
