package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelDoubleColumn extends FiresteelFixedColumn {
    long bytes(int count) { return 8L * count; }
    public boolean put(boolean isNull, double value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putDouble(null, data + (((long) n) << 3), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getDouble(i));
    }
    void addNull() { put(true, 0); }
}
