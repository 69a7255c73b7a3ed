package org.apache.spark.unsafe;

import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.Base64;
import java.util.Collections;
import java.util.OptionalLong;
import java.util.Properties;
import java.util.Set;
import org.apache.spark.TaskContext;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.InputFileBlockLength;
import org.apache.spark.sql.catalyst.expressions.InputFileBlockStart;
import org.apache.spark.sql.catalyst.expressions.InputFileName;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.*;
import org.apache.spark.storage.BlockInfoManager;
import org.apache.spark.storage.StorageUtils;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskCompletionListener;

/** A column whose values stay in Arrow's buffers. */
public final class FiresteelVector extends ColumnVector {
    private final FiresteelVector[] parts;  // children of an array, a map or a struct
    private final boolean struct;
    private long validity;     // address of the validity bits; 0: no nulls
    private long shift;        // bit offset of the validity bits
    private long data;         // the values, or the bytes of strings
    private long ends;         // the offsets of strings, arrays and maps
    private long first;        // booleans: bit offset; arrays and maps: first offset
    private long start;        // the first row of the current batch

    FiresteelVector(DataType type) {
        super(type);
        struct = type instanceof StructType;
        if (struct) {
            StructField[] fields = ((StructType) type).fields();
            parts = new FiresteelVector[fields.length];
            for (int i = 0; i < parts.length; i++) parts[i] = new FiresteelVector(fields[i].dataType());
        } else if (type instanceof ArrayType) {
            parts = new FiresteelVector[] {new FiresteelVector(((ArrayType) type).elementType())};
        } else if (type instanceof MapType) {
            parts = new FiresteelVector[] {
                new FiresteelVector(((MapType) type).keyType()),
                new FiresteelVector(((MapType) type).valueType())};
        } else parts = new FiresteelVector[0];
    }

    /** Reads the locations of its values, relative to `base`, as columns/rows.py writes them. */
    void read(LongBuffer in, long base) {
        validity = place(in.get(), base);
        shift = in.get();
        data = place(in.get(), base);
        ends = place(in.get(), base);
        first = in.get();
        start = 0;
        for (int i = 0; i < parts.length; i++) parts[i].read(in, base);
    }

    private static long place(long at, long base) {
        return at == Long.MIN_VALUE ? 0 : at + base;
    }

    void start(long row) {
        start = row;
        if (struct) for (int i = 0; i < parts.length; i++) parts[i].start(row);
    }

    public void close() {}
    public boolean hasNull() { return validity != 0; }
    public int numNulls() { return validity != 0 ? 1 : 0; }

    public boolean isNullAt(int i) {
        if (validity == 0) return false;
        long bit = start + i + shift;
        return (Platform.getByte(null, validity + (bit >> 3)) >> (int) (bit & 7) & 1) == 0;
    }

    public boolean getBoolean(int i) {
        long bit = start + i + first;
        return (Platform.getByte(null, data + (bit >> 3)) >> (int) (bit & 7) & 1) != 0;
    }

    public byte getByte(int i) { return Platform.getByte(null, data + start + i); }
    public short getShort(int i) { return Platform.getShort(null, data + ((start + i) << 1)); }
    public int getInt(int i) { return Platform.getInt(null, data + ((start + i) << 2)); }
    public long getLong(int i) { return Platform.getLong(null, data + ((start + i) << 3)); }
    public float getFloat(int i) { return Platform.getFloat(null, data + ((start + i) << 2)); }
    public double getDouble(int i) { return Platform.getDouble(null, data + ((start + i) << 3)); }

    public UTF8String getUTF8String(int i) {
        long at = ends + ((start + i) << 2);
        int from = Platform.getInt(null, at);
        return UTF8String.fromAddress(null, data + from, Platform.getInt(null, at + 4) - from);
    }

    public byte[] getBinary(int i) { return getUTF8String(i).getBytes(); }

    public Decimal getDecimal(int i, int precision, int scale) {
        long at = data + ((start + i) << 4);
        long low = Platform.getLong(null, at);
        if (precision <= 18) return Decimal.createUnsafe(low, precision, scale);
        long high = Platform.getLong(null, at + 8);
        // Values that fit a long need no objects in Spark, even for types with more digits.
        if (high == low >> 63) return Decimal.apply(low, precision, scale);
        java.math.BigInteger unscaled = new java.math.BigInteger(
            ByteBuffer.allocate(16).putLong(high).putLong(low).array());
        return Decimal.apply(new java.math.BigDecimal(unscaled, scale), precision, scale);
    }

    public ColumnarArray getArray(int i) {
        long at = ends + ((start + i) << 2);
        int from = Platform.getInt(null, at);
        int size = Platform.getInt(null, at + 4) - from;
        return new ColumnarArray(parts[0], (int) (from - first), size);
    }

    public ColumnarMap getMap(int i) {
        long at = ends + ((start + i) << 2);
        int from = Platform.getInt(null, at);
        int size = Platform.getInt(null, at + 4) - from;
        return new ColumnarMap(parts[0], parts[1], (int) (from - first), size);
    }

    public ColumnVector getChild(int i) { return parts[i]; }
}

/** A column that batches lack: the row numbers within their bundle. */
public final class FiresteelPlaces extends ColumnVector {
    private long start;  // the first row of the current batch

    FiresteelPlaces() { super(DataTypes.IntegerType); }

    void start(long row) { start = row; }

    public int getInt(int i) { return (int) (start + i); }
    public boolean hasNull() { return false; }
    public int numNulls() { return 0; }
    public boolean isNullAt(int i) { return false; }
    public void close() {}

    public boolean getBoolean(int i) { throw new UnsupportedOperationException(); }
    public byte getByte(int i) { throw new UnsupportedOperationException(); }
    public short getShort(int i) { throw new UnsupportedOperationException(); }
    public long getLong(int i) { throw new UnsupportedOperationException(); }
    public float getFloat(int i) { throw new UnsupportedOperationException(); }
    public double getDouble(int i) { throw new UnsupportedOperationException(); }
    public UTF8String getUTF8String(int i) { throw new UnsupportedOperationException(); }
    public byte[] getBinary(int i) { throw new UnsupportedOperationException(); }
    public Decimal getDecimal(int i, int precision, int scale) {
        throw new UnsupportedOperationException();
    }
    public ColumnarArray getArray(int i) { throw new UnsupportedOperationException(); }
    public ColumnarMap getMap(int i) { throw new UnsupportedOperationException(); }
    public ColumnVector getChild(int i) { throw new UnsupportedOperationException(); }
}

/** The batches of a bundle. */
final class FiresteelRows implements InputPartition {
    final byte[] packed;  // for each batch: its number of rows, and the locations of its columns
    final long base;

    FiresteelRows(byte[] packed, long base) {
        this.packed = packed;
        this.base = base;
    }
}

/** Batches in files, as columns/spool.py writes them. */
public final class FiresteelSpool implements InputPartition {
    private final String[] paths;
    private final long[] places;  // for each file, the offset of its batches' locations
    private final long[] sizes;   // sizes of the files
    final long rows;
    final long bytes;

    public FiresteelSpool(String[] paths, long[] places, long[] sizes, long rows) {
        this.paths = paths;
        this.places = places;
        this.sizes = sizes;
        this.rows = rows;
        long all = 0;
        for (int i = 0; i < sizes.length; i++) all += sizes[i];
        bytes = all;
    }

    int files() { return paths.length; }

    MappedByteBuffer map(int file) {
        try {
            RandomAccessFile opened = new RandomAccessFile(paths[file], "r");
            try {
                return opened.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, sizes[file]);
            } finally {
                opened.close();
            }
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    LongBuffer places(int file, MappedByteBuffer mapped) {
        ByteBuffer all = (ByteBuffer) mapped.duplicate();
        all.position((int) places[file]);
        ByteBuffer tail = (ByteBuffer) all.slice();
        tail.order(ByteOrder.LITTLE_ENDIAN);
        return tail.asLongBuffer();
    }
}

/** The files of a spool that a task has mapped. Rows may reference them until it ends. */
final class FiresteelMapped implements TaskCompletionListener {
    private final java.util.ArrayList files = new java.util.ArrayList();

    void add(MappedByteBuffer file) { files.add(file); }

    public void onTaskCompletion(TaskContext context) {
        for (int i = 0; i < files.size(); i++) StorageUtils.dispose((MappedByteBuffer) files.get(i));
        files.clear();
    }
}

final class FiresteelReader implements PartitionReader {
    private static final int CHUNK = 1024;  // rows between checks for cancellation

    private final FiresteelSpool spool;  // null: the rows are in the buffer
    private final FiresteelMapped mapped;
    private final FiresteelVector[] vectors;  // of the batches' columns
    private final FiresteelPlaces places;     // null if the plan does not read row numbers
    private final ColumnarBatch batch;
    private LongBuffer in;
    private long base;
    private int files;   // number of the spool's files that are mapped
    private long before;  // number of rows in earlier batches
    private long rows;
    private long done;
    private int size;

    /** `whole` are the batches' columns, in order; `read` are those that the plan reads. */
    FiresteelReader(StructType whole, StructType read, InputPartition partition) {
        if (partition instanceof FiresteelSpool) {
            spool = (FiresteelSpool) partition;
            mapped = new FiresteelMapped();
            TaskContext.get().addTaskCompletionListener((TaskCompletionListener) mapped);
            in = LongBuffer.allocate(0);
        } else {
            FiresteelRows bundle = (FiresteelRows) partition;
            spool = null;
            mapped = null;
            in = ByteBuffer.wrap(bundle.packed).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
            base = bundle.base;
        }
        StructField[] fields = read.fields();
        int last = fields.length - 1;
        places = last >= 0 && FiresteelTable.isPlace(fields[last]) ? new FiresteelPlaces() : null;
        ColumnVector[] all = new ColumnVector[fields.length];
        if (places != null) all[last] = places;
        StructField[] present = spool == null ? fields : whole.fields();
        int count = present.length;
        if (count > 0 && FiresteelTable.isPlace(present[count - 1])) count--;
        vectors = new FiresteelVector[count];
        for (int i = 0; i < count; i++) {
            vectors[i] = new FiresteelVector(present[i].dataType());
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

final class FiresteelReaders implements PartitionReaderFactory {
    private final StructType whole;
    private final StructType read;

    FiresteelReaders(StructType whole, StructType read) {
        this.whole = whole;
        this.read = read;
    }

    public boolean supportColumnarReads(InputPartition partition) { return true; }
    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException();
    }
    public PartitionReader createColumnarReader(InputPartition partition) {
        return new FiresteelReader(whole, read, partition);
    }
}

/** The scan of a plan: it has no rows until a bundle is set, unless they are in a spool. */
final class FiresteelScan
        implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsReportStatistics, Batch {
    private final StructType whole;
    final FiresteelSpool spool;  // null: bundles
    private StructType read;

    FiresteelScan(StructType schema, FiresteelSpool spool) {
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
        return new InputPartition[] {spool != null ? spool : new FiresteelRows(new byte[0], 0)};
    }
    public PartitionReaderFactory createReaderFactory() { return new FiresteelReaders(whole, read); }
    public Statistics estimateStatistics() { return new FiresteelStatistics(spool); }
}

/** The size of the input; unknown for bundles. */
final class FiresteelStatistics implements Statistics {
    private final FiresteelSpool spool;

    FiresteelStatistics(FiresteelSpool spool) { this.spool = spool; }

    public OptionalLong sizeInBytes() {
        return spool == null ? OptionalLong.empty() : OptionalLong.of(spool.bytes);
    }
    public OptionalLong numRows() {
        return spool == null ? OptionalLong.empty() : OptionalLong.of(spool.rows);
    }
}

/** The table from which a plan reads its bundles. Its last column holds the row numbers. */
public final class FiresteelTable implements SupportsRead {
    private static final String PLACE = "firesteel.place";

    private final StructType schema;
    private final FiresteelSpool spool;  // null: bundles

    public FiresteelTable(StructType columns, FiresteelSpool spool) {
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
        FiresteelSpool spool = ((FiresteelScan) scan).spool;
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

/** Runs the bundles of one plan: input as Arrow columns in shared memory, output into a sink. */
public final class FiresteelBundles {
    private final RDD plan;
    private final FiresteelSink sink;
    private final Properties properties;
    private final MemoryManager memory;
    private final BlockInfoManager blocks;
    private FiresteelTask task;
    private MappedByteBuffer input;

    public FiresteelBundles(
            RDD plan, FiresteelSink sink, Properties properties, MemoryManager memory,
            BlockInfoManager blocks) {
        this.plan = plan;
        this.sink = sink;
        this.properties = properties;
        this.memory = memory;
        this.blocks = blocks;
    }

    /** Opens the shared memory for the input of bundles. */
    public void map(String path, long size) throws java.io.IOException {
        if (input != null) StorageUtils.dispose(input);
        input = null;
        RandomAccessFile file = new RandomAccessFile(path, "r");
        try {
            input = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, size);
        } finally {
            file.close();
        }
    }

    /** Starts a bundle and returns its first batch of results, like FiresteelSink.next(). */
    public String first(String group, String packed, int slab) {
        task = new FiresteelTask(group, properties, memory, blocks);
        FiresteelRows rows = new FiresteelRows(
            Base64.getDecoder().decode(packed), Platform.getDirectBufferAddress(input));
        boolean begun = false;
        try {
            sink.begin(plan, new DataSourceRDDPartition(0, scala.Option.apply(rows)), task);
            begun = true;
        } finally {
            if (!begun) end();
        }
        return next(slab);
    }

    /** Returns the next batch. The last batch or an error ends the bundle's task. */
    public String next(int slab) {
        boolean more = false;
        try {
            byte[] report = sink.fill(slab);
            more = report[0] == 0;
            return FiresteelSink.text(report);
        } finally {
            if (!more) end();
        }
    }

    /** Ends the bundle. Idempotent. */
    public void end() {
        if (task != null) task.end();
        task = null;
    }

    public void close() {
        if (input != null) StorageUtils.dispose(input);
        input = null;
    }
}
