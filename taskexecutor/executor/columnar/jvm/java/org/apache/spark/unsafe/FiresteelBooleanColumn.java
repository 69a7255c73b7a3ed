package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelBooleanColumn extends FiresteelFixedColumn {
    long bytes(int count) { return (count + 7L) >> 3; }
    public boolean put(boolean isNull, boolean value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = false; }
        long place = data + (n >> 3);
        int bit = 1 << (n & 7);
        int rest = Platform.getByte(null, place) & (bit - 1);  // clears bits of the last batch
        Platform.putByte(null, place, (byte) (value ? rest | bit : rest));
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getBoolean(i));
    }
    void addNull() { put(true, false); }
}
