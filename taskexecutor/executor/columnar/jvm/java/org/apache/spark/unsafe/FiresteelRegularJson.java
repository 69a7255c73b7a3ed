package org.apache.spark.unsafe;

import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.LocalDate;
import org.apache.spark.storage.StorageUtils;

/** Finds the values of JSON objects that are equal but for their values: see decoders/json_regular.py.
    It compares, and searches, eight bytes at a time; the lowest byte of a word is the first in memory. */
public final class FiresteelRegularJson {
    private static final int MOST_DIGITS = 16;
    private static final int DAY = 10;  // characters of a time
    private static final int SECONDS = 19;  // the same, to the seconds
    private static final long NO_TIME = Long.MIN_VALUE;
    private static final long ONES = 0x0101010101010101L;
    private static final long HIGHEST_BITS = 0x8080808080808080L;
    private static final long QUOTES = 0x2222222222222222L;
    private static final long BACKSLASHES = 0x5C5C5C5C5C5C5C5CL;
    private static final long ZEROS = 0x3030303030303030L;
    private static final long SIXES = 0x0606060606060606L;
    private static final long HIGH_HALVES = 0xF0F0F0F0F0F0F0F0L;
    private static final long PAIRS = 0x000000FF000000FFL;
    private static final long[] POWERS = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};

    private final MappedByteBuffer memory;
    private final long base;
    private final boolean utc;
    private long lastDay;  // its first eight characters
    private int lastDayEnd;  // the other two
    private long lastDayUs;
    private int values;  // of a record
    private boolean[] times;  // whether each value is read as a time
    private boolean[] quoted;  // of each value
    private int[] sizes;  // of the texts around the values, in bytes
    private int[] starts;  // of each text in `words`
    private long[] words;
    private long[] masks;  // of the last word of each text

    /** `path` is that of the shared memory. `utc`: times without a zone are UTC. */
    public FiresteelRegularJson(String path, long size, boolean utc) throws java.io.IOException {
        this.utc = utc;
        RandomAccessFile file = new RandomAccessFile(path, "rw");
        try {
            memory = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, size);
        } finally {
            file.close();
        }
        base = Platform.getDirectBufferAddress(memory);
    }

    /** Sets the texts before, between and after the values, which lines of `template` hold. A "t" in
        `kinds` is for each quoted value that is read as a time. */
    public void expect(String template, String kinds) {
        String[] texts = template.split("\n", -1);
        values = texts.length - 1;
        times = new boolean[values];
        for (int i = 0; i < values; i++) times[i] = kinds.charAt(i) == 't';
        quoted = new boolean[values];
        sizes = new int[texts.length];
        starts = new int[texts.length + 1];
        masks = new long[texts.length];
        words = new long[template.length() + 8 * texts.length];
        for (int i = 0; i < texts.length; i++) {
            byte[] bytes = texts[i].getBytes(StandardCharsets.UTF_8);
            sizes[i] = bytes.length;
            starts[i + 1] = starts[i] + (bytes.length + 7) / 8;
            masks[i] = bytes.length % 8 == 0 ? -1L : (1L << 8 * (bytes.length % 8)) - 1;
            for (int j = 0; j < bytes.length; j++) words[starts[i] + j / 8] |= (bytes[j] & 0xFFL) << 8 * (j % 8);
            if (i < values) quoted[i] = texts[i].endsWith("\"");
        }
    }

    /** Returns how many records precede the first one with other texts around its values, a backslash in
        a value, or something else than an integer in place of one. `text` and `ends` are the places of the records
        and of their ends. For each value, eight bytes per record are written to `results`: the start
        and the end of a quoted value in the text, or a number. */
    public int read(long text, long ends, int records, long results) {
        long first = Platform.getInt(null, base + ends);
        long start = base + text;
        for (int record = 0; record < records; record++) {
            long end = base + text + Platform.getInt(null, base + ends + 4L * (record + 1)) - first;
            if (!record(start, end, base + results + 8L * record, 8L * records, base + text)) return record;
            start = end;
        }
        return records;
    }

    private boolean record(long at, long end, long result, long step, long text) {
        for (int i = 0; i < values; i++, result += step) {
            if (!has(i, at)) return false;
            at += sizes[i];
            long start = at;
            if (!quoted[i]) {
                at = number(start, result);
                if (at < 0) return false;
                continue;
            }
            long marks = marks(at);
            while (marks == 0) {
                at += 8;
                if (at >= end) return false;
                marks = marks(at);
            }
            at += Long.numberOfTrailingZeros(marks) >>> 3;
            Platform.putInt(null, result, (int) (start - text));
            Platform.putInt(null, result + 4, (int) (at - text));
            if (times[i]) {
                result += step;
                Platform.putLong(null, result, time(start, (int) (at - start)));
            }
        }
        return has(values, at) && at + sizes[values] == end;
    }

    private boolean has(int index, long at) {
        int last = starts[index + 1] - 1;
        for (int i = starts[index]; i < last; i++, at += 8) {
            if (Platform.getLong(null, at) != words[i]) return false;
        }
        return (Platform.getLong(null, at) & masks[index]) == words[last];
    }

    /** Returns bits of which the lowest one is in the first quote or backslash; 0: there is none. */
    private static long marks(long at) {
        long word = Platform.getLong(null, at);
        long quotes = word ^ QUOTES;
        long backslashes = word ^ BACKSLASHES;
        return ((quotes - ONES) & ~quotes | (backslashes - ONES) & ~backslashes) & HIGHEST_BITS;
    }

    /** Writes the number, and returns its end; -1 if it has leading zeros, no digits or too many. */
    private static long number(long start, long result) {
        long number = 0;
        long at = start;
        while (true) {
            long word = Platform.getLong(null, at) ^ ZEROS;
            long others = ((word + SIXES) | word) & HIGH_HALVES;
            if (others != 0) {
                int digits = Long.numberOfTrailingZeros(others) >>> 3;
                if (digits > 0) number = number * POWERS[digits] + eightDigits(word << 64 - 8 * digits);
                at += digits;
                break;
            }
            number = number * 100000000L + eightDigits(word);
            at += 8;
            if (at - start > MOST_DIGITS) return -1;
        }
        long digits = at - start;
        if (digits == 0 || digits > MOST_DIGITS) return -1;
        if (digits > 1 && Platform.getByte(null, start) == '0') return -1;
        Platform.putLong(null, result, number);
        return at;
    }

    private static long eightDigits(long word) {
        word = word * 10 + (word >>> 8);  // two digits each
        long low = (word & PAIRS) * (100 + (1000000L << 32));
        return low + (word >>> 16 & PAIRS) * (1 + (10000L << 32)) >>> 32;
    }

    /** Reads times such as 2024-01-01 23:59:59.999 or 2024-01-01T23:59:59Z. */
    private long time(long at, int size) {
        if (size < SECONDS) return NO_TIME;
        if (Platform.getByte(null, at + size - 1) == 'Z') size--;
        else if (!utc) return NO_TIME;
        byte middle = Platform.getByte(null, at + DAY);
        if (middle != ' ' && middle != 'T') return NO_TIME;
        int hours = twoDigits(at + 11);
        int minutes = twoDigits(at + 14);
        int seconds = twoDigits(at + 17);
        boolean colons = Platform.getByte(null, at + 13) == ':' && Platform.getByte(null, at + 16) == ':';
        if (!colons || (hours | minutes | seconds) < 0 || hours > 23 || minutes > 59 || seconds > 59) return NO_TIME;
        long fractionUs = fraction(at + SECONDS, size - SECONDS);
        if (fractionUs < 0 || !day(at)) return NO_TIME;
        return lastDayUs + ((hours * 60L + minutes) * 60 + seconds) * 1000000 + fractionUs;
    }

    /** Returns a dot and one to six digits in microseconds, 0 if there is nothing, -1 for others. */
    private static long fraction(long at, int size) {
        if (size == 0) return 0;
        if (size == 1 || size > 7 || Platform.getByte(null, at) != '.') return -1;
        long fraction = 0;
        for (int i = 1; i <= 6; i++) {
            int digit = i < size ? Platform.getByte(null, at + i) - '0' : 0;
            if (digit < 0 || digit > 9) return -1;
            fraction = 10 * fraction + digit;
        }
        return fraction;
    }

    /** Sets `lastDayUs`. Returns false if there is no such day. */
    private boolean day(long at) {
        long first = Platform.getLong(null, at);
        int rest = Platform.getShort(null, at + 8);
        if (first == lastDay && rest == lastDayEnd) return true;
        int century = twoDigits(at);
        int year = twoDigits(at + 2);
        int month = twoDigits(at + 5);
        int day = twoDigits(at + 8);
        boolean dashes = Platform.getByte(null, at + 4) == '-' && Platform.getByte(null, at + 7) == '-';
        if (!dashes || (century | year | month | day) < 0 || century + year == 0) return false;
        try {
            lastDayUs = LocalDate.of(100 * century + year, month, day).toEpochDay() * 86400000000L;
        } catch (DateTimeException error) {
            return false;
        }
        lastDay = first;
        lastDayEnd = rest;
        return true;
    }

    /** Returns -1 if there are other characters. */
    private static int twoDigits(long at) {
        int tens = Platform.getByte(null, at) - '0';
        int ones = Platform.getByte(null, at + 1) - '0';
        return tens < 0 || tens > 9 || ones < 0 || ones > 9 ? -1 : 10 * tens + ones;
    }

    public void close() { StorageUtils.dispose(memory); }
}
