"""The API key of a server: where it is kept is remembered, the key itself never is."""

from collections.abc import Mapping
from pathlib import Path

from kvctl.core.controller.state import ServerRecord
from kvctl.core.domain.presets.launch_plan import expand
from kvctl.core.domain.presets.preset import Preset, canonical


def note_key(record: ServerRecord, preset: Preset, environment: Mapping[str, str]) -> None:
    """Remember the variable or the file that holds the key of a preset's server."""
    secret = next((s for s in preset.secrets if canonical(s.name) == "api-key"), None)
    if secret is None:
        return
    record.api_key_env = secret.env
    if secret.file is not None:
        path = expand(secret.file, environment, "[secrets] api-key", secret.origin)
        record.api_key_file = str(Path(path).expanduser())


def read_key(record: ServerRecord, environment: Mapping[str, str]) -> str | None:
    """Return the key of a server, None where it needs none or the key is gone."""
    if record.api_key_env is not None:
        return environment.get(record.api_key_env)
    if record.api_key_file is None:
        return None
    try:
        return Path(record.api_key_file).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None  # the server's own refusal tells it
