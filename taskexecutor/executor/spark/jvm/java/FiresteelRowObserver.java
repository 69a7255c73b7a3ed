package org.apache.spark.unsafe;

/**
 * What a plan sees of its rows: its methods are called by the generated code, as the condition of a
 * filter that every row passes. See row_observer.py.
 */
public final class FiresteelRowObserver implements java.io.Serializable {
    public static final long NO_TIME = Long.MIN_VALUE;

    private long latest = NO_TIME;
    private long malformed;

    /** `time`: of the row's event, NO_TIME if it has none. */
    public boolean time(long time) {
        if (time > latest) latest = time;
        return true;
    }

    /** `ignored`: an expression that must be evaluated for each row. */
    public boolean malformed(boolean found, boolean ignored) {
        if (found) malformed++;
        return true;
    }

    public long latest() {
        return latest;
    }

    public long malformedRows() {
        return malformed;
    }

    public void reset() {
        latest = NO_TIME;
        malformed = 0;
    }
}
