package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelIntColumn extends FiresteelFixedColumn {
    long bytes(int count) { return 4L * count; }
    public boolean put(boolean isNull, int value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putInt(null, data + (((long) n) << 2), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) { put(from.isNullAt(i), from.isNullAt(i) ? 0 : from.getInt(i)); }
    void addNull() { put(true, 0); }
}
