"""Timestamps as Kubernetes writes them (UTC, whole seconds, with a Z), and durations as its tables show them."""

import datetime
import time


def now() -> str:
    """Return the current time as in ``metadata.creationTimestamp``."""
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())


def after(seconds: float) -> str:
    """Return the time that many seconds after now."""
    return at(time.time() + seconds)


def at(timestamp: float) -> str:
    """Return a Unix time as a timestamp."""
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(timestamp))


def age(timestamp: str) -> str:
    """Return the time since the timestamp as tables show it: ``5m10s``; ``<unknown>`` if it is not a timestamp."""
    try:
        then = datetime.datetime.fromisoformat(timestamp)
    except (ValueError, TypeError):
        return '<unknown>'
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    return duration((datetime.datetime.now(datetime.UTC) - then).total_seconds())


def duration(span: float) -> str:
    """Return a duration (seconds) in at most two units; long durations in coarse units."""
    seconds = int(span)
    if seconds < 0:
        return '<invalid>' if seconds < -1 else '0s'
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f'{seconds}s'
    if minutes < 10:
        return _two(minutes, 'm', seconds % 60, 's')
    if hours < 3:
        return f'{minutes}m'
    if hours < 8:
        return _two(hours, 'h', minutes % 60, 'm')
    if days < 2:
        return f'{hours}h'
    if days < 8:
        return _two(days, 'd', hours % 24, 'h')
    if days < 365 * 2:
        return f'{days}d'
    if days < 365 * 8:
        return _two(days // 365, 'y', days % 365, 'd')
    return f'{days // 365}y'


def _two(major: int, unit: str, minor: int, subunit: str) -> str:
    return f'{major}{unit}{minor}{subunit}' if minor else f'{major}{unit}'
