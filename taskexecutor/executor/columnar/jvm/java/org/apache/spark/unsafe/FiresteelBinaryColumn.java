package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelBinaryColumn extends FiresteelByteStringColumn {
    public boolean put(boolean isNull, byte[] value) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else append(value, Platform.BYTE_ARRAY_OFFSET, value.length);
        end();
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getBinary(i));
    }
    void addNull() { put(true, null); }
}
