package org.apache.spark.unsafe;

import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column whose values stay in Arrow's buffers. */
public final class FiresteelArrowVector extends ColumnVector {
    private final FiresteelArrowVector[] parts;  // children of an array, a map or a struct
    private final boolean struct;
    private long validity;     // address of the validity bits; 0: no nulls
    private long shift;        // bit offset of the validity bits
    private long data;         // the values, or the bytes of strings
    private long ends;         // the offsets of strings, arrays and maps
    private long first;        // booleans: bit offset; arrays and maps: first offset
    private long start;        // the first row of the current batch

    FiresteelArrowVector(DataType type) {
        super(type);
        struct = type instanceof StructType;
        if (struct) {
            StructField[] fields = ((StructType) type).fields();
            parts = new FiresteelArrowVector[fields.length];
            for (int i = 0; i < parts.length; i++) parts[i] = new FiresteelArrowVector(fields[i].dataType());
        } else if (type instanceof ArrayType) {
            parts = new FiresteelArrowVector[] {new FiresteelArrowVector(((ArrayType) type).elementType())};
        } else if (type instanceof MapType) {
            parts = new FiresteelArrowVector[] {
                new FiresteelArrowVector(((MapType) type).keyType()),
                new FiresteelArrowVector(((MapType) type).valueType())};
        } else parts = new FiresteelArrowVector[0];
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
