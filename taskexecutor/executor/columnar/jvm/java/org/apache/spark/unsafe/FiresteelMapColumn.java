package org.apache.spark.unsafe;

import java.nio.ByteBuffer;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;

public final class FiresteelMapColumn extends FiresteelVariableColumn {
    final FiresteelColumn key;
    final FiresteelColumn value;
    FiresteelColumnSink sink;

    FiresteelMapColumn(FiresteelColumn key, FiresteelColumn value) {
        this.key = key;
        this.value = value;
    }

    int buffers() { return 2 + key.buffers() + value.buffers(); }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        key.use(from, at + 2, rows);
        value.use(from, at + 2 + key.buffers(), rows);
    }

    public boolean put(boolean isNull, MapData map) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else {
            int size = map.numElements();
            ArrayData keys = map.keyArray();
            ArrayData values = map.valueArray();
            for (int i = 0; i < size; i++) {
                key.add(keys, i);
                value.add(values, i);
            }
            if (key.n > sink.maxParts) sink.full = true;
        }
        end(key.n);
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getMap(i));
    }
    void addNull() { put(true, null); }
    void report(ByteBuffer out) {
        super.report(out);
        key.report(out);
        value.report(out);
    }
    int reports() { return 1 + key.reports() + value.reports(); }
}
