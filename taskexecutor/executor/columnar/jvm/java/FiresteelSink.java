package org.apache.spark.unsafe;

import java.io.RandomAccessFile;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.Base64;
import org.apache.spark.Partition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.KnownNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.*;
import org.apache.spark.storage.StorageUtils;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/** An Arrow buffer in shared memory. Its range in the file has room for any size, so that it grows
    in place: no bytes are copied. */
final class FiresteelBuffer {
    static final long ROOM = 1L << 32;  // file range of each buffer; the file is sparse

    private final FiresteelSlab slab;
    private final long place;
    private MappedByteBuffer mapped;
    long address;
    long size;

    FiresteelBuffer(FiresteelSlab slab, int index) {
        this.slab = slab;
        place = index * ROOM;
    }

    /** Grows the buffer to at least this size. Its address changes, its content stays. */
    void grow(long wanted) {
        if (wanted <= size) return;
        long larger = Math.min(Math.max(wanted, 2 * size), Integer.MAX_VALUE);
        if (wanted > larger) throw new IllegalStateException(
            "a column of a batch has " + wanted + " bytes, but Arrow's limit is 2 GiB");
        slab.grows(larger - size);
        MappedByteBuffer old = mapped;
        try {
            mapped = slab.file.map(FileChannel.MapMode.READ_WRITE, place, larger);
        } catch (java.io.IOException error) {
            throw new IllegalStateException("cannot map " + larger + " bytes of shared memory", error);
        }
        address = Platform.getDirectBufferAddress(mapped);
        size = larger;
        if (old != null) StorageUtils.dispose(old);
    }

    void close() {
        if (mapped != null) StorageUtils.dispose(mapped);
        mapped = null;
    }
}

/** Shared memory for one batch at a time. */
final class FiresteelSlab {
    private final long limit;
    private long total;
    final FileChannel file;
    final FiresteelBuffer[] buffers;

    FiresteelSlab(String path, int count, long limit) throws java.io.IOException {
        this.limit = limit;
        RandomAccessFile opened = new RandomAccessFile(path, "rw");
        file = opened.getChannel();
        buffers = new FiresteelBuffer[count];
        for (int i = 0; i < count; i++) buffers[i] = new FiresteelBuffer(this, i);
    }

    void grows(long bytes) {
        total += bytes;
        if (total > limit) throw new IllegalStateException(
            "a batch of results needs more than " + limit + " bytes: one input row became too many"
            + " or too long output rows");
    }

    void close() throws java.io.IOException {
        for (int i = 0; i < buffers.length; i++) buffers[i].close();
        file.close();
    }
}

/** A column of the batch that is being written. Generated code calls `put`, and the column's parent
    calls `add`. */
public abstract class FiresteelColumn implements Serializable {
    protected transient int n;          // number of values so far
    protected transient int limit;      // number of values for which there is room
    protected transient int nulls;
    private transient FiresteelBuffer validity;

    /** Adds the value of a row, of an array or of a struct. */
    abstract void add(SpecializedGetters from, int ordinal);

    /** Adds a null. */
    abstract void addNull();

    /** Returns the number of its buffers, including those of its children. */
    abstract int buffers();

    /** Uses the empty buffers from `at` on. */
    void use(FiresteelBuffer[] from, int at, int rows) {
        validity = from[at];
        n = 0;
        nulls = 0;
        limit = rows;
    }

    /** Makes room for more values. */
    abstract void grow();

    protected final void enlarge(int larger) {
        if (nulls > 0) {
            int before = (limit + 7) >> 3;
            int after = (larger + 7) >> 3;
            validity.grow(after);
            Platform.setMemory(validity.address + before, (byte) -1, after - before);
        }
        limit = larger;
    }

    protected final int twice() {
        if (limit >= 1 << 30) throw new IllegalStateException("a batch has more than 2^30 values");
        return 2 * limit;
    }

    protected final void setNull(int at) {
        if (nulls++ == 0) {
            int bytes = (limit + 7) >> 3;
            validity.grow(bytes);
            Platform.setMemory(validity.address, (byte) -1, bytes);
        }
        long place = validity.address + (at >> 3);
        Platform.putByte(null, place, (byte) (Platform.getByte(null, place) & ~(1 << (at & 7))));
    }

    /** Reports to Python: number of values, of nulls, and of bytes of strings. */
    void report(ByteBuffer out) {
        out.putLong(n);
        out.putLong(nulls);
        out.putLong(0);
    }
    int reports() { return 1; }
}

/** Values of a fixed width. */
public abstract class FiresteelFixed extends FiresteelColumn {
    protected transient long data;
    private transient FiresteelBuffer values;

    abstract long bytes(int count);

    int buffers() { return 2; }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        values = from[at + 1];
        values.grow(bytes(rows));
        data = values.address;
    }

    final void grow() {
        int larger = twice();
        values.grow(bytes(larger));
        data = values.address;
        enlarge(larger);
    }
}

public final class FiresteelLongs extends FiresteelFixed {
    long bytes(int count) { return 8L * count; }
    public boolean put(boolean isNull, long value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putLong(null, data + (((long) n) << 3), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) { put(from.isNullAt(i), from.isNullAt(i) ? 0 : from.getLong(i)); }
    void addNull() { put(true, 0); }
}

public final class FiresteelInts extends FiresteelFixed {
    long bytes(int count) { return 4L * count; }
    public boolean put(boolean isNull, int value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putInt(null, data + (((long) n) << 2), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) { put(from.isNullAt(i), from.isNullAt(i) ? 0 : from.getInt(i)); }
    void addNull() { put(true, 0); }
}

public final class FiresteelShorts extends FiresteelFixed {
    long bytes(int count) { return 2L * count; }
    public boolean put(boolean isNull, short value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putShort(null, data + (((long) n) << 1), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getShort(i));
    }
    void addNull() { put(true, (short) 0); }
}

public final class FiresteelBytes extends FiresteelFixed {
    long bytes(int count) { return count; }
    public boolean put(boolean isNull, byte value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putByte(null, data + n, value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getByte(i));
    }
    void addNull() { put(true, (byte) 0); }
}

public final class FiresteelDoubles extends FiresteelFixed {
    long bytes(int count) { return 8L * count; }
    public boolean put(boolean isNull, double value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putDouble(null, data + (((long) n) << 3), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getDouble(i));
    }
    void addNull() { put(true, 0); }
}

public final class FiresteelFloats extends FiresteelFixed {
    long bytes(int count) { return 4L * count; }
    public boolean put(boolean isNull, float value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = 0; }
        Platform.putFloat(null, data + (((long) n) << 2), value);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getFloat(i));
    }
    void addNull() { put(true, 0); }
}

public final class FiresteelBooleans extends FiresteelFixed {
    long bytes(int count) { return (count + 7L) >> 3; }
    public boolean put(boolean isNull, boolean value) {
        int n = this.n;
        if (n == limit) grow();
        if (isNull) { setNull(n); value = false; }
        long place = data + (n >> 3);
        int bit = 1 << (n & 7);
        int rest = Platform.getByte(null, place) & (bit - 1);  // clears bits of the last batch
        Platform.putByte(null, place, (byte) (value ? rest | bit : rest));
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getBoolean(i));
    }
    void addNull() { put(true, false); }
}

public final class FiresteelDecimals extends FiresteelFixed {
    private static final long MOST = 999999999999999999L;  // that Decimal stores in a long

    private final int precision;
    private final int scale;
    private final Decimal most;
    private final Decimal least;

    FiresteelDecimals(int precision, int scale) {
        this.precision = precision;
        this.scale = scale;
        most = Decimal.createUnsafe(MOST, precision, scale);
        least = Decimal.createUnsafe(-MOST, precision, scale);
    }

    long bytes(int count) { return 16L * count; }

    public boolean put(boolean isNull, Decimal value) {
        int n = this.n;
        if (n == limit) grow();
        long low = 0;
        long high = 0;
        // As in Spark's row writers, a value that does not fit its type is null.
        if (isNull || !value.changePrecision(precision, scale)) setNull(n);
        else if (precision <= 18 || value.compare(most) <= 0 && value.compare(least) >= 0) {
            low = value.toUnscaledLong();
            high = low >> 63;
        } else {
            java.math.BigInteger unscaled = value.toJavaBigDecimal().unscaledValue();
            low = unscaled.longValue();
            high = unscaled.shiftRight(64).longValue();
        }
        Platform.putLong(null, data + (((long) n) << 4), low);
        Platform.putLong(null, data + (((long) n) << 4) + 8, high);
        this.n = n + 1;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getDecimal(i, precision, scale));
    }
    void addNull() { put(true, null); }
}

/** Values of variable length: their offsets, and their bytes or children. */
public abstract class FiresteelVariable extends FiresteelColumn {
    protected transient long ends;
    private transient FiresteelBuffer offsets;

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        offsets = from[at + 1];
        offsets.grow(4L * (rows + 1));
        ends = offsets.address + 4;
        Platform.putInt(null, offsets.address, 0);
    }

    final void grow() {
        int larger = twice();
        offsets.grow(4L * (larger + 1));
        ends = offsets.address + 4;
        enlarge(larger);
    }

    /** Ends a value, which extends up to `end`. */
    protected final void end(int end) {
        Platform.putInt(null, ends + (((long) n) << 2), end);
        n++;
    }
}

/** Values that are bytes. */
public abstract class FiresteelByteStrings extends FiresteelVariable {
    FiresteelSink sink;
    private transient FiresteelBuffer bytes;
    private transient long data;
    private transient long room;
    private transient long used;

    int buffers() { return 3; }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        bytes = from[at + 2];
        bytes.grow(1 << 16);
        data = bytes.address;
        room = bytes.size;
        used = 0;
    }

    protected final void append(Object base, long offset, int size) {
        if (size > room - used) {
            bytes.grow(used + size);
            data = bytes.address;
            room = bytes.size;
        }
        long to = data + used;
        if (size <= 32) {  // most strings: calling copyMemory costs more
            int i = 0;
            for (; i + 8 <= size; i += 8) Platform.putLong(null, to + i, Platform.getLong(base, offset + i));
            for (; i < size; i++) Platform.putByte(null, to + i, Platform.getByte(base, offset + i));
        } else Platform.copyMemory(base, offset, null, to, size);
        used += size;
        if (used > sink.softBytes) sink.full = true;
    }

    protected final void end() { end((int) used); }

    void report(ByteBuffer out) {
        out.putLong(n);
        out.putLong(nulls);
        out.putLong(used);
    }
}

public final class FiresteelTexts extends FiresteelByteStrings {
    public boolean put(boolean isNull, UTF8String value) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else append(value.getBaseObject(), value.getBaseOffset(), value.numBytes());
        end();
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getUTF8String(i));
    }
    void addNull() { put(true, null); }
}

public final class FiresteelBinaries extends FiresteelByteStrings {
    public boolean put(boolean isNull, byte[] value) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else append(value, Platform.BYTE_ARRAY_OFFSET, value.length);
        end();
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getBinary(i));
    }
    void addNull() { put(true, null); }
}

public final class FiresteelArrays extends FiresteelVariable {
    final FiresteelColumn element;
    FiresteelSink sink;

    FiresteelArrays(FiresteelColumn element) { this.element = element; }

    int buffers() { return 2 + element.buffers(); }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        element.use(from, at + 2, rows);
    }

    public boolean put(boolean isNull, ArrayData value) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else {
            int size = value.numElements();
            for (int i = 0; i < size; i++) element.add(value, i);
            if (element.n > sink.maxParts) sink.full = true;
        }
        end(element.n);
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getArray(i));
    }
    void addNull() { put(true, null); }
    void report(ByteBuffer out) {
        super.report(out);
        element.report(out);
    }
    int reports() { return 1 + element.reports(); }
}

public final class FiresteelMaps extends FiresteelVariable {
    final FiresteelColumn key;
    final FiresteelColumn value;
    FiresteelSink sink;

    FiresteelMaps(FiresteelColumn key, FiresteelColumn value) {
        this.key = key;
        this.value = value;
    }

    int buffers() { return 2 + key.buffers() + value.buffers(); }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        key.use(from, at + 2, rows);
        value.use(from, at + 2 + key.buffers(), rows);
    }

    public boolean put(boolean isNull, MapData map) {
        if (n == limit) grow();
        if (isNull) setNull(n);
        else {
            int size = map.numElements();
            ArrayData keys = map.keyArray();
            ArrayData values = map.valueArray();
            for (int i = 0; i < size; i++) {
                key.add(keys, i);
                value.add(values, i);
            }
            if (key.n > sink.maxParts) sink.full = true;
        }
        end(key.n);
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getMap(i));
    }
    void addNull() { put(true, null); }
    void report(ByteBuffer out) {
        super.report(out);
        key.report(out);
        value.report(out);
    }
    int reports() { return 1 + key.reports() + value.reports(); }
}

public final class FiresteelStructs extends FiresteelColumn {
    final FiresteelColumn[] parts;

    FiresteelStructs(FiresteelColumn[] parts) { this.parts = parts; }

    int buffers() {
        int count = 1;
        for (int i = 0; i < parts.length; i++) count += parts[i].buffers();
        return count;
    }

    void use(FiresteelBuffer[] from, int at, int rows) {
        super.use(from, at, rows);
        int next = at + 1;
        for (int i = 0; i < parts.length; i++) {
            parts[i].use(from, next, rows);
            next += parts[i].buffers();
        }
    }

    void grow() { enlarge(twice()); }

    public boolean put(boolean isNull, InternalRow value) {
        if (n == limit) grow();
        if (isNull) {
            setNull(n);
            for (int i = 0; i < parts.length; i++) parts[i].addNull();
        } else for (int i = 0; i < parts.length; i++) parts[i].add(value, i);
        n++;
        return true;
    }
    void add(SpecializedGetters from, int i) {
        if (from.isNullAt(i)) addNull(); else put(false, from.getStruct(i, parts.length));
    }
    void addNull() { put(true, null); }
    void report(ByteBuffer out) {
        super.report(out);
        for (int i = 0; i < parts.length; i++) parts[i].report(out);
    }
    int reports() {
        int count = 1;
        for (int i = 0; i < parts.length; i++) count += parts[i].reports();
        return count;
    }
}

/** Collects the values of a plan's last operator into Arrow columns, batch by batch.

    The plan's condition calls `put` for each column and then `row`. One run at a time. */
public final class FiresteelSink implements Serializable {
    private static final int CHECK_ROWS = 1024;  // between checks for cancellation

    private final int maxRows;
    final long softBytes;  // of a string column: a batch ends with the row that exceeds it
    final int maxParts;    // the same for elements of arrays and maps
    transient boolean full;

    private final FiresteelColumn[] columns;
    private final int buffers;
    private final int reports;
    private transient ArrayList slabs = new ArrayList();
    private transient int rows;
    private transient boolean ended;  // the batch has been ended by a row
    private transient FiresteelTask task;
    private transient Iterator input;

    /** Returns null if there is no column class for the type. */
    static FiresteelColumn of(DataType type) {
        if (type instanceof BooleanType) return new FiresteelBooleans();
        if (type instanceof ByteType) return new FiresteelBytes();
        if (type instanceof ShortType) return new FiresteelShorts();
        if (type instanceof IntegerType || type instanceof DateType) return new FiresteelInts();
        if (type instanceof LongType || type instanceof TimestampType
                || type instanceof TimestampNTZType || type instanceof DayTimeIntervalType)
            return new FiresteelLongs();
        if (type instanceof FloatType) return new FiresteelFloats();
        if (type instanceof DoubleType) return new FiresteelDoubles();
        if (type instanceof StringType) return new FiresteelTexts();
        if (type instanceof BinaryType) return new FiresteelBinaries();
        if (type instanceof DecimalType) {
            DecimalType decimal = (DecimalType) type;
            return new FiresteelDecimals(decimal.precision(), decimal.scale());
        }
        if (type instanceof ArrayType) {
            FiresteelColumn element = of(((ArrayType) type).elementType());
            return element == null ? null : new FiresteelArrays(element);
        }
        if (type instanceof MapType) {
            FiresteelColumn key = of(((MapType) type).keyType());
            FiresteelColumn value = of(((MapType) type).valueType());
            return key == null || value == null ? null : new FiresteelMaps(key, value);
        }
        if (type instanceof StructType) {
            StructField[] fields = ((StructType) type).fields();
            FiresteelColumn[] parts = new FiresteelColumn[fields.length];
            for (int i = 0; i < parts.length; i++) {
                parts[i] = of(fields[i].dataType());
                if (parts[i] == null) return null;
            }
            return new FiresteelStructs(parts);
        }
        return null;
    }

    /** Returns whether there are column classes for all of the types. */
    public static boolean suits(StructType schema) {
        return of(schema) != null;
    }

    public FiresteelSink(StructType schema, int maxRows, long softBytes) {
        this.maxRows = maxRows;
        this.softBytes = softBytes;
        maxParts = 4 * maxRows;
        FiresteelStructs all = (FiresteelStructs) of(schema);
        columns = all.parts;
        buffers = all.buffers() - 1;
        reports = all.reports() - 1;
        for (int i = 0; i < columns.length; i++) bind(columns[i]);
    }

    private void bind(FiresteelColumn column) {
        if (column instanceof FiresteelByteStrings) ((FiresteelByteStrings) column).sink = this;
        else if (column instanceof FiresteelArrays) {
            ((FiresteelArrays) column).sink = this;
            bind(((FiresteelArrays) column).element);
        } else if (column instanceof FiresteelMaps) {
            ((FiresteelMaps) column).sink = this;
            bind(((FiresteelMaps) column).key);
            bind(((FiresteelMaps) column).value);
        } else if (column instanceof FiresteelStructs) {
            FiresteelColumn[] parts = ((FiresteelStructs) column).parts;
            for (int i = 0; i < parts.length; i++) bind(parts[i]);
        }
    }

    /** Returns the plan with a final filter that puts each row's values here; it has no columns. */
    public SparkPlan after(SparkPlan plan) {
        Expression all = null;
        for (int i = 0; i < columns.length; i++) {
            Attribute value = (Attribute) plan.output().apply(i);
            ArrayList arguments = new ArrayList();
            arguments.add(new IsNull(value));
            // Invoke skips the call if an argument of a primitive type is null.
            arguments.add(value.nullable() ? new KnownNotNull(value) : value);
            Expression put = call(columns[i], "put", arguments);
            all = all == null ? put : new And(all, put);
        }
        Expression row = call(this, "row", new ArrayList());
        return new ProjectExec(seq(new ArrayList()), new FilterExec(new And(all, row), plan));
    }

    private static Expression call(Object target, String method, ArrayList arguments) {
        return new Invoke(
            new Literal(target, new ObjectType(target.getClass())), method, DataTypes.BooleanType,
            seq(arguments), seq(new ArrayList()), false, false, false);
    }

    private static scala.collection.immutable.Seq seq(ArrayList values) {
        return CollectionConverters.asScala((java.util.List) values).toSeq();
    }

    /** Adds a slab, the shared memory of that path, and returns its number. */
    public int addSlab(String path, long limit) throws java.io.IOException {
        slabs.add(new FiresteelSlab(path, buffers, limit));
        return slabs.size() - 1;
    }

    public void removeSlab(int number) throws java.io.IOException {
        ((FiresteelSlab) slabs.set(number, null)).close();
    }

    public void close() throws java.io.IOException {
        for (int i = 0; i < slabs.size(); i++) if (slabs.get(i) != null) removeSlab(i);
    }

    /** Called by the plan after a row's values are put. Returning true ends the batch. */
    public boolean row() {
        int n = ++rows;
        if ((n & (CHECK_ROWS - 1)) == 0) task.context().killTaskIfInterrupted();
        if (n < maxRows && !full || ended) return false;
        // Some operators continue to the last output row of an input row: true is returned once.
        ended = true;
        return true;
    }

    /** Starts a run of the plan's rows for a partition. */
    public void begin(RDD plan, Partition partition, FiresteelTask task) {
        task.enter();
        try {
            begin(plan.iterator(partition, task.context()), task);
        } finally {
            task.leave();
        }
    }

    public void begin(Iterator input, FiresteelTask task) {
        this.input = input;
        this.task = task;
    }

    /** Returns the next batch, as `text`. */
    public String next(int slab) { return text(fill(slab)); }

    /** Encodes the report as a string, which Py4J transfers much faster than bytes. */
    static String text(byte[] report) { return Base64.getEncoder().encodeToString(report); }

    /** Writes the next batch into that slab. Returns 1 if it is the last one, else 0; then each
        column's report. */
    byte[] fill(int slab) {
        task.enter();
        try {
            FiresteelBuffer[] memory = ((FiresteelSlab) slabs.get(slab)).buffers;
            int at = 0;
            for (int i = 0; i < columns.length; i++) {
                columns[i].use(memory, at, maxRows);
                at += columns[i].buffers();
            }
            rows = 0;
            full = false;
            ended = false;
            boolean more = false;
            while (!more && input.hasNext()) {
                input.next();
                more = rows > 0;  // the end of the last batch may be reported late
            }
            if (!more) input = null;
            ByteBuffer out = ByteBuffer.allocate(16 + 24 * reports).order(ByteOrder.LITTLE_ENDIAN);
            out.putLong(more ? 0 : 1);
            out.putLong(rows);
            for (int i = 0; i < columns.length; i++) columns[i].report(out);
            return out.array();
        } finally {
            task.leave();
        }
    }
}
