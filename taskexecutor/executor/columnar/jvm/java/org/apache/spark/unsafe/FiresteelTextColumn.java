package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.unsafe.types.UTF8String;

public final class FiresteelTextColumn extends FiresteelByteStringColumn {
    public boolean put(boolean isNull, UTF8String value) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else append(value.getBaseObject(), value.getBaseOffset(), value.numBytes());
        end();
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getUTF8String(i));
    }
    void addNull() { put(true, null); }
}
