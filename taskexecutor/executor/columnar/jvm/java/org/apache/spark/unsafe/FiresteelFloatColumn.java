package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelFloatColumn extends FiresteelFixedColumn {
    long bytes(int count) { return 4L * count; }
    public boolean put(boolean isNull, float value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putFloat(null, data + (((long) n) << 2), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getFloat(i));
    }
    void addNull() { put(true, 0); }
}
