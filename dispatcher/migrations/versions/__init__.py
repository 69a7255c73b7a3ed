"""One module per version of the schema. Alembic loads them."""
