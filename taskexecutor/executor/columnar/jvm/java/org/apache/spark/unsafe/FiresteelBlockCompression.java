package org.apache.spark.unsafe;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.Decompressor;

/** Files in the block format of Hadoop's codecs for LZ4 and Snappy; see readers/compression.py. */
public final class FiresteelBlockCompression {
    private static final int MOST = 16 * 1024 * 1024;  // size of a chunk: codecs' buffers have 256 KiB

    /**
     * Returns whether the file consists of complete blocks: the uncompressed size, then chunks, each
     * preceded by its size. Hadoop's own stream treats any other content as the end of the file.
     */
    public static boolean whole(CompressionCodec codec, String path) throws IOException {
        byte[] text = new byte[64 * 1024];
        long left = new File(path).length();
        Decompressor decompressor = codec.createDecompressor();
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(path)));
        try {
            while (left > 0) {
                if (left < 4) return false;
                long size = in.readInt();
                left -= 4;
                if (size == 0) return left == 0;  // Hadoop reads no text after it
                if (size < 0) return false;
                while (size > 0) {
                    if (left < 4) return false;
                    int length = in.readInt();
                    left -= 4;
                    if (length <= 0 || length > Math.min(left, MOST)) return false;
                    byte[] chunk = new byte[length];
                    in.readFully(chunk);
                    left -= length;
                    decompressor.setInput(chunk, 0, length);
                    do {
                        int count = decompressor.decompress(text, 0, text.length);
                        while (count > 0) {
                            size -= count;
                            count = decompressor.decompress(text, 0, text.length);
                        }
                    } while (!decompressor.needsInput());
                }
                if (size < 0) return false;
            }
            return true;
        } finally {
            in.close();
            decompressor.end();
        }
    }
}
