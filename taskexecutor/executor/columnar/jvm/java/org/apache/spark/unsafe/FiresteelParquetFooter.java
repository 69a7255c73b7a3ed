package org.apache.spark.unsafe;

import java.util.HashSet;
import java.util.Locale;
import java.util.Set;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.format.converter.ParquetMetadataConverter;
import org.apache.parquet.hadoop.Footer;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFooterReader;
import org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter;
import org.apache.spark.sql.internal.SessionState;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The schema of Parquet files without a declared one, which Spark infers in a job that reads one
    footer. */
public final class FiresteelParquetFooter {
    /**
     * Returns the schema that Spark would infer, as JSON, or null if that takes more than the footer.
     * `files` comes from a reader with a schema without columns.
     */
    public static String schema(Dataset files) throws java.io.IOException {
        LogicalRelation leaf = (LogicalRelation) files.queryExecution().analyzed();
        HadoopFsRelation relation = (HadoopFsRelation) leaf.relation();
        PartitioningAwareFileIndex index = (PartitioningAwareFileIndex) relation.location();
        Path path = read(index.allFiles());
        if (path == null) return null;
        SessionState session = files.sparkSession().sessionState();
        Footer footer = new Footer(
            path,
            ParquetFooterReader.readFooter(
                HadoopInputFile.fromPath(path, session.newHadoopConf()),
                ParquetMetadataConverter.SKIP_ROW_GROUPS));
        StructType schema = ParquetFileFormat.readSchemaFromFooter(
            footer, new ParquetToSparkSchemaConverter(session.conf()));
        StructType all = (StructType) schema.asNullable();
        StructField[] folders = relation.partitionSchema().fields();
        for (int i = 0; i < folders.length; i++) all = all.add(folders[i]);
        // Spark has rules for a folder's column that also is in the files, and an error for other conflicts.
        return differ(all.fieldNames()) ? all.json() : null;
    }

    private static boolean differ(String[] names) {
        Set known = new HashSet();
        for (int i = 0; i < names.length; i++) known.add(names[i].toLowerCase(Locale.ROOT));
        return known.size() == names.length;
    }

    /** Returns the file whose footer Spark reads: a summary, else the first file by path. Spark skips
        empty files, and named pipes have no length. */
    private static Path read(scala.collection.immutable.Seq files) {
        Path best = null;
        for (scala.collection.Iterator left = files.iterator(); left.hasNext();) {
            FileStatus file = (FileStatus) left.next();
            Path path = file.getPath();
            if (file.getLen() == 0) continue;
            if (best == null || before(path, best)) best = path;
        }
        return best;
    }

    private static boolean before(Path one, Path other) {
        int difference = rank(one) - rank(other);
        return difference != 0 ? difference < 0 : one.toString().compareTo(other.toString()) < 0;
    }

    private static int rank(Path path) {
        if (path.getName().equals("_common_metadata")) return 0;
        return path.getName().equals("_metadata") ? 1 : 2;
    }
}
