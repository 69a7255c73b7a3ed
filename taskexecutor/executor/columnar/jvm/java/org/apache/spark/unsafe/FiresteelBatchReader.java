package org.apache.spark.unsafe;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.MappedByteBuffer;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;

final class FiresteelBatchReader implements PartitionReader {
    private static final int CHUNK = 1024;  // rows between checks for cancellation

    private final FiresteelSpoolPartition spool;  // null: the rows are in the buffer
    private final FiresteelMappedFiles mapped;
    private final FiresteelArrowVector[] vectors;  // of the batches' columns
    private final FiresteelRowNumbers places;     // null if the plan does not read row numbers
    private final ColumnarBatch batch;
    private LongBuffer in;
    private long base;
    private int files;   // number of the spool's files that are mapped
    private long before;  // number of rows in earlier batches
    private long rows;
    private long done;
    private int size;

    /** `whole` are the batches' columns, in order; `read` are those that the plan reads. */
    FiresteelBatchReader(StructType whole, StructType read, InputPartition partition) {
        if (partition instanceof FiresteelSpoolPartition) {
            spool = (FiresteelSpoolPartition) partition;
            mapped = new FiresteelMappedFiles();
            TaskContext.get().addTaskCompletionListener((TaskCompletionListener) mapped);
            in = LongBuffer.allocate(0);
        } else {
            FiresteelBundlePartition bundle = (FiresteelBundlePartition) partition;
            spool = null;
            mapped = null;
            in = ByteBuffer.wrap(bundle.packed).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
            base = bundle.base;
        }
        StructField[] fields = read.fields();
        int last = fields.length - 1;
        places = last >= 0 && FiresteelArrowTable.isPlace(fields[last]) ? new FiresteelRowNumbers() : null;
        ColumnVector[] all = new ColumnVector[fields.length];
        if (places != null) all[last] = places;
        StructField[] present = spool == null ? fields : whole.fields();
        int count = present.length;
        if (count > 0 && FiresteelArrowTable.isPlace(present[count - 1])) count--;
        vectors = new FiresteelArrowVector[count];
        for (int i = 0; i < count; i++) {
            vectors[i] = new FiresteelArrowVector(present[i].dataType());
            if (spool == null) all[i] = vectors[i];
            else for (int k = 0; k < fields.length; k++) {
                if (fields[k].name().equals(present[i].name())) all[k] = vectors[i];
            }
        }
        batch = new ColumnarBatch(all);
    }

    public boolean next() {
        TaskContext context = TaskContext.get();
        if (context != null) context.killTaskIfInterrupted();
        done += size;
        while (done >= rows && hasBatch()) {
            done = 0;
            before += rows;
            rows = in.get();
            for (int i = 0; i < vectors.length; i++) vectors[i].read(in, base);
        }
        size = (int) Math.min(CHUNK, rows - done);
        return size > 0;
    }

    private boolean hasBatch() {
        while (!in.hasRemaining() && spool != null && files < spool.files()) {
            MappedByteBuffer file = spool.map(files);
            mapped.add(file);
            base = Platform.getDirectBufferAddress(file);
            in = spool.places(files++, file);
        }
        return in.hasRemaining();
    }

    public Object get() {
        for (int i = 0; i < vectors.length; i++) vectors[i].start(done);
        if (places != null) places.start(before + done);
        batch.setNumRows(size);
        return batch;
    }

    public void close() {}
    public CustomTaskMetric[] currentMetricsValues() { return new CustomTaskMetric[0]; }
}
