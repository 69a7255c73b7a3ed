package org.apache.spark.unsafe;

/** The rows of one part of a file, up to the end of the bundle. */
final class FiresteelFilePart extends scala.collection.AbstractIterator {
    private final FiresteelFileSplit split;
    private final int number;

    FiresteelFilePart(FiresteelFileSplit split, int number) {
        this.split = split;
        this.number = number;
    }

    public boolean hasNext() { return split.hasNext(number); }
    public Object next() { return split.next(); }
}
