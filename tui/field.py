"""A line of typed text with the keys of a shell; no widget, so dialogs stay exact."""

from dataclasses import dataclass


@dataclass(slots=True)
class Field:
    """Text with a cursor."""

    text: str = ""
    cursor: int = 0
    """Characters before the cursor."""

    def press(self, key: str, character: str | None) -> bool:
        """Take a key; return whether it was one of editing."""
        moves = {
            "left": self.cursor - 1,
            "right": self.cursor + 1,
            "home": 0,
            "end": len(self.text),
        }
        if key in moves:
            self.cursor = max(0, min(len(self.text), moves[key]))
        elif key in ("backspace", "ctrl+h"):
            self._cut(self.cursor - 1, self.cursor)
        elif key == "delete":
            self._cut(self.cursor, self.cursor + 1)
        elif key == "ctrl+u":
            self._cut(0, self.cursor)
        elif key == "ctrl+w":
            before = self.text[: self.cursor].rstrip()
            self._cut(before.rfind(" ") + 1, self.cursor)
        elif character is not None and character.isprintable() and len(character) == 1:
            self.insert(character)
        else:
            return False
        return True

    def insert(self, text: str) -> None:
        """Put text at the cursor; what is pasted loses its line ends."""
        clean = "".join(c for c in text if c.isprintable())
        self.text = self.text[: self.cursor] + clean + self.text[self.cursor :]
        self.cursor += len(clean)

    def replace(self, text: str) -> None:
        """Set the whole text, the cursor at its end."""
        self.text, self.cursor = text, len(text)

    def _cut(self, start: int, end: int) -> None:
        start = max(0, start)
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start
