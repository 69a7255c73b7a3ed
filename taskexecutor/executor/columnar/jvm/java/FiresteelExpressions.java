package org.apache.spark.unsafe;

import java.io.Serializable;
import java.math.BigDecimal;
import java.util.ArrayList;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryExpression;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.DateFormatClass;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Hour;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Minute;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.Second;
import org.apache.spark.sql.catalyst.expressions.UnaryExpression;
import org.apache.spark.sql.catalyst.expressions.UnscaledValue;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.util.Iso8601TimestampFormatter;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** Values that are equal for all times of a second, in any zone: hour, minute, second and date, and
    formatted times without fractions of a second. Rows are roughly in the order of time, so most
    seconds occurred shortly before. */
public final class FiresteelSeconds implements Serializable {
    private static final int KEPT = 256;

    private final Expression function;
    private final long[] seconds = new long[KEPT];
    private final Object[] texts;
    private final int[] numbers;

    FiresteelSeconds(Expression function) {
        this.function = function;
        boolean text = function instanceof DateFormatClass;
        texts = text ? new Object[KEPT] : null;
        numbers = text ? null : new int[KEPT];
        // No second is stored at this index.
        for (int i = 0; i < KEPT; i++) seconds[i] = i + 1;
    }

    /** Called by the generated code. */
    public UTF8String text(long micros) {
        long second = Math.floorDiv(micros, 1000000L);
        int at = (int) second & (KEPT - 1);
        if (seconds[at] != second) {
            BinaryExpression format = (BinaryExpression) function;
            Object pattern = ((Literal) format.right()).value();
            texts[at] = format.nullSafeEval(Long.valueOf(micros), pattern);
            seconds[at] = second;
        }
        return (UTF8String) texts[at];
    }

    /** Called by the generated code. */
    public int number(long micros) {
        long second = Math.floorDiv(micros, 1000000L);
        int at = (int) second & (KEPT - 1);
        if (seconds[at] != second) {
            Object found = ((UnaryExpression) function).nullSafeEval(Long.valueOf(micros));
            numbers[at] = ((Integer) found).intValue();
            seconds[at] = second;
        }
        return numbers[at];
    }

    /** Returns the column of times if the expression only depends on its seconds; otherwise null. */
    public static Attribute timeOf(Expression each) {
        if (!each.deterministic() || !(each.dataType() instanceof AtomicType)) return null;
        ArrayList found = new ArrayList();
        if (!collect(each, found) || found.isEmpty()) return null;
        Attribute time = (Attribute) found.get(0);
        for (int i = 1; i < found.size(); i++)
            if (!((Attribute) found.get(i)).exprId().equals(time.exprId())) return null;
        return time;
    }

    /** Adds the columns of times. Returns false if the expression depends on anything else. */
    private static boolean collect(Expression each, ArrayList found) {
        if (each instanceof Literal) return true;
        if (suits(each)) {
            Object time = each.children().head();
            return time instanceof Attribute && found.add(time);
        }
        if (each.children().isEmpty()) return false;
        for (int i = 0; i < each.children().size(); i++)
            if (!collect((Expression) each.children().apply(i), found)) return false;
        return true;
    }

    static boolean suits(Object each) {
        if (each instanceof DateFormatClass) return suits((DateFormatClass) each);
        if (!(each instanceof Hour || each instanceof Minute || each instanceof Second
            || each instanceof Cast && ((Cast) each).dataType() instanceof DateType)) return false;
        Expression time = (Expression) ((UnaryExpression) each).child();
        return time.dataType() instanceof TimestampType;
    }

    private static boolean suits(DateFormatClass format) {
        if (!(format.left().dataType() instanceof TimestampType)) return false;
        if (!(format.right() instanceof Literal) || ((Literal) format.right()).value() == null) return false;
        String pattern = ((Literal) format.right()).value().toString();
        for (int i = 0; i < pattern.length(); i++)
            if ("SAnN".indexOf(pattern.charAt(i)) >= 0) return false;
        // Formatters of other policies round differently.
        return format.formatterOption().isDefined()
            && format.formatterOption().get().getClass() == Iso8601TimestampFormatter.class;
    }

    static Expression of(Expression function) {
        ArrayList arguments = new ArrayList();
        arguments.add(function.children().head());
        String method = function instanceof DateFormatClass ? "text" : "number";
        return FiresteelExpressions.call(
            new FiresteelSeconds(function), method, function.dataType(), arguments);
    }
}

/** Multiplies decimals whose products are exact as `long` digits, where Spark always multiplies
    BigDecimals. Larger decimals are also BigDecimals here. */
public final class FiresteelProducts implements Serializable {
    private static final int LONG_DIGITS = 18;
    private static final long LIMIT = 1000000000000000000L;  // of values that Decimal stores in a long

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

/** Converts integers to strings: writes their digits directly, without a String to encode. */
public final class FiresteelDigits implements Serializable {
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
        return FiresteelExpressions.call(new FiresteelDigits(), "text", cast.dataType(), arguments);
    }
}

final class FiresteelExpressionsRule extends AbstractPartialFunction implements Serializable {
    public boolean isDefinedAt(Object each) {
        return FiresteelSeconds.suits(each) || FiresteelProducts.suits(each) || FiresteelDigits.suits(each);
    }

    public Object applyOrElse(Object each, Function1 otherwise) {
        if (FiresteelSeconds.suits(each)) return FiresteelSeconds.of((Expression) each);
        if (FiresteelProducts.suits(each)) return FiresteelProducts.of((Multiply) each);
        if (FiresteelDigits.suits(each)) return FiresteelDigits.of((Cast) each);
        return otherwise.apply(each);
    }
}

/** Replaces expressions that Spark evaluates through objects, although their values are plain numbers
    or bytes: the generated code calls equivalent methods of Firesteel instead. */
public final class FiresteelExpressions {
    /** Returns the plan, before code generation, with these calls. */
    public static SparkPlan replaced(SparkPlan plan) {
        return (SparkPlan) plan.transformAllExpressions(new FiresteelExpressionsRule());
    }

    /** Returns a call of a method that is only made for values that are not null. */
    static Expression call(Object target, String method, DataType type, ArrayList arguments) {
        return new Invoke(
            new Literal(target, new ObjectType(target.getClass())), method, type,
            CollectionConverters.asScala((java.util.List) arguments).toSeq(),
            CollectionConverters.asScala((java.util.List) new ArrayList()).toSeq(),
            true, false, true);
    }
}
