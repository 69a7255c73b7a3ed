package org.apache.spark.unsafe;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.types.Decimal;

public final class FiresteelDecimalColumn extends FiresteelFixedColumn {
    private static final long MOST = 999999999999999999L;  // that Decimal stores in a long

    private final int precision;
    private final int scale;
    private final Decimal most;
    private final Decimal least;

    FiresteelDecimalColumn(int precision, int scale) {
        this.precision = precision;
        this.scale = scale;
        most = Decimal.createUnsafe(MOST, precision, scale);
        least = Decimal.createUnsafe(-MOST, precision, scale);
    }

    long bytes(int count) { return 16L * count; }

    public boolean put(boolean isNull, Decimal value) {
        int n = this.n;
        if (n == limit) grow();
        long low = 0;
        long high = 0;
        // As in Spark's row writers, a value that does not fit its type is null.
        if (isNull || !value.changePrecision(precision, scale)) setNull(n);
        else if (precision <= 18 || value.compare(most) <= 0 && value.compare(least) >= 0) {
            low = value.toUnscaledLong();
            high = low >> 63;
        } else {
            java.math.BigInteger unscaled = value.toJavaBigDecimal().unscaledValue();
            low = unscaled.longValue();
            high = unscaled.shiftRight(64).longValue();
        }
        Platform.putLong(null, data + (((long) n) << 4), low);
        Platform.putLong(null, data + (((long) n) << 4) + 8, high);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getDecimal(i, precision, scale));
    }
    void addNull() { put(true, null); }
}
