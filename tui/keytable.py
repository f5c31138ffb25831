"""Prints the key table of the README from the registry: `python -m kvctl.tui.keytable`."""

from kvctl.tui.actions import ACTIONS, DIALOG_KEYS


def markdown() -> str:
    """Return the table of keys in Markdown."""
    rows = ["| key | what it does | where | danger |", "|---|---|---|---|"]
    for action in ACTIONS:
        keys = f"`{_all_keys(action.shown, action.keys)}`" if action.keys else "`:` only"
        rows.append(f"| {keys} | {action.help} | {action.where} | {action.danger.value} |")
    for shown, name, text in DIALOG_KEYS:
        rows.append(f"| `{shown}` | {name}: {text} | dialogs | – |")
    return "\n".join(rows)


def _all_keys(shown: str, keys: tuple[str, ...]) -> str:
    """Return the keys as shown, with the other ways to press them."""
    extra = [key for key in keys if key.startswith(("ctrl+", "f")) and len(key) > 1]
    others = [key for key in extra if key.lower() not in shown.lower()]
    return " ".join([shown, *(key.upper() if key[0] == "f" else key for key in others)])


if __name__ == "__main__":
    print(markdown())
