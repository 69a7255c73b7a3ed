"""The slot's JVM: launching, warm-up and running of tasks."""
