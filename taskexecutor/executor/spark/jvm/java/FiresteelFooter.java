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
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The schema of Parquet files without one, which Spark infers by a job that reads one footer. */
public final class FiresteelFooter {
    /**
     * What Spark would infer, as JSON; `files`: of a reader that was given a schema of no columns.
     * Null if that takes more than the footer.
     */
    public static String schema(Dataset files) throws java.io.IOException {
        LogicalRelation leaf = (LogicalRelation) files.queryExecution().analyzed();
        HadoopFsRelation relation = (HadoopFsRelation) leaf.relation();
        PartitioningAwareFileIndex index = (PartitioningAwareFileIndex) relation.location();
        Path path = read(index.allFiles());
        if (path == null) return null;
        Footer footer = new Footer(
            path,
            ParquetFooterReader.readFooter(
                HadoopInputFile.fromPath(
                    path, files.sparkSession().sessionState().newHadoopConf()),
                ParquetMetadataConverter.SKIP_ROW_GROUPS));
        StructType schema = ParquetFileFormat.readSchemaFromFooter(
            footer, new ParquetToSparkSchemaConverter(files.sparkSession().sessionState().conf()));
        StructField[] columns = ((StructType) schema.asNullable()).fields();
        StructField[] folders = relation.partitionSchema().fields();
        Set names = new HashSet();
        StructType all = new StructType();
        for (int i = 0; i < columns.length + folders.length; i++) {
            StructField field = i < columns.length ? columns[i] : folders[i - columns.length];
            // Spark has rules for a folder's column that is in the files, and an error for two.
            if (!names.add(field.name().toLowerCase(Locale.ROOT))) return null;
            all = all.add(field);
        }
        return all.json();
    }

    /** The file whose footer Spark reads: a summary, else the first one by its path. */
    private static Path read(scala.collection.immutable.Seq files) {
        Path best = null;
        for (scala.collection.Iterator left = files.iterator(); left.hasNext();) {
            Path path = ((FileStatus) left.next()).getPath();
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
