package org.apache.spark.unsafe;

import java.io.Serializable;
import java.util.ArrayList;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.unsafe.types.UTF8String;

/** Converts integers to strings: writes their digits directly, without a String to encode. */
public final class FiresteelIntegerTexts implements Serializable {
    /** Called by the generated code. */
    public UTF8String text(int value) { return text((long) value); }

    /** Called by the generated code. */
    public UTF8String text(long value) {
        long rest = value < 0 ? value : -value;  // there is one more negative number
        int size = value < 0 ? 2 : 1;
        for (long others = rest / 10; others != 0; others /= 10) size++;
        byte[] digits = new byte[size];
        int at = size;
        do {
            long others = rest / 10;
            digits[--at] = (byte) ('0' + (others * 10 - rest));
            rest = others;
        } while (rest != 0);
        if (value < 0) digits[0] = '-';
        return UTF8String.fromBytes(digits);
    }

    static boolean suits(Object each) {
        if (!(each instanceof Cast) || ((Cast) each).dataType() != DataTypes.StringType) return false;
        Expression number = ((Cast) each).child();
        return number.dataType() instanceof LongType || number.dataType() instanceof IntegerType;
    }

    static Expression of(Cast cast) {
        ArrayList arguments = new ArrayList();
        arguments.add(cast.child());
        return FiresteelExpressions.call(new FiresteelIntegerTexts(), "text", cast.dataType(), arguments);
    }
}
