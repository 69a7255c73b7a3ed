package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelByteColumn extends FiresteelFixedColumn {
    long bytes(int count) { return count; }
    public boolean put(boolean isNull, byte value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putByte(null, data + n, value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getByte(i));
    }
    void addNull() { put(true, (byte) 0); }
}
