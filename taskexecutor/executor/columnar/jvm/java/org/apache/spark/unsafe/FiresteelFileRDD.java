package org.apache.spark.unsafe;

import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import scala.reflect.ClassTag$;

/** The rows that a plan over files makes from different files; see runners/file_plans.py. */
public final class FiresteelFileRDD extends RDD {
    private final RDD plan;  // its root is a scan
    private final Partition[] files;

    public FiresteelFileRDD(SparkContext context, RDD plan, Partition[] files) {
        super(
            context,
            (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$,
            ClassTag$.MODULE$.apply(org.apache.spark.sql.catalyst.InternalRow.class));
        this.plan = plan;
        this.files = files;
    }

    public Partition[] getPartitions() {
        return files;
    }

    public scala.collection.Iterator compute(Partition part, TaskContext context) {
        return plan.iterator(part, context);
    }
}
