package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelLongColumn extends FiresteelFixedColumn {
    long bytes(int count) { return 8L * count; }
    public boolean put(boolean isNull, long value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putLong(null, data + (((long) n) << 3), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) { put(from.isNullAt(i), from.isNullAt(i) ? 0 : from.getLong(i)); }
    void addNull() { put(true, 0); }
}
