package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelShortColumn extends FiresteelFixedColumn {
    long bytes(int count) { return 2L * count; }
    public boolean put(boolean isNull, short value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putShort(null, data + (((long) n) << 1), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getShort(i));
    }
    void addNull() { put(true, (short) 0); }
}
