package org.apache.spark.unsafe;

import java.util.ArrayList;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.ObjectType;
import scala.jdk.javaapi.CollectionConverters;

/** Replaces expressions that Spark evaluates through objects, although their values are plain numbers
    or bytes: the generated code calls equivalent methods of Firesteel instead. */
public final class FiresteelExpressions {
    /** Returns the plan, before code generation, with these calls. */
    public static SparkPlan replaced(SparkPlan plan) {
        return (SparkPlan) plan.transformAllExpressions(new FiresteelExpressionRule());
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
