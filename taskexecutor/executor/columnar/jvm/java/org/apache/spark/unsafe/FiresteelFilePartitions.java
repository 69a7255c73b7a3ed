package org.apache.spark.unsafe;

import java.util.List;
import org.apache.hadoop.fs.Path;
import org.apache.spark.paths.SparkPath$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/** Parts of files, in the form for Spark's scans; see readers/parts.py. */
public final class FiresteelFilePartitions {
    /**
     * Returns a partition of a scan: parts of files, read in this order. `parts` holds for each part
     * its path, start, length, the file's size and modification time in ms, and the index of its row
     * in `values`, the values of partition columns; each followed by a zero character.
     */
    public static FilePartition partition(int index, String parts, List values) {
        String[] fields = parts.split("\0", -1);
        PartitionedFile[] files = new PartitionedFile[fields.length / 6];
        for (int i = 0; i < files.length; i++) {
            files[i] = new PartitionedFile(
                (InternalRow) values.get(Integer.parseInt(fields[6 * i + 5])),
                SparkPath$.MODULE$.fromPath(new Path("file", "", fields[6 * i])),
                Long.parseLong(fields[6 * i + 1]), Long.parseLong(fields[6 * i + 2]), new String[0],
                Long.parseLong(fields[6 * i + 4]), Long.parseLong(fields[6 * i + 3]),
                (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.empty());
        }
        return new FilePartition(index, files);
    }
}
