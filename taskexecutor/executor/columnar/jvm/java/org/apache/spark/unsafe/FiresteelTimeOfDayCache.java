package org.apache.spark.unsafe;

import java.io.Serializable;
import java.util.ArrayList;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryExpression;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.DateFormatClass;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Hour;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Minute;
import org.apache.spark.sql.catalyst.expressions.Second;
import org.apache.spark.sql.catalyst.expressions.UnaryExpression;
import org.apache.spark.sql.catalyst.util.Iso8601TimestampFormatter;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/** Values that are equal for all times of a second, in any zone: hour, minute, second and date, and
    formatted times without fractions of a second. Rows are roughly in the order of time, so most
    seconds occurred shortly before. */
public final class FiresteelTimeOfDayCache implements Serializable {
    private static final int KEPT = 256;

    private final Expression function;
    private final long[] seconds = new long[KEPT];
    private final Object[] texts;
    private final int[] numbers;

    FiresteelTimeOfDayCache(Expression function) {
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
            new FiresteelTimeOfDayCache(function), method, function.dataType(), arguments);
    }
}
