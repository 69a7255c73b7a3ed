package org.apache.spark.unsafe;

import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column that batches lack: the row numbers within their bundle. */
public final class FiresteelRowNumbers extends ColumnVector {
    private long start;  // the first row of the current batch

    FiresteelRowNumbers() { super(DataTypes.IntegerType); }

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
