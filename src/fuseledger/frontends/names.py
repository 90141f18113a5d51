"""Names that a report may show."""


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8: JSON and file names may hold halves of characters."""
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)
