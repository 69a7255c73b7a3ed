package org.apache.spark.unsafe;

import java.nio.MappedByteBuffer;
import org.apache.spark.TaskContext;
import org.apache.spark.storage.StorageUtils;
import org.apache.spark.util.TaskCompletionListener;

/** The files of a spool that a task has mapped. Rows may reference them until it ends. */
final class FiresteelMappedFiles implements TaskCompletionListener {
    private final java.util.ArrayList files = new java.util.ArrayList();

    void add(MappedByteBuffer file) { files.add(file); }

    public void onTaskCompletion(TaskContext context) {
        for (int i = 0; i < files.size(); i++) StorageUtils.dispose((MappedByteBuffer) files.get(i));
        files.clear();
    }
}
