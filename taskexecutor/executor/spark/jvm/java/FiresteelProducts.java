package org.apache.spark.unsafe;

import java.io.Serializable;
import java.math.BigDecimal;
import java.util.ArrayList;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.UnscaledValue;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.ShortType;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** Products of decimals that are exact, by their digits in a `long`, where Spark multiplies
    BigDecimals whatever their size. Larger ones are BigDecimals here, too. */
public final class FiresteelProducts implements Serializable {
    private static final int LONG_DIGITS = 18;
    private static final long LIMIT = 1000000000000000000L;  // of what Decimal keeps in a long

    private final int precision;
    private final int scale;

    FiresteelProducts(DecimalType type) {
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

    /** The plan, of which no part is generated yet, with such products. */
    public static SparkPlan inLongs(SparkPlan plan) {
        return (SparkPlan) plan.transformAllExpressions(new FiresteelProductsRule());
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
        FiresteelProducts products = new FiresteelProducts((DecimalType) product.dataType());
        ArrayList arguments = new ArrayList();
        arguments.add(digits(product.left()));
        arguments.add(digits(product.right()));
        return new Invoke(
            new Literal(products, new ObjectType(FiresteelProducts.class)), "product",
            product.dataType(),
            CollectionConverters.asScala((java.util.List) arguments).toSeq(),
            CollectionConverters.asScala((java.util.List) new ArrayList()).toSeq(),
            true, false, true);
    }

    /** The unscaled value of a decimal; null if it may not be a `long`. */
    private static Expression digits(Expression value) {
        DecimalType type = (DecimalType) value.dataType();
        if (type.precision() <= LONG_DIGITS) return new UnscaledValue(value);
        if (!(value instanceof Cast) || type.scale() != 0) return null;
        Expression whole = ((Cast) value).child();
        if (whole.dataType() instanceof LongType && type.precision() > LONG_DIGITS + 1) return whole;
        return null;
    }
}

final class FiresteelProductsRule extends AbstractPartialFunction implements Serializable {
    public boolean isDefinedAt(Object each) { return FiresteelProducts.suits(each); }

    public Object applyOrElse(Object each, Function1 otherwise) {
        return FiresteelProducts.suits(each) ? FiresteelProducts.of((Multiply) each) : otherwise.apply(each);
    }
}
