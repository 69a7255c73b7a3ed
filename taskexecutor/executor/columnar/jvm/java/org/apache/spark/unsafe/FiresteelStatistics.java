package org.apache.spark.unsafe;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Statistics;

/** The size of the input; unknown for bundles. */
final class FiresteelStatistics implements Statistics {
    private final FiresteelSpoolPartition spool;

    FiresteelStatistics(FiresteelSpoolPartition spool) { this.spool = spool; }

    public OptionalLong sizeInBytes() {
        return spool == null ? OptionalLong.empty() : OptionalLong.of(spool.bytes);
    }
    public OptionalLong numRows() {
        return spool == null ? OptionalLong.empty() : OptionalLong.of(spool.rows);
    }
}
