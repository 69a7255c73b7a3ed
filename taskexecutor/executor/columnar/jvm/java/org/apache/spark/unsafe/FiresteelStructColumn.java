package org.apache.spark.unsafe;

import java.nio.ByteBuffer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;

public final class FiresteelStructColumn extends FiresteelColumn {
    final FiresteelColumn[] parts;

    FiresteelStructColumn(FiresteelColumn[] parts) { this.parts = parts; }

    int buffers() {
        int count = 1;
        for (int i = 0; i < parts.length; i++) count += parts[i].buffers();
        return count;
    }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        int next = at + 1;
        for (int i = 0; i < parts.length; i++) {
            parts[i].use(from, next, rows);
            next += parts[i].buffers();
        }
    }

    void grow() { enlarge(twice()); }

    public boolean put(boolean isNull, InternalRow value) {
        if (n == limit) grow();
        if (isNull) {
            setNull(n);
            for (int i = 0; i < parts.length; i++) parts[i].addNull();
        } else for (int i = 0; i < parts.length; i++) parts[i].add(value, i);
        n++;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getStruct(i, parts.length));
    }
    void addNull() { put(true, null); }
    void report(ByteBuffer out) {
        super.report(out);
        for (int i = 0; i < parts.length; i++) parts[i].report(out);
    }
    int reports() {
        int count = 1;
        for (int i = 0; i < parts.length; i++) count += parts[i].reports();
        return count;
    }
}
