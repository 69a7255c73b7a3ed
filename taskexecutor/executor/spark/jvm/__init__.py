"""The slot's JVM: how it is launched, warmed up and asked to run tasks."""
