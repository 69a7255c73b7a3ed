"""Numbers the visits of two shops."""

from number_rows import NumberRowsSpec

from firesteel import Environment

env = Environment(parallelism=2)
visits = env.from_collection([(shop,) for shop in "aabab"], "shop STRING")
numbered = visits.key_by("shop").operator("Number", NumberRowsSpec(key_columns=("shop",)))
rows = numbered.execute_and_collect().to_pylist()
print(sorted((row["shop"], row["number"]) for row in rows))
