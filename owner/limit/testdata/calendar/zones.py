#!/usr/bin/env python3
"""Writes zones.txt: where periods begin in 50 years, as Python's zoneinfo has it.

It reads the rules that the program has (owner/zone/zoneinfo.zip), so that only the
arithmetic is compared. Run it here after a new release of the rules. One line for each
zone, calendar and decade: how many periods begin in it, and the first 16 digits of the
SHA-256 of their beginnings, in seconds since 1970, a line each.
"""
import calendar, hashlib, tempfile, zipfile, zoneinfo
from datetime import date, datetime, timedelta, timezone

ZONES = """UTC Europe/Berlin Europe/London America/New_York America/Sao_Paulo America/St_Johns America/Havana
Africa/Casablanca Africa/Cairo Asia/Beirut Asia/Kolkata Asia/Tehran Pacific/Apia Pacific/Chatham Australia/Lord_Howe""".split()
CALENDARS = [("day", 0, 0), ("week", 0, 1), ("week", 0, 7), ("month", 0, 1), ("month", 0, 30), ("month", 0, 31),
             ("year", 1, 1), ("year", 2, 29), ("year", 4, 6)]
FIRST, LAST = 1995, 2045


def clamped(year, month, day):
    return date(year, month, min(day, calendar.monthrange(year, month)[1]))


def dates(unit, month, day):
    """The dates on which periods begin."""
    if unit == "year":
        for y in range(FIRST - 1, LAST + 2):
            yield clamped(y, month, day)
    elif unit == "month":
        for y in range(FIRST - 1, LAST + 2):
            for m in range(1, 13):
                yield clamped(y, m, day)
    else:
        d = date(FIRST - 1, 12, 1)
        while d.year <= LAST:
            if unit == "day" or d.isoweekday() == day:
                yield d
            d += timedelta(days=1)


def begins(d, tz):
    """The first second since 1970 at which the clocks of tz show the date d, or a later one."""
    midnight = datetime(d.year, d.month, d.day)

    def reached(t):
        return datetime.fromtimestamp(t, tz).replace(tzinfo=None) >= midnight

    either = [int(midnight.replace(tzinfo=tz, fold=f).timestamp()) for f in (0, 1)]
    for t in sorted(either):
        if datetime.fromtimestamp(t, tz).replace(tzinfo=None) == midnight:
            return t
    low, high = min(either) - 30 * 3600, max(either) + 30 * 3600  # clocks jump over it
    while low + 1 < high:
        mid = (low + high) // 2
        low, high = (low, mid) if reached(mid) else (mid, high)
    return high


def main():
    with tempfile.TemporaryDirectory() as tmp:
        zipfile.ZipFile("../../../zone/zoneinfo.zip").extractall(tmp)
        zoneinfo.reset_tzpath([tmp])
        with open("zones.txt", "w") as out:
            for name in ZONES:
                tz = zoneinfo.ZoneInfo(name)
                for unit, month, day in CALENDARS:
                    all_ = []
                    for d in dates(unit, month, day):
                        t = begins(d, tz)
                        if not all_ or t > all_[-1]:
                            all_.append(t)
                    for decade in range(FIRST, LAST, 10):
                        low, high = (int(datetime(y, 1, 1, tzinfo=timezone.utc).timestamp()) for y in (decade, decade + 10))
                        some = [t for t in all_ if low <= t < high]
                        digest = hashlib.sha256("".join(f"{t}\n" for t in some).encode()).hexdigest()[:16]
                        print(name, unit, month, day, decade, len(some), digest, file=out)


main()
