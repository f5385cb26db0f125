"""The keys of requests that push files: bundles, the folder of a run, single files."""

from __future__ import annotations

from typing import List, TypedDict


class BundleRequest(TypedDict):
    workdir: str
    digest: str


class PrepareRequest(BundleRequest):
    """`bytes_unpacked` is the size of the bundle on a disk, `bytes_more` that of what follows it."""

    bytes_unpacked: int
    bytes_more: int


class PrepareReply(TypedDict):
    have_bundle: bool


class PutBundleRequest(BundleRequest):
    sha256: str


class PutPartRequest(PutBundleRequest):
    """The payload is the manifest, of `manifest_bytes`, and an archive with this SHA-256 of the files that the node lacks."""

    manifest_bytes: int


class PutPartReply(TypedDict):
    """Nothing is written if the bundle is not complete: a file that the node had is gone."""

    is_complete: bool


class FileBody(TypedDict):
    path: str
    size: int
    mode: int


class PutRunRequest(PrepareRequest):
    """The `files` of a run go below its folder. With `claim`, only the first node on a file system writes anything."""

    run: str
    claim: bool
    files: List[FileBody]


class PutRunReply(TypedDict):
    """
    `is_first` is false if another node has claimed the run; without the bundle, nothing is written.

    With much code, `runs` have copies of `runs_code_bytes` together in the working folder, this run included.
    """

    is_first: bool
    is_written: bool
    runs: int
    runs_code_bytes: int


class PutFilesRequest(TypedDict):
    folder: str
    files: List[FileBody]
