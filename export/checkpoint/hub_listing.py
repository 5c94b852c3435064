"""What a repository on the Hugging Face hub lists, and which of its files make a model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.hub import extra_missing

_BESIDE = ("*.json", "*.jinja")
_WEIGHTS = (
    ("model*.safetensors",),
    ("onnx/model.onnx", "onnx/model.onnx_data*"),
    ("model.onnx", "model.onnx_data*", "model.onnx.data*"),
)
_PATIENCE_SECONDS = 10.0


class Unreachable(SpecdecError):
    """No connection to the hub, or told to stay offline."""


@dataclass(frozen=True)
class HubId:
    """`org/name[/FILE.gguf][@revision]`."""

    repo: str
    file: str | None = None
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> "HubId | None":
        """The id that `text` is, or None if it cannot be one."""
        part = r"[A-Za-z0-9][\w.-]*"
        match = re.fullmatch(
            rf"({part}/{part})(?:/((?:{part}/)*{part}\.gguf))?(?:@({part}(?:/{part})*))?", text
        )
        if match is None or ".." in text:
            return None
        return cls(match[1], match[2], match[3] or "main")

    def __str__(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"


def listing(id: HubId) -> Any:
    """The repository at that revision, its `siblings` with their sizes; Unreachable, or SpecdecError."""
    hub = library()
    missing = hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError
    try:
        return hub.HfApi().model_info(
            id.repo, revision=id.revision, files_metadata=True, timeout=_PATIENCE_SECONDS
        )
    except hub.errors.GatedRepoError:
        raise gated(id) from None
    except missing as error:
        what = "revision" if isinstance(error, hub.errors.RevisionNotFoundError) else "model"
        why = f"it is no file or folder here, and the hub knows no such {what} (private ones need a login)"
        raise SpecdecError(
            f"there is no {id}", why, "check its name, or log in with `hf auth login`"
        ) from None
    except Exception as error:  # the library passes on whatever its HTTP client or proxy raised
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        fix = "connect, or give a folder or file that is on this machine"
        raise Unreachable(f"cannot reach the hub for {id}", why, fix) from error


def wanted(id: HubId, siblings: Sequence[Any]) -> list[Any]:
    """The files to fetch: one GGUF, or configuration and weights in the best form there is."""
    if id.file:
        return [_named(id, siblings)]
    for patterns in _WEIGHTS:
        weights = [file for file in siblings if _matches(file, patterns)]
        if weights:
            beside = [file for file in siblings if _matches(file, _BESIDE)]
            return [*beside, *weights]
    ggufs = [file.rfilename for file in siblings if file.rfilename.endswith(".gguf")]
    if ggufs:
        why = f"it has {len(ggufs)} GGUF files: {', '.join(ggufs[:4])}{', ...' if len(ggufs) > 4 else ''}"
        raise SpecdecError(f"{id} can be several models", why, f"name one: {id.repo}/{ggufs[0]}")
    raise SpecdecError(
        f"{id} holds no weights that can be read",
        "it has no safetensors, ONNX or GGUF file",
        "choose a model that has one of them",
    )


def _matches(file: Any, patterns: Sequence[str]) -> bool:
    name = file.rfilename
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _named(id: HubId, siblings: Sequence[Any]) -> Any:
    found = [file for file in siblings if file.rfilename == id.file]
    if not found:
        others = ", ".join(file.rfilename for file in siblings if file.rfilename.endswith(".gguf"))
        raise SpecdecError(f"{id} has no {id.file}", f"its GGUF files: {others or 'none'}")
    return found[0]


def gated(id: HubId) -> SpecdecError:
    """The error for a model whose owner wants to be asked."""
    return SpecdecError(
        f"{id} is gated",
        "its owner wants its terms accepted first",
        f"accept them on the model's page ({id.repo}), then log in with `hf auth login`",
    )


def library() -> Any:
    """huggingface_hub; SpecdecError without the extra."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise extra_missing() from None
    return huggingface_hub
