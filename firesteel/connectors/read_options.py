"""The options of Spark's file formats, for checks: Spark silently ignores a misspelt option."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from firesteel.errors import InvalidProgram

FILES = (
    *("basePath", "ignoreCorruptFiles", "ignoreMissingFiles", "modifiedAfter", "modifiedBefore"),
    *("pathGlobFilter", "recursiveFileLookup"),
)
_DATES = ("dateFormat", "locale", "timeFormat", "timestampFormat", "timestampNTZFormat", "timeZone")
_ROWS = (
    *("charset", "columnNameOfCorruptRecord", "compression", "enableDateTimeParsingFallback"),
    *("encoding", "mode", "multiLine", "samplingRatio", "singleVariantColumn", *_DATES),
)
# By format: the options that Spark defines (a test compares), and others that it reads.
OPTIONS: dict[str, tuple[str, ...]] = {
    "csv": (
        *("charToEscapeQuoteEscaping", "codec", "columnPruning", "comment", "delimiter"),
        *("emptyValue", "enforceSchema", "escape", "escapeQuotes", "extension", "header"),
        *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "inferSchema", "inputBufferSize"),
        *("lineSep", "maxCharsPerColumn", "maxColumns", "nanValue", "negativeInf", "nullValue"),
        *("positiveInf", "preferDate", "quote", "quoteAll", "sep", "unescapedQuoteHandling"),
        *_ROWS,
    ),
    "json": (
        *("allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers"),
        *("allowNumericLeadingZeros", "allowSingleQuotes", "allowUnquotedControlChars"),
        *("allowUnquotedFieldNames", "dropFieldIfAllNull", "explodeEmbeddedArray"),
        *("ignoreNullFields", "inferTimestamp", "lineSep", "maxNestingDepth", "maxNumLen"),
        *("maxStringLen", "prefersDecimal", "pretty", "primitivesAsString", "sortKeys"),
        *("useUnsafeRow", "writeNonAsciiCharacterAsCodePoint", *_ROWS),
    ),
    "xml": (
        *("arrayElementName", "attributePrefix", "declaration", "excludeAttribute"),
        *("ignoreNamespace", "ignoreSurroundingSpaces", "indent", "inferSchema", "nullValue"),
        *("preferDate", "prefersDecimal", "rootTag", "rowTag", "rowValidationXSDPath"),
        *("useLegacyXMLParser", "validateName", "valueTag", "wildcardColName", *_ROWS),
    ),
    "text": ("compression", "encoding", "lineSep", "wholetext"),
    "parquet": ("compression", "datetimeRebaseMode", "int96RebaseMode", "mergeSchema"),
    "orc": ("compression", "mergeSchema"),
    "binaryfile": (),
}


def check_read_options(format: str, options: Iterable[str]) -> None:
    """Raises InvalidProgram for an option that the format does not have."""
    for option, close in unknown_options(format, options, "schema", "watch", "malformed").items():
        hint = f"did you mean {close}?" if close else "omit it"
        raise InvalidProgram(f"FileSource: format {format} has no option {option!r}; {hint}")


def unknown_options(format: str, options: Iterable[str], *others: str) -> dict[str, str]:
    """Returns the options that the format does not have, each with a similar one, or "" if there is
    none. Names with a dot (`parquet.compression`) belong to the file system or the format's
    library. `others` are names that are only suggested.
    """
    known = OPTIONS.get(format.lower())
    if known is None:
        return {}
    names = {name.lower(): name for name in (*known, *FILES)}
    similar = {**names, **{name.lower(): name for name in others}}
    unknown = (each for each in options if each.lower() not in names and "." not in each)
    return {
        option: similar[close[0]]
        if (close := difflib.get_close_matches(option.lower(), similar, n=1))
        else ""
        for option in unknown
    }
