package org.apache.spark.unsafe;

/**
 * Observes the rows of a plan. The generated code calls its methods, as the condition of a filter
 * that every row passes. See cached_plans/observations.py.
 */
public final class FiresteelRowObserver implements java.io.Serializable {
    public static final long NO_TIME = Long.MIN_VALUE;

    private long latest = NO_TIME;
    private long malformed;

    /** `time` is the row's event time, NO_TIME if it has none. */
    public boolean time(long time) {
        if (time > latest) latest = time;
        return true;
    }

    /** `ignored` is an expression that must be evaluated for each row. */
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
