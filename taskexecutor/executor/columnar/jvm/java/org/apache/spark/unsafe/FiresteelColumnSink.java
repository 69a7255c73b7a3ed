package org.apache.spark.unsafe;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Base64;
import org.apache.spark.Partition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.KnownNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/** Collects the values of a plan's last operator into Arrow columns, batch by batch.

    The plan's condition calls `put` for each column and then `row`. One run at a time. */
public final class FiresteelColumnSink implements Serializable {
    private static final int CHECK_ROWS = 1024;  // between checks for cancellation

    private final int maxRows;
    final long softBytes;  // of a string column: a batch ends with the row that exceeds it
    final int maxParts;    // the same for elements of arrays and maps
    transient boolean full;

    private final FiresteelColumn[] columns;
    private final int buffers;
    private final int reports;
    private transient ArrayList slabs = new ArrayList();
    private transient int rows;
    private transient boolean ended;  // the batch has been ended by a row
    private transient FiresteelLocalTask task;
    private transient Iterator input;

    /** Returns null if there is no column class for the type. */
    static FiresteelColumn of(DataType type) {
        if (type instanceof BooleanType) return new FiresteelBooleanColumn();
        if (type instanceof ByteType) return new FiresteelByteColumn();
        if (type instanceof ShortType) return new FiresteelShortColumn();
        if (type instanceof IntegerType || type instanceof DateType) return new FiresteelIntColumn();
        if (type instanceof LongType || type instanceof TimestampType
                || type instanceof TimestampNTZType || type instanceof DayTimeIntervalType)
            return new FiresteelLongColumn();
        if (type instanceof FloatType) return new FiresteelFloatColumn();
        if (type instanceof DoubleType) return new FiresteelDoubleColumn();
        if (type instanceof StringType) return new FiresteelTextColumn();
        if (type instanceof BinaryType) return new FiresteelBinaryColumn();
        if (type instanceof DecimalType) {
            DecimalType decimal = (DecimalType) type;
            return new FiresteelDecimalColumn(decimal.precision(), decimal.scale());
        }
        if (type instanceof ArrayType) {
            FiresteelColumn element = of(((ArrayType) type).elementType());
            return element == null ? null : new FiresteelArrayColumn(element);
        }
        if (type instanceof MapType) {
            FiresteelColumn key = of(((MapType) type).keyType());
            FiresteelColumn value = of(((MapType) type).valueType());
            return key == null || value == null ? null : new FiresteelMapColumn(key, value);
        }
        if (type instanceof StructType) {
            StructField[] fields = ((StructType) type).fields();
            FiresteelColumn[] parts = new FiresteelColumn[fields.length];
            for (int i = 0; i < parts.length; i++) {
                parts[i] = of(fields[i].dataType());
                if (parts[i] == null) return null;
            }
            return new FiresteelStructColumn(parts);
        }
        return null;
    }

    /** Returns whether there are column classes for all of the types. */
    public static boolean suits(StructType schema) {
        return of(schema) != null;
    }

    public FiresteelColumnSink(StructType schema, int maxRows, long softBytes) {
        this.maxRows = maxRows;
        this.softBytes = softBytes;
        maxParts = 4 * maxRows;
        FiresteelStructColumn all = (FiresteelStructColumn) of(schema);
        columns = all.parts;
        buffers = all.buffers() - 1;
        reports = all.reports() - 1;
        for (int i = 0; i < columns.length; i++) bind(columns[i]);
    }

    private void bind(FiresteelColumn column) {
        if (column instanceof FiresteelByteStringColumn) ((FiresteelByteStringColumn) column).sink = this;
        else if (column instanceof FiresteelArrayColumn) {
            ((FiresteelArrayColumn) column).sink = this;
            bind(((FiresteelArrayColumn) column).element);
        } else if (column instanceof FiresteelMapColumn) {
            ((FiresteelMapColumn) column).sink = this;
            bind(((FiresteelMapColumn) column).key);
            bind(((FiresteelMapColumn) column).value);
        } else if (column instanceof FiresteelStructColumn) {
            FiresteelColumn[] parts = ((FiresteelStructColumn) column).parts;
            for (int i = 0; i < parts.length; i++) bind(parts[i]);
        }
    }

    /** Returns the plan with a final filter that puts each row's values here; it has no columns. */
    public SparkPlan after(SparkPlan plan) {
        Expression all = null;
        for (int i = 0; i < columns.length; i++) {
            Attribute value = (Attribute) plan.output().apply(i);
            ArrayList arguments = new ArrayList();
            arguments.add(new IsNull(value));
            // Invoke skips the call if an argument of a primitive type is null.
            arguments.add(value.nullable() ? new KnownNotNull(value) : value);
            Expression put = call(columns[i], "put", arguments);
            all = all == null ? put : new And(all, put);
        }
        Expression row = call(this, "row", new ArrayList());
        return new ProjectExec(seq(new ArrayList()), new FilterExec(new And(all, row), plan));
    }

    private static Expression call(Object target, String method, ArrayList arguments) {
        return new Invoke(
            new Literal(target, new ObjectType(target.getClass())), method, DataTypes.BooleanType,
            seq(arguments), seq(new ArrayList()), false, false, false);
    }

    private static scala.collection.immutable.Seq seq(ArrayList values) {
        return CollectionConverters.asScala((java.util.List) values).toSeq();
    }

    /** Adds a slab, the shared memory of that path, and returns its number. */
    public int addSlab(String path, long limit) throws java.io.IOException {
        slabs.add(new FiresteelSlab(path, buffers, limit));
        return slabs.size() - 1;
    }

    public void removeSlab(int number) throws java.io.IOException {
        ((FiresteelSlab) slabs.set(number, null)).close();
    }

    public void close() throws java.io.IOException {
        for (int i = 0; i < slabs.size(); i++) if (slabs.get(i) != null) removeSlab(i);
    }

    /** Called by the plan after a row's values are put. Returning true ends the batch. */
    public boolean row() {
        int n = ++rows;
        if ((n & (CHECK_ROWS - 1)) == 0) task.context().killTaskIfInterrupted();
        if (n < maxRows && !full || ended) return false;
        // Some operators continue to the last output row of an input row: true is returned once.
        ended = true;
        return true;
    }

    /** Starts a run of the plan's rows for a partition. */
    public void begin(RDD plan, Partition partition, FiresteelLocalTask task) {
        task.enter();
        try {
            begin(plan.iterator(partition, task.context()), task);
        } finally {
            task.leave();
        }
    }

    public void begin(Iterator input, FiresteelLocalTask task) {
        this.input = input;
        this.task = task;
    }

    /** Returns the next batch, as `text`. */
    public String next(int slab) { return text(fill(slab)); }

    /** Encodes the report as a string, which Py4J transfers much faster than bytes. */
    static String text(byte[] report) { return Base64.getEncoder().encodeToString(report); }

    /** Writes the next batch into that slab. Returns 1 if it is the last one, else 0; then each
        column's report. */
    byte[] fill(int slab) {
        task.enter();
        try {
            FiresteelBuffer[] memory = ((FiresteelSlab) slabs.get(slab)).buffers;
            int at = 0;
            for (int i = 0; i < columns.length; i++) {
                columns[i].use(memory, at, maxRows);
                at += columns[i].buffers();
            }
            rows = 0;
            full = false;
            ended = false;
            boolean more = false;
            while (!more && input.hasNext()) {
                input.next();
                more = rows > 0;  // the end of the last batch may be reported late
            }
            if (!more) input = null;
            ByteBuffer out = ByteBuffer.allocate(16 + 24 * reports).order(ByteOrder.LITTLE_ENDIAN);
            out.putLong(more ? 0 : 1);
            out.putLong(rows);
            for (int i = 0; i < columns.length; i++) columns[i].report(out);
            return out.array();
        } finally {
            task.leave();
        }
    }
}
