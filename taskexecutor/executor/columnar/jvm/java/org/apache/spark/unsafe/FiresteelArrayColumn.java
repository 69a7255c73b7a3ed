package org.apache.spark.unsafe;

import java.nio.ByteBuffer;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;

public final class FiresteelArrayColumn extends FiresteelVariableColumn {
    final FiresteelColumn element;
    FiresteelColumnSink sink;

    FiresteelArrayColumn(FiresteelColumn element) { this.element = element; }

    int buffers() { return 2 + element.buffers(); }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        element.use(from, at + 2, rows);
    }

    public boolean put(boolean isNull, ArrayData value) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else {
            int size = value.numElements();
            for (int i = 0; i < size; i++) element.add(value, i);
            if (element.n > sink.maxParts) sink.full = true;
        }
        end(element.n);
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getArray(i));
    }
    void addNull() { put(true, null); }
    void report(ByteBuffer out) {
        super.report(out);
        element.report(out);
    }
    int reports() { return 1 + element.reports(); }
}
