package org.apache.spark.unsafe;

import java.util.Collections;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.InputFileBlockLength;
import org.apache.spark.sql.catalyst.expressions.InputFileBlockStart;
import org.apache.spark.sql.catalyst.expressions.InputFileName;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The table from which a plan reads its bundles. Its last column holds the row numbers. */
public final class FiresteelArrowTable implements SupportsRead {
    private static final String PLACE = "firesteel.place";

    private final StructType schema;
    private final FiresteelSpoolPartition spool;  // null: bundles

    public FiresteelArrowTable(StructType columns, FiresteelSpoolPartition spool) {
        this.spool = spool;
        String name = PLACE;
        Set names = new java.util.HashSet();
        for (int i = 0; i < columns.size(); i++) names.add(columns.fields()[i].name().toLowerCase());
        while (names.contains(name)) name = name + "_";
        Metadata marked = new MetadataBuilder().putBoolean(PLACE, true).build();
        schema = columns.add(new StructField(name, DataTypes.IntegerType, false, marked));
    }

    static boolean isPlace(StructField column) { return column.metadata().contains(PLACE); }

    /** Returns the names of the columns that a scan reads from its bundles, in order. */
    public static String[] columnsRead(Scan scan) {
        StructField[] fields = scan.readSchema().fields();
        java.util.ArrayList names = new java.util.ArrayList();
        for (int i = 0; i < fields.length; i++) if (!isPlace(fields[i])) names.add(fields[i].name());
        return (String[]) names.toArray(new String[0]);
    }

    /** Returns how many rows a scan reads; -1 if it reads bundles. */
    public static long rowsRead(Scan scan) {
        FiresteelSpoolPartition spool = ((FiresteelScan) scan).spool;
        return spool == null ? -1 : spool.rows;
    }

    /** Returns whether a plan, or an expression, depends on the file that is being read. */
    public static boolean asksForFile(TreeNode node) {
        if (node instanceof InputFileName || node instanceof InputFileBlockStart
                || node instanceof InputFileBlockLength) return true;
        if (asksForFile(node.children())) return true;
        return node instanceof QueryPlan && asksForFile(((QueryPlan) node).expressions());
    }

    private static boolean asksForFile(scala.collection.immutable.Seq nodes) {
        for (int i = 0; i < nodes.size(); i++) {
            if (asksForFile((TreeNode) nodes.apply(i))) return true;
        }
        return false;
    }

    public String name() { return "bundles"; }
    public StructType schema() { return schema; }
    public Set capabilities() { return Collections.singleton(TableCapability.BATCH_READ); }
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new FiresteelScan(schema, spool);
    }
}
