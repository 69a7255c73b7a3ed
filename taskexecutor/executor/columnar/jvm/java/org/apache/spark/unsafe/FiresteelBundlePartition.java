package org.apache.spark.unsafe;

import org.apache.spark.sql.connector.read.InputPartition;

/** The batches of a bundle. */
final class FiresteelBundlePartition implements InputPartition {
    final byte[] packed;  // for each batch: its number of rows, and the locations of its columns
    final long base;

    FiresteelBundlePartition(byte[] packed, long base) {
        this.packed = packed;
        this.base = base;
    }
}
