package org.apache.spark.unsafe;

import java.io.FileOutputStream;
import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import org.apache.spark.api.java.function.Function2;

/** Writes the bytes of each partition of an RDD to a separate file; see jvm/transfer.py. */
public final class FiresteelResultFiles implements Function2 {
    private final String folder;

    public FiresteelResultFiles(String folder) {
        this.folder = folder;
    }

    /** Returns the path of the file. */
    public Object call(Object partition, Object parts) throws Exception {
        String path = folder + "/result-" + partition;
        FileOutputStream file = new FileOutputStream(path);
        try {
            Iterator each = (Iterator) parts;
            while (each.hasNext()) {
                write(file, path, (byte[]) each.next());
            }
        } finally {
            file.close();
        }
        return Collections.singletonList(path).iterator();
    }

    private static void write(FileOutputStream file, String path, byte[] part) throws IOException {
        try {
            file.write(part);
        } catch (IOException error) {
            throw new IOException("cannot write results to " + path + ": " + error.getMessage());
        }
    }
}
