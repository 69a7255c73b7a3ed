package org.apache.spark.unsafe;

import java.io.Serializable;
import java.util.ArrayList;
import org.apache.spark.sql.catalyst.expressions.DateFormatClass;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.util.Iso8601TimestampFormatter;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** Texts of times, for one pattern without fractions of a second: all times of a second have the
    same text, in any zone. Rows follow each other in time, more or less, so that most seconds are
    those of a row not long before. */
public final class FiresteelDates implements Serializable {
    private static final int KEPT = 256;

    private final DateFormatClass format;
    private final Object pattern;
    private final long[] seconds = new long[KEPT];
    private final UTF8String[] texts = new UTF8String[KEPT];

    FiresteelDates(DateFormatClass format) {
        this.format = format;
        pattern = ((Literal) format.right()).value();
    }

    /** Called by the generated code. */
    public UTF8String text(long micros) {
        long second = Math.floorDiv(micros, 1000000L);
        int at = (int) second & (KEPT - 1);
        UTF8String text = texts[at];
        if (text == null || seconds[at] != second) {
            text = (UTF8String) format.nullSafeEval(Long.valueOf(micros), pattern);
            seconds[at] = second;
            texts[at] = text;
        }
        return text;
    }

    /** The plan, of which no part is generated yet, with `date_format` by second where it can be. */
    public static SparkPlan bySecond(SparkPlan plan) {
        return (SparkPlan) plan.transformAllExpressions(new FiresteelDatesRule());
    }

    static boolean suits(Object each) {
        if (!(each instanceof DateFormatClass)) return false;
        DateFormatClass format = (DateFormatClass) each;
        if (!(format.left().dataType() instanceof TimestampType)) return false;
        if (!(format.right() instanceof Literal) || ((Literal) format.right()).value() == null) return false;
        String pattern = ((Literal) format.right()).value().toString();
        for (int i = 0; i < pattern.length(); i++)
            if ("SAnN".indexOf(pattern.charAt(i)) >= 0) return false;
        // Those of other policies round in other ways.
        return format.formatterOption().isDefined()
            && format.formatterOption().get().getClass() == Iso8601TimestampFormatter.class;
    }

    static Expression of(DateFormatClass format) {
        FiresteelDates dates = new FiresteelDates(format);
        ArrayList arguments = new ArrayList();
        arguments.add(format.left());
        return new Invoke(
            new Literal(dates, new ObjectType(FiresteelDates.class)), "text", format.dataType(),
            CollectionConverters.asScala((java.util.List) arguments).toSeq(),
            CollectionConverters.asScala((java.util.List) new ArrayList()).toSeq(),
            true, false, true);
    }
}

final class FiresteelDatesRule extends AbstractPartialFunction implements Serializable {
    public boolean isDefinedAt(Object each) { return FiresteelDates.suits(each); }

    public Object applyOrElse(Object each, Function1 otherwise) {
        return FiresteelDates.suits(each) ? FiresteelDates.of((DateFormatClass) each) : otherwise.apply(each);
    }
}
