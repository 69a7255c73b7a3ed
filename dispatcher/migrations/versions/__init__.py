"""One module per version of the schema, loaded by alembic."""
