"""Models of the Hugging Face hub: `hf:OWNER/REPO[@REVISION][:QUANTISATION]`.

Owns which files of a repository a quantisation is, and what the hub says no to. A token is taken where huggingface-hub
looks for one: HF_TOKEN first. HF_ENDPOINT names another hub. Refuses to know transfers.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import NamedTuple

import httpx2
from huggingface_hub import HfApi, errors, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.hf_api import RepoSibling

from app.catalogue import filenames, web
from app.catalogue.remote import Remote
from app.engine import split
from app.errors import SettingsError, SourceError

DEFAULT = "Q4_K_M"
"""The quantisation of a repository of several, where none is named."""
_SOURCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<quantisation>[^:]+))?")
_NO_MODELS = ("mmproj", "imatrix")
"""What the names of GGUF files begin with that belong to a model, and are none."""


class Wanted(NamedTuple):
    """What a source asks for."""

    repo: str
    revision: str | None
    quantisation: str | None


def find(source: str) -> list[Remote]:
    """The files of a model, first the one that is served. source: as above, without hf:. Raises StartError."""
    wanted = _parsed(source)
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    with _refusals(wanted):
        info = HfApi(endpoint).model_info(wanted.repo, revision=wanted.revision, files_metadata=True)
        files = chosen(wanted, [file for file in info.siblings or [] if file.rfilename.endswith(".gguf")])
        urls = [hf_hub_url(wanted.repo, file.rfilename, revision=info.sha, endpoint=endpoint) for file in files]
        # Of a gated repository everybody may see the list; the answer to this is who may have the files.
        get_hf_file_metadata(urls[0], token=get_token(), endpoint=endpoint)
    return [_remote(file, url) for file, url in zip(files, urls, strict=True)]


def _parsed(source: str) -> Wanted:
    found = _SOURCE.fullmatch(source)
    if not found:
        raise SettingsError(f"hf:{source}: a source of the hub is hf:OWNER/REPO or hf:OWNER/REPO:QUANTISATION.")
    return Wanted(**found.groupdict())


def _remote(file: RepoSibling, url: str) -> Remote:
    token = get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    sha256 = file.lfs.sha256 if file.lfs else None
    size = file.size
    return Remote(
        file=PurePosixPath(file.rfilename).name,
        size=size,
        sha256=sha256,
        version=sha256 or url,  # the URL names a commit
        resumes=size is not None,
        read=lambda start, scratch: web.read(url, start, size, headers=headers),
    )


def chosen(wanted: Wanted, files: Sequence[RepoSibling]) -> list[RepoSibling]:
    """Those files of a repository that are the wanted model: one, or all parts of one. Raises SourceError."""
    models = {file.rfilename: file for file in files if not _name(file).startswith(_NO_MODELS)}
    firsts = [path for path in models if not filenames.is_later_part(_name(models[path]))]
    fitting = [path for path in firsts if _fits(path, wanted.quantisation or DEFAULT)]
    if wanted.quantisation is None and len(firsts) == 1:
        fitting = firsts
    if len(fitting) != 1:
        raise SourceError(_none_or_many(wanted, fitting, firsts))
    first = PurePosixPath(fitting[0])
    parts = [str(first.with_name(name)) for name in split.parts_of(first.name)]
    if missing := [path for path in parts if path not in models]:
        raise SourceError(f"hf:{wanted.repo}: parts of the model are missing there: {', '.join(missing)}.")
    return [models[path] for path in parts]


def _name(file: RepoSibling) -> str:
    return PurePosixPath(file.rfilename).name


def _fits(path: str, quantisation: str) -> bool:
    """Whether a file's name ends with a quantisation, or is what was named."""
    stem = filenames.stem_of(PurePosixPath(path).name).lower()
    named = filenames.stem_of(quantisation).lower()
    return stem == named or stem.endswith(tuple(f"{mark}{named}" for mark in "-._"))


def _none_or_many(wanted: Wanted, fitting: Sequence[str], firsts: Sequence[str]) -> str:
    if not firsts:
        return f"hf:{wanted.repo}: no GGUF model is there; repositories that have some are often called ...-GGUF."
    if fitting:
        names = ", ".join(filenames.stem_of(PurePosixPath(path).name) for path in fitting)
        return (
            f"hf:{wanted.repo}: {wanted.quantisation or DEFAULT} is several: name one of them after the colon: {names}."
        )
    names = ", ".join(sorted(filter(None, map(_label, firsts))))
    asked = f"there is no {wanted.quantisation}" if wanted.quantisation else "there are several models"
    return f"hf:{wanted.repo}: {asked}; name one of them after the colon: {names}."


def _label(path: str) -> str:
    """What to name a file by: its quantisation, or all of its name."""
    name = PurePosixPath(path).name
    return filenames.quantisation_of(name) or filenames.stem_of(name)


@contextmanager
def _refusals(wanted: Wanted) -> Iterator[None]:
    """What the hub, or the way to it, says no with, in one line."""
    asked = f"hf:{wanted.repo}"
    try:
        yield
    except errors.GatedRepoError:
        raise SourceError(
            f"{asked} is gated: accept its terms on its page, and set HF_TOKEN to a token of your account."
        ) from None
    except errors.RevisionNotFoundError:
        raise SourceError(f"{asked} has no revision {wanted.revision}.") from None
    except errors.RepositoryNotFoundError:
        raise SourceError(f"{asked} is not there, or is private: check the name, or set HF_TOKEN.") from None
    except errors.OfflineModeIsEnabled:
        raise SourceError(f"{asked}: HF_HUB_OFFLINE is set, and nothing is asked for.") from None
    except errors.HFValidationError as error:
        raise SourceError(f"{asked}: {str(error).splitlines()[0]}") from None
    except errors.HfHubHTTPError as error:
        raise SourceError(f"{asked}: {_denied(error.response)}") from None
    except httpx2.HTTPError as error:
        raise SourceError(f"{asked}: the hub cannot be reached: {web.told(error)}.") from None
    except (ValueError, TypeError, LookupError, AttributeError):  # the client believes whatever says 200
        raise SourceError(f"{asked}: what answers there is no hub; look at HF_ENDPOINT and the proxy.") from None


def _denied(response: httpx2.Response) -> str:
    status = f"{response.status_code} {response.reason_phrase}"
    if response.status_code in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        return f"the hub lets this token, or nobody without one, have it ({status}): set HF_TOKEN to one that may."
    return f"the hub answers {status}. Try again later."
