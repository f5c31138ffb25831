"""What the panel needs from kvctld; defined in core so that both sides share one `FeedLost`."""

from kvctl.core.daemon.feed import Feed, FeedLost

__all__ = ["Feed", "FeedLost"]
