package org.apache.spark.unsafe;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import scala.Function1;
import scala.runtime.AbstractPartialFunction;

final class FiresteelExpressionRule extends AbstractPartialFunction implements Serializable {
    public boolean isDefinedAt(Object each) {
        return FiresteelTimeOfDayCache.suits(each) || FiresteelDecimalProducts.suits(each) || FiresteelIntegerTexts.suits(each);
    }

    public Object applyOrElse(Object each, Function1 otherwise) {
        if (FiresteelTimeOfDayCache.suits(each)) return FiresteelTimeOfDayCache.of((Expression) each);
        if (FiresteelDecimalProducts.suits(each)) return FiresteelDecimalProducts.of((Multiply) each);
        if (FiresteelIntegerTexts.suits(each)) return FiresteelIntegerTexts.of((Cast) each);
        return otherwise.apply(each);
    }
}
