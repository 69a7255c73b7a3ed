package org.apache.spark.unsafe;

import java.io.Serializable;
import java.math.BigDecimal;
import java.util.ArrayList;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.UnscaledValue;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.LongType;

/** Multiplies decimals whose products are exact as `long` digits, where Spark always multiplies
    BigDecimals. Larger decimals are also BigDecimals here. */
public final class FiresteelDecimalProducts implements Serializable {
    private static final int LONG_DIGITS = 18;
    private static final long LIMIT = 1000000000000000000L;  // of values that Decimal stores in a long

    private final int precision;
    private final int scale;

    FiresteelDecimalProducts(DecimalType type) {
        precision = type.precision();
        scale = type.scale();
    }

    /** Called by the generated code. */
    public Decimal product(long left, long right) {
        long low = left * right;
        if (Math.multiplyHigh(left, right) == low >> 63 && low < LIMIT && low > -LIMIT)
            return Decimal.createUnsafe(low, precision, scale);
        BigDecimal product = BigDecimal.valueOf(left).multiply(BigDecimal.valueOf(right));
        return Decimal.apply(product.movePointLeft(scale), precision, scale);
    }

    static boolean suits(Object each) {
        if (!(each instanceof Multiply)) return false;
        Multiply product = (Multiply) each;
        if (!(product.dataType() instanceof DecimalType)) return false;
        DecimalType left = (DecimalType) product.left().dataType();
        DecimalType right = (DecimalType) product.right().dataType();
        DecimalType all = (DecimalType) product.dataType();
        return all.precision() == left.precision() + right.precision() + 1  // no digit is lost
            && all.scale() == left.scale() + right.scale()
            && digits(product.left()) != null && digits(product.right()) != null;
    }

    static Expression of(Multiply product) {
        FiresteelDecimalProducts products = new FiresteelDecimalProducts((DecimalType) product.dataType());
        ArrayList arguments = new ArrayList();
        arguments.add(digits(product.left()));
        arguments.add(digits(product.right()));
        return FiresteelExpressions.call(products, "product", product.dataType(), arguments);
    }

    /** Returns the unscaled value of a decimal; null if it may exceed a `long`. */
    private static Expression digits(Expression value) {
        DecimalType type = (DecimalType) value.dataType();
        if (type.precision() <= LONG_DIGITS) return new UnscaledValue(value);
        if (!(value instanceof Cast) || type.scale() != 0) return null;
        Expression whole = ((Cast) value).child();
        if (whole.dataType() instanceof LongType && type.precision() > LONG_DIGITS + 1) return whole;
        return null;
    }
}
