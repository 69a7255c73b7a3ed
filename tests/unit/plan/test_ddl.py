"""DDL that is parsed without Spark; anything unusual is left to Spark's parser."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from firesteel.plan.ddl import parse_ddl


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a INT", "struct<a:int>"),
        ("a: int, b: string", "struct<a:int,b:string>"),
        ("`a b` BIGINT NOT NULL, c double COMMENT 'it''s'", None),
        ("`a ``b` BIGINT NOT NULL, c double COMMENT 'of it'", "struct<a `b:bigint,c:double>"),
        (
            "m MAP<STRING, ARRAY<INT>>, s STRUCT<x: DOUBLE, y DATE>",
            "struct<m:map<string,array<int>>,s:struct<x:double,y:date>>",
        ),
        (
            "d DECIMAL, e decimal(5), f NUMERIC(10, 2)",
            "struct<d:decimal(10,0),e:decimal(5,0),f:decimal(10,2)>",
        ),
        ("t TIMESTAMP, n TIMESTAMP_NTZ, b BINARY", "struct<t:timestamp,n:timestamp_ntz,b:binary>"),
        ("y TINYINT, o BOOLEAN, r REAL", "struct<y:tinyint,o:boolean,r:float>"),
        ("int", None),
        ("", None),
        ("a", None),
        ("a INT,", None),
        ("a INTEGRAL", None),
        ("a INT b STRING", None),
        ("a STRING COLLATE UTF8_LCASE", None),
        ("a VARCHAR(5)", None),
        ("a INTERVAL DAY", None),
        ("a DECIMAL(50, 2)", None),
        ("a ARRAY<INT", None),
        ("a-b INT", None),
    ],
)
def test_schemas(text: str, shown: str | None) -> None:
    schema = parse_ddl(text)
    assert (schema.simpleString() if schema is not None else None) == shown


def test_nulls_and_comments() -> None:
    schema = parse_ddl("a INT NOT NULL COMMENT 'the first', b INT")
    assert schema is not None
    assert [field.nullable for field in schema.fields] == [False, True]
    assert schema["a"].metadata == {"comment": "the first"}
    assert StructType.fromJson(schema.jsonValue()) == schema
