#!/bin/sh
# Runs its arguments, as the entry point of Flink's image does. An init process reaps orphans and forwards signals.
[ $$ -ne 1 ] || exec tini -- "$@"
exec "$@"
