"""Nexmark's events: the public generator's proportions, columns and hot keys.

Of 50 events, one is a new person, three are new auctions and 46 are bids; by default, a second of
event time has 10,000 events. Half of the bids are for the newest hundredth auction, three in four
are made by the newest hundredth person, and half arrive through one of four channels.

Every value is drawn by hashing the seed, the number of its event (or its channel) and the column,
like Spark's `xxhash64`. So rows do not depend on files or order, and `bids_on_spark` generates the
same rows in Spark as `bids` does here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

FILE_BIDS = 500_000
EPOCH_EVENTS, AUCTIONS, BIDS = 50, 3, 46  # of 50 events; the first one is a person
FIRST_MS = 1_709_250_900_000  # 2024-02-29 23:55 UTC: the day ends after five minutes

FIRST_ID = 1_000  # of persons and of auctions
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_EVERY = 100  # of 100 auctions, or persons, the first one is hot
HOT_AUCTIONS, HOT_BIDDERS, HOT_SELLERS = 2, 4, 4  # of N, N - 1 go to the hot one
IN_FLIGHT_AUCTIONS, ACTIVE_PEOPLE, LEAD = 100, 1_000, 10
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle",
    "Kent", "Cheyenne",
)  # fmt: skip
FIRST_NAMES = (
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
)  # fmt: skip
LAST_NAMES = (
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
)  # fmt: skip

# DDL that both Spark and Flink accept.
BID_COLUMNS = {
    "auction": "BIGINT",
    "bidder": "BIGINT",
    "price": "BIGINT",
    "channel": "STRING",
    "url": "STRING",
    "dateTime": "TIMESTAMP",
    "extra": "STRING",
}
AUCTION_COLUMNS = {
    "id": "BIGINT",
    "itemName": "STRING",
    "description": "STRING",
    "initialBid": "BIGINT",
    "reserve": "BIGINT",
    "dateTime": "TIMESTAMP",
    "expires": "TIMESTAMP",
    "seller": "BIGINT",
    "category": "BIGINT",
    "extra": "STRING",
}
PERSON_COLUMNS = {
    "id": "BIGINT",
    "name": "STRING",
    "emailAddress": "STRING",
    "creditCard": "STRING",
    "city": "STRING",
    "state": "STRING",
    "dateTime": "TIMESTAMP",
    "extra": "STRING",
}

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

# The drawn values, which are also the columns of the hash.
_AUCTION_HOT, _AUCTION, _BIDDER_HOT, _BIDDER, _PRICE, _CHANNEL_HOT, _CHANNEL, _EXTRA = range(8)
_EXTRA_WORDS = 100  # and the following ones
_URL, _URL_ID, _URL_HAS_ID = 200, 201, 202
# The mean size of a row is 100 bytes: 32 for its numbers, and 54 to 81 letters.
_EXTRA_FROM, _EXTRA_TO = 54, 82
_WORD = 16  # letters of a hash


@dataclass(frozen=True)
class Nexmark:
    seed: int = 1
    events_per_s: int = 10_000
    first_ms: int = FIRST_MS  # event time of the first event

    def bids(self, start: int, end: int) -> pa.Table:
        """Returns bids number `start` up to, and excluding, `end`, in the order of event time."""
        number = np.arange(start, end, dtype=np.int64)
        epoch = number // BIDS
        event = epoch * EPOCH_EVENTS + 1 + AUCTIONS + number % BIDS

        def draw(column: int, below: int) -> Ints:
            return _below(_hash(self.seed, event, column), below)

        last_auction = epoch * AUCTIONS + AUCTIONS - 1
        oldest = np.maximum(last_auction - IN_FLIGHT_AUCTIONS, 0)
        auction = np.where(
            draw(_AUCTION_HOT, HOT_AUCTIONS) > 0,
            last_auction // HOT_EVERY * HOT_EVERY,
            oldest + _below(_hash(self.seed, event, _AUCTION), last_auction - oldest + 1 + LEAD),
        )
        people = epoch + 1
        active = np.minimum(people, ACTIVE_PEOPLE)
        bidder = np.where(
            draw(_BIDDER_HOT, HOT_BIDDERS) > 0,
            epoch // HOT_EVERY * HOT_EVERY + 1,
            people - active + _below(_hash(self.seed, event, _BIDDER), active + LEAD),
        )
        channel = np.where(
            draw(_CHANNEL_HOT, 2) > 0,
            CHANNELS + draw(_CHANNEL, len(HOT_CHANNELS)),
            draw(_CHANNEL, CHANNELS),
        )
        length = _EXTRA_FROM + draw(_EXTRA, _EXTRA_TO - _EXTRA_FROM)
        return pa.table(
            {
                "auction": auction + FIRST_ID,
                "bidder": bidder + FIRST_ID,
                "price": _prices(_hash(self.seed, event, _PRICE)),
                "channel": _channels().take(pa.array(channel)),
                "url": _urls(self.seed).take(pa.array(channel)),
                "dateTime": _timestamps(self._times_ms(event)),
                "extra": _letters(
                    [_hash(self.seed, event, _EXTRA_WORDS + n) for n in range(6)], length
                ),
            }
        )

    def auctions(self, start: int, end: int) -> pa.Table:
        number = np.arange(start, end, dtype=np.int64)
        epoch = number // AUCTIONS
        event = epoch * EPOCH_EVENTS + 1 + number % AUCTIONS

        def draw(column: int, below: int) -> Ints:
            return _below(_hash(self.seed, event, column), below)

        def words(column: int, length: int) -> pa.Array:
            count = -(-length // _WORD)
            hashes = [_hash(self.seed, event, column + n) for n in range(count)]
            return _letters(hashes, np.full(len(event), length))

        people = epoch + 1
        active = np.minimum(people, ACTIVE_PEOPLE)
        seller = np.where(
            draw(0, HOT_SELLERS) > 0,
            epoch // HOT_EVERY * HOT_EVERY,
            people - active + _below(_hash(self.seed, event, 1), active + LEAD),
        )
        first_bid = _prices(_hash(self.seed, event, 2))
        in_flight_ms = IN_FLIGHT_AUCTIONS * EPOCH_EVENTS * 1000 // AUCTIONS // self.events_per_s
        return pa.table(
            {
                "id": number + FIRST_ID,
                "itemName": words(100, 20),
                "description": words(110, 100),
                "initialBid": first_bid,
                "reserve": first_bid + _prices(_hash(self.seed, event, 3)),
                "dateTime": _timestamps(self._times_ms(event)),
                "expires": _timestamps(self._times_ms(event) + 1 + draw(4, 2 * in_flight_ms)),
                "seller": seller + FIRST_ID,
                "category": FIRST_CATEGORY + draw(5, CATEGORIES),
                "extra": words(120, 300),
            }
        )

    def persons(self, start: int, end: int) -> pa.Table:
        number = np.arange(start, end, dtype=np.int64)
        event = number * EPOCH_EVENTS

        def pick(column: int, of: tuple[str, ...]) -> list[str]:
            return [of[index] for index in _below(_hash(self.seed, event, column), len(of))]

        words = _letters(
            [_hash(self.seed, event, 100 + n) for n in range(7)], np.full(len(event), 112)
        )
        names = zip(pick(0, FIRST_NAMES), pick(1, LAST_NAMES), strict=True)
        cards = (f"{card:016d}" for card in _below(_hash(self.seed, event, 2), 10**16))
        texts = words.to_pylist()
        return pa.table(
            {
                "id": number + FIRST_ID,
                "name": [" ".join(name) for name in names],
                "emailAddress": [f"{text[:7]}@{text[7:12]}.com" for text in texts],
                "creditCard": [f"{c[:4]} {c[4:8]} {c[8:12]} {c[12:]}" for c in cards],
                "city": pick(3, CITIES),
                "state": pick(4, STATES),
                "dateTime": _timestamps(self._times_ms(event)),
                "extra": [text[12:] for text in texts],
            }
        )

    def bids_on_spark(self, numbers: Any) -> Any:
        """Returns the same rows as `bids`, generated in Spark from a DataFrame with the bids'
        numbers in the column `value`.
        """

        def draw(column: int, below: object, of: str = "event") -> str:
            return f"pmod(xxhash64({self.seed}L, {of}, {column}L), {below}L)"

        def drawn(column: int, below: str) -> str:
            return f"pmod(xxhash64({self.seed}L, event, {column}L), {below})"

        def letters(column: int, of: str = "event") -> str:
            digits = f"lpad(hex(xxhash64({self.seed}L, {of}, {column}L)), {_WORD}, '0')"
            return f"translate({digits}, '0123456789ABCDEF', 'abcdefghijklmnop')"

        hot = "array(" + ", ".join(f"'{name}'" for name in HOT_CHANNELS) + ")"
        word = letters(_URL, "channel")
        parts = ", '/', ".join(f"substr({word}, {at}, 5)" for at in (1, 6, 11))
        url_id = draw(_URL_ID, 2**31, "channel")
        has_id = f"channel < {CHANNELS}L AND {draw(_URL_HAS_ID, 10, 'channel')} > 0"
        price = f"xxhash64({self.seed}L, event, {_PRICE}L)"
        extra = ", ".join(letters(_EXTRA_WORDS + n) for n in range(6))
        return (
            numbers.selectExpr(f"value div {BIDS} AS epoch", "value")
            .selectExpr(
                "epoch", f"epoch * {EPOCH_EVENTS} + {1 + AUCTIONS} + value % {BIDS} AS event"
            )
            .selectExpr(
                "*",
                f"epoch * {AUCTIONS} + {AUCTIONS - 1} AS last_auction",
                f"epoch - least(epoch + 1, {ACTIVE_PEOPLE}) + 1 AS oldest_person",
                f"if({draw(_CHANNEL_HOT, 2)} > 0, {CHANNELS} + {draw(_CHANNEL, len(HOT_CHANNELS))},"
                f" {draw(_CHANNEL, CHANNELS)}) AS channel",
            )
            .selectExpr("*", f"greatest(last_auction - {IN_FLIGHT_AUCTIONS}, 0L) AS oldest_auction")
            .selectExpr(
                f"if({draw(_AUCTION_HOT, HOT_AUCTIONS)} > 0,"
                f" last_auction div {HOT_EVERY} * {HOT_EVERY}, oldest_auction +"
                f" {drawn(_AUCTION, f'last_auction - oldest_auction + {1 + LEAD}')})"
                f" + {FIRST_ID} AS auction",
                f"if({draw(_BIDDER_HOT, HOT_BIDDERS)} > 0, epoch div {HOT_EVERY} * {HOT_EVERY} + 1,"
                f" oldest_person + {drawn(_BIDDER, f'least(epoch + 1, {ACTIVE_PEOPLE}) + {LEAD}')})"
                f" + {FIRST_ID} AS bidder",
                f"cast(round(pow(10D, shiftrightunsigned({price}, 11) / {2**53}D * 6) * 100)"
                " AS bigint) AS price",
                f"if(channel < {CHANNELS}, concat('channel-', channel),"
                f" {hot}[cast(greatest(channel - {CHANNELS}, 0L) AS int)]) AS channel",
                f"concat('https://www.nexmark.com/', {parts}, '/item.htm?query=1',"
                f" if({has_id}, concat('&channel_id=', {url_id}), '')) AS url",
                f"timestamp_millis({self.first_ms}L + event * 1000 div {self.events_per_s})"
                " AS dateTime",
                f"left(concat({extra}),"
                f" cast({_EXTRA_FROM} + {draw(_EXTRA, _EXTRA_TO - _EXTRA_FROM)} AS int)) AS extra",
            )
        )

    def write(self, folder: Path, rows: int, *, file_bids: int = FILE_BIDS) -> None:
        """Writes `rows` bids, with the auctions and persons before the last one, as
        `folder`/parquet/bid/*.parquet, `folder`/csv/bid/*.csv and so on.
        """
        epochs = -(-rows // BIDS)
        for name, table, count in (
            ("bid", self.bids, rows),
            ("auction", self.auctions, epochs * AUCTIONS),
            ("person", self.persons, epochs),
        ):
            parquet, csv = (folder / kind / name for kind in ("parquet", "csv"))
            for path in (parquet, csv):
                path.mkdir(parents=True, exist_ok=True)
            for number, start in enumerate(range(0, count, file_bids)):
                part = table(start, min(start + file_bids, count))
                pq.write_table(part, parquet / f"{number:05d}.parquet")
                # Flink reads no header, and only times without a zone.
                pyarrow.csv.write_csv(
                    pa.table({field.name: _local(part[field.name]) for field in part.schema}),
                    csv / f"{number:05d}.csv",
                    pyarrow.csv.WriteOptions(include_header=False, quoting_style="none"),
                )

    def _times_ms(self, event: Ints) -> Ints:
        return self.first_ms + event * 1000 // self.events_per_s


def _local(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("ms")) if pa.types.is_timestamp(column.type) else column


# -- drawing

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def _hash(seed: int, event: Ints, column: int) -> Hashes:
    """Returns Spark's xxhash64(seed, event, column)."""
    with np.errstate(over="ignore"):
        first = _hash_of(np.array([seed], np.uint64), np.array([42], np.uint64))
        return _hash_of(np.uint64(column), _hash_of(event.view(np.uint64), first))


def _hash_of(values: Any, seeds: Hashes) -> Hashes:
    mixed = _rotated(values * _P2, 31) * _P1
    found: Hashes = (seeds + _P5 + np.uint64(8)) ^ mixed
    found = _rotated(found, 27) * _P1 + _P4
    found = (found ^ (found >> np.uint64(33))) * _P2
    found = (found ^ (found >> np.uint64(29))) * _P3
    return found ^ (found >> np.uint64(32))


def _rotated(values: Any, by: int) -> Any:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _below(hashes: Hashes, below: int | Ints) -> Ints:
    found: Ints = np.mod(hashes.view(np.int64), below)
    return found


def _prices(hashes: Hashes) -> Ints:
    """Returns prices from 100 to 100 million; each power of ten is equally likely."""
    found = np.rint(np.power(10.0, (hashes >> np.uint64(11)) / float(2**53) * 6) * 100)
    return np.asarray(found, dtype=np.int64)


def _timestamps(times_ms: Ints) -> pa.Array:
    return pa.array(times_ms * 1000).view(pa.timestamp("us", "UTC"))


def _letters(words: list[Hashes], lengths: Ints) -> pa.Array:
    """Returns strings of letters from a to p: the hexadecimal digits of the words, cut to their
    lengths.
    """
    digits = np.stack(words, axis=1).astype(">u8").view(np.uint8)
    letters = np.empty((len(digits), 2 * digits.shape[1]), np.uint8)
    letters[:, 0::2] = digits >> 4
    letters[:, 1::2] = digits & 15
    letters += ord("a")
    used = letters[np.arange(letters.shape[1]) < lengths[:, np.newaxis]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(used))


def _channels() -> pa.Array:
    return pa.array([*(f"channel-{number}" for number in range(CHANNELS)), *HOT_CHANNELS])


def _urls(seed: int) -> pa.Array:
    def texts() -> Iterator[str]:
        for at, word in enumerate(words):
            suffix = f"&channel_id={ids[at]}" if at < CHANNELS and has_id[at] > 0 else ""
            parts = f"{word[:5]}/{word[5:10]}/{word[10:15]}"
            yield f"https://www.nexmark.com/{parts}/item.htm?query=1{suffix}"

    channel = np.arange(CHANNELS + len(HOT_CHANNELS), dtype=np.int64)
    words = _letters([_hash(seed, channel, _URL)], np.full(len(channel), _WORD)).to_pylist()
    ids = _below(_hash(seed, channel, _URL_ID), 2**31)
    has_id = _below(_hash(seed, channel, _URL_HAS_ID), 10)
    return pa.array(texts())


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes Nexmark's events as Parquet and CSV.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bids", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=Nexmark.seed)
    arguments = parser.parse_args()
    Nexmark(seed=arguments.seed).write(arguments.folder, arguments.bids)


if __name__ == "__main__":
    main()
