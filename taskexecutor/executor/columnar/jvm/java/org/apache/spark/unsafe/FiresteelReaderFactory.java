package org.apache.spark.unsafe;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

final class FiresteelReaderFactory implements PartitionReaderFactory {
    private final StructType whole;
    private final StructType read;

    FiresteelReaderFactory(StructType whole, StructType read) {
        this.whole = whole;
        this.read = read;
    }

    public boolean supportColumnarReads(InputPartition partition) { return true; }
    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException();
    }
    public PartitionReader createColumnarReader(InputPartition partition) {
        return new FiresteelBatchReader(whole, read, partition);
    }
}
