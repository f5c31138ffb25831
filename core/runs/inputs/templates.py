"""Chat templates and tokenizers: messages and text to token ids, as the model's folder says.

Needs the extra `templates` (tokenizers, jinja2). Templates run in jinja2's immutable sandbox:
they come with the model and are not trusted. Files read: tokenizer.json, tokenizer_config.json,
chat_template.jinja, config.json.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvctl.core.domain.errors import RunFileError
from kvctl.core.runs.inputs.rows import RowRejected

NEEDS_TEMPLATES = "pip install 'kvctl[templates]'"


class _Encoding(Protocol):
    ids: list[int]


class _Tokenizer(Protocol):
    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> _Encoding: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_to_id(self, token: str) -> int | None: ...


class _Template(Protocol):
    def render(self, **variables: object) -> str: ...


class Renderer:
    """One model's tokenizer and chat template."""

    def __init__(
        self,
        folder: Path,
        tokenizer: _Tokenizer,
        template: _Template | None,
        facts: Mapping[str, Any],
    ) -> None:
        """Use `load_renderer`."""
        self.folder = str(folder)
        self.sha256 = ""
        """Of tokenizer and chat template: equal ones make equal token ids."""
        self._tokenizer = tokenizer
        self._template = template
        self._special = {
            name: _token_text(facts.get(name)) for name in ("bos_token", "eos_token", "unk_token")
        }
        bos = self._special["bos_token"]
        self._bos_id = tokenizer.token_to_id(bos) if bos else None

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._template is not None

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[int, ...]:
        """Return the token ids of a conversation up to the place of the answer.

        Raises:
            RowRejected: The template refuses the messages.
        """
        if self._template is None:
            raise RowRejected(f"{self.folder} has no chat template")
        from jinja2 import TemplateError

        try:
            text = self._template.render(
                messages=[dict(m) for m in messages],
                tools=None if tools is None else list(tools),
                add_generation_prompt=True,
                **self._special,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise RowRejected(f"the chat template refuses it: {error}") from None
        return self._without_double_bos(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a plain prompt, as the server itself would make them."""
        return self._without_double_bos(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of output ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def spell(self, ids: Sequence[int]) -> str:
        """Return the text of ids with their special tokens, as a template would write it."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _without_double_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        if self._bos_id is not None and list(ids[:2]) == [self._bos_id, self._bos_id]:
            return tuple(ids[1:])
        return tuple(ids)


def _token_text(token: object) -> str:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def templates_installed() -> bool:
    """Return whether the extra `templates` is there."""
    try:
        import jinja2
        import tokenizers
    except ImportError:
        return False
    return bool(jinja2 and tokenizers)


def load_renderer(folder: str | Path) -> Renderer | None:
    """Return the renderer of a model's folder.

    None where it has no tokenizer.json, or the extra `templates` is not installed.

    Raises:
        RunFileError: A file in the folder is broken.
    """
    place = Path(folder)
    if not (place / "tokenizer.json").is_file() or not templates_installed():
        return None
    from tokenizers import Tokenizer

    facts = _read_json(place / "tokenizer_config.json")
    try:
        tokenizer: Any = Tokenizer.from_file(str(place / "tokenizer.json"))
    except Exception as error:  # the binding raises bare Exception
        raise RunFileError(f"{place / 'tokenizer.json'}: cannot be read: {error}") from error
    template = _template_text(place, facts)
    renderer = Renderer(place, tokenizer, _compile(template, place), facts)
    digest = hashlib.sha256((place / "tokenizer.json").read_bytes())
    digest.update((template or "").encode())
    renderer.sha256 = digest.hexdigest()[:16]
    return renderer


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFileError(f"{file}: cannot be read: {error}") from error
    return found if isinstance(found, Mapping) else {}


def _template_text(folder: Path, facts: Mapping[str, Any]) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    found = facts.get("chat_template")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _compile(text: str | None, folder: Path) -> _Template | None:
    if text is None:
        return None
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = _to_json
    try:
        template: _Template = environment.from_string(text)
    except TemplateError as error:
        raise RunFileError(f"{folder}: its chat template cannot be read: {error}") from error
    return template


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def vocabulary_of(folder: str | Path) -> int | None:
    """Return how many token ids the model in a folder has; None where it does not say."""
    facts = _read_json(Path(folder) / "config.json")
    for place in (facts, facts.get("text_config")):
        size = place.get("vocab_size") if isinstance(place, Mapping) else None
        if isinstance(size, int) and size > 0:
            return size
    return None
