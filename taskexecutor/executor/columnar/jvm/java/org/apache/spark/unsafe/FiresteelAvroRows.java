package org.apache.spark.unsafe;

import java.io.Serializable;
import java.util.HashMap;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.spark.sql.avro.AvroDeserializer;
import org.apache.spark.sql.avro.SchemaConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads Avro records like Spark's from_avro, whose expression is not part of PySpark, with several
    writers' schemas. Runs of one plan use it one at a time. See connectors/kafka/decoders/avro.py. */
public final class FiresteelAvroRows implements Serializable {
    private static final int HEAD = 5;  // a zero byte, and the id of the writer's schema

    private final Schema schema;
    private final boolean framed;
    private final transient AvroDeserializer deserializer;
    private final transient HashMap readers = new HashMap();  // by the id of the writer's schema
    private transient BinaryDecoder decoder;

    public FiresteelAvroRows(String schema, boolean framed) {
        this.schema = new Schema.Parser().parse(schema);
        this.framed = framed;
        deserializer = new AvroDeserializer(this.schema, type(schema), "CORRECTED", false, "", -1);
    }

    /** Returns Spark's type of a schema. */
    public static DataType type(String schema) {
        return SchemaConverters.toSqlType(new Schema.Parser().parse(schema), false, "", -1).dataType();
    }

    public void addWriter(int id, String writer) {
        Schema written = new Schema.Parser().parse(writer);
        readers.put(Integer.valueOf(id), new GenericDatumReader(written, schema));
    }

    /** Called by the generated code. Returns the record's row and null, or null and why there is none. */
    public InternalRow row(byte[] value) {
        try {
            int start = framed ? HEAD : 0;
            int id = 0;
            if (framed) {
                if (value.length < HEAD || value[0] != 0) return error("the record does not start with a zero byte and a schema's id");
                id = (value[1] & 255) << 24 | (value[2] & 255) << 16 | (value[3] & 255) << 8 | value[4] & 255;
            }
            GenericDatumReader reader = (GenericDatumReader) readers.get(Integer.valueOf(id));
            if (reader == null) return error("the schema registry has no schema " + id);
            decoder = DecoderFactory.get().binaryDecoder(value, start, value.length - start, decoder);
            Object datum = reader.read(null, decoder);
            if (!decoder.isEnd()) return error("bytes follow the record: it was written with another schema");
            scala.Option row = deserializer.deserialize(datum);
            return new GenericInternalRow(new Object[] {row.get(), null});
        } catch (Exception failure) {
            String message = failure.getMessage();
            return error(message == null ? failure.getClass().getSimpleName() : message);
        }
    }

    private static InternalRow error(String text) {
        return new GenericInternalRow(new Object[] {null, UTF8String.fromString(text)});
    }
}
