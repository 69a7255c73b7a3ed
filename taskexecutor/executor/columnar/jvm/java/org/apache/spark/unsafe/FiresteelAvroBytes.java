package org.apache.spark.unsafe;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.spark.sql.avro.AvroSerializer;
import org.apache.spark.sql.avro.SchemaConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;

/** Writes rows as Avro records like Spark's to_avro. See connectors/kafka/encoders/avro.py. */
public final class FiresteelAvroBytes implements Serializable {
    private final transient AvroSerializer serializer;
    private final transient GenericDatumWriter writer;
    private final int id;
    private final transient ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private transient BinaryEncoder encoder;

    /** `id` is the schema's in a registry, or -1. */
    public FiresteelAvroBytes(DataType type, String schema, int id) {
        Schema written = new Schema.Parser().parse(schema);
        serializer = new AvroSerializer(type, written, false);
        writer = new GenericDatumWriter(written);
        this.id = id;
    }

    /** Returns the schema of rows of this type. */
    public static String schema(DataType type, String name) {
        return SchemaConverters.toAvroType(type, false, name, "").toString();
    }

    /** Called by the generated code. */
    public byte[] bytes(InternalRow row) throws IOException {
        bytes.reset();
        if (id >= 0) {
            bytes.write(0);
            for (int shift = 24; shift >= 0; shift -= 8) bytes.write(id >>> shift);
        }
        encoder = EncoderFactory.get().directBinaryEncoder(bytes, encoder);
        writer.write(serializer.serialize(row), encoder);
        encoder.flush();
        return bytes.toByteArray();
    }
}
