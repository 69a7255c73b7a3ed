package org.apache.spark.unsafe;

import java.util.Set;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The scan of a plan: it has no rows until a bundle is set, unless they are in a spool. */
final class FiresteelScan
        implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsReportStatistics, Batch {
    private final StructType whole;
    final FiresteelSpoolPartition spool;  // null: bundles
    private StructType read;

    FiresteelScan(StructType schema, FiresteelSpoolPartition spool) {
        whole = schema;
        this.spool = spool;
        read = schema;
    }

    /** Only prunes top-level columns, by name. */
    public void pruneColumns(StructType required) {
        StructField[] fields = whole.fields();
        Set names = new java.util.HashSet(java.util.Arrays.asList((Object[]) required.fieldNames()));
        java.util.ArrayList kept = new java.util.ArrayList();
        for (int i = 0; i < fields.length; i++) if (names.contains(fields[i].name())) kept.add(fields[i]);
        read = DataTypes.createStructType(kept);
    }

    public Scan build() { return this; }
    public StructType readSchema() { return read; }
    public String description() { return "bundles"; }
    public Batch toBatch() { return this; }
    public Scan.ColumnarSupportMode columnarSupportMode() { return Scan.ColumnarSupportMode.SUPPORTED; }
    public InputPartition[] planInputPartitions() {
        return new InputPartition[] {spool != null ? spool : new FiresteelBundlePartition(new byte[0], 0)};
    }
    public PartitionReaderFactory createReaderFactory() { return new FiresteelReaderFactory(whole, read); }
    public Statistics estimateStatistics() { return new FiresteelStatistics(spool); }
}
