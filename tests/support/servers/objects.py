"""Objects of the test server: buckets in memory, objects from folders of files, multipart uploads, and their XML."""

import hashlib
import mmap
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from time import time
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_MOST_KEYS = 1000  # of one answer to LIST


@dataclass(frozen=True)
class Object:
    """One object: its bytes, entity tag and time of writing (seconds)."""

    data: bytes | mmap.mmap
    etag: str
    modified: float

    @classmethod
    def of(cls, data: bytes | mmap.mmap, etag: str = "") -> "Object":
        """An object written now. The tag depends on contents and time, unless it is given."""
        now = time()
        return cls(
            data, etag or f'"{hashlib.md5(data if isinstance(data, bytes) else repr(now).encode()).hexdigest()}"', now
        )

    @property
    def headers(self) -> dict[str, str]:
        """The headers that GET and HEAD have in common."""
        return {
            "ETag": self.etag,
            "Last-Modified": formatdate(self.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }


class Refused(Exception):
    """An answer that is an error: status and code of S3."""

    def __init__(self, status: int, code: str):
        super().__init__(status, code)
        self.status, self.code = status, code

    @property
    def body(self) -> bytes:
        """The XML of an error."""
        return f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>{self.code}</Message></Error>".encode()


@dataclass
class Objects:
    """All buckets: {bucket: {key: object}}. Methods may be called by any thread."""

    buckets: dict[str, dict[str, Object]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def get(self, bucket: str, key: str) -> Object:
        """The object; Refused 404."""
        return self._keys(bucket)[key] if key in self._keys(bucket) else self._missing()

    def _missing(self) -> Object:
        raise Refused(404, "NoSuchKey")

    def _keys(self, bucket: str) -> dict[str, Object]:
        if bucket not in self.buckets:
            raise Refused(404, "NoSuchBucket")
        return self.buckets[bucket]

    def put(self, bucket: str, key: str, data: bytes, none_match: str = "", match: str = "") -> Object:
        """Write an object, with the conditions If-None-Match: * and If-Match. Refused 412."""
        with self._lock:
            keys = self._keys(bucket)
            there = keys.get(key)
            if none_match == "*" and there is not None:
                raise Refused(412, "PreconditionFailed")
            if match and (there is None or there.etag != match):
                raise Refused(412, "PreconditionFailed")
            keys[key] = Object.of(data)
            return keys[key]

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object, if it exists."""
        with self._lock:
            self._keys(bucket).pop(key, None)

    def add_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """Serve the files of a folder, mapped, as objects PREFIX/NAME."""
        keys = self.buckets.setdefault(bucket, {})
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            with open(path, "rb") as file:
                is_empty = not path.stat().st_size
                data = b"" if is_empty else mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            keys[f"{prefix}/{path.relative_to(folder)}".lstrip("/")] = Object.of(data)

    # ---- multipart uploads

    def begin_upload(self, bucket: str, key: str) -> bytes:
        """Begin a multipart upload; returns the XML with its id."""
        with self._lock:
            self._keys(bucket)
            upload = f"upload-{len(self.uploads)}"
            self.uploads[upload] = {}
        names = f"<Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key>"
        return f"<InitiateMultipartUploadResult>{names}<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode()

    def put_part(self, upload: str, number: int, data: bytes) -> str:
        """Write a part; returns its tag."""
        with self._lock:
            if upload not in self.uploads:
                raise Refused(404, "NoSuchUpload")
            self.uploads[upload][number] = data
        return f'"{hashlib.md5(data).hexdigest()}"'

    def complete_upload(self, bucket: str, key: str, upload: str, body: bytes, none_match: str) -> bytes:
        """Join the parts that the body lists into the object; returns the XML with its tag."""
        root = ElementTree.fromstring(body)
        numbers = [int(each.text or "") for each in root.iter() if each.tag.endswith("PartNumber")]
        with self._lock:
            if upload not in self.uploads:
                raise Refused(404, "NoSuchUpload")
            parts = self.uploads[upload]
            if not numbers or any(number not in parts for number in numbers):
                raise Refused(400, "InvalidPart")
            written = self.put(bucket, key, b"".join(parts[number] for number in numbers), none_match)
            del self.uploads[upload]
        names = f"<Bucket>{escape(bucket)}</Bucket><Key>{escape(key)}</Key><ETag>{escape(written.etag)}</ETag>"
        return f"<CompleteMultipartUploadResult>{names}</CompleteMultipartUploadResult>".encode()

    def abort_upload(self, upload: str) -> None:
        """Forget the parts of an upload."""
        with self._lock:
            self.uploads.pop(upload, None)

    # ---- lists

    def delete_listed(self, bucket: str, body: bytes) -> bytes:
        """POST ?delete: remove the objects that the body lists."""
        keys = [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Key")]
        for key in keys:
            self.delete(bucket, key)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return f"<DeleteResult>{deleted}</DeleteResult>".encode()

    def list(self, bucket: str, prefix: str, delimiter: str, after: str, most: int = _MOST_KEYS) -> bytes:
        """GET ?list-type=2: the keys with a prefix after `after`, in order; those with a delimiter later on as prefixes."""
        rows, groups, last, more = [], {}, after, False
        with self._lock:
            found = sorted(key for key in self._keys(bucket) if key.startswith(prefix) and key > after)
            for key in found:
                if len(rows) + len(groups) >= most:
                    more = True
                    break
                head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                if cut:
                    groups[prefix + head + cut] = None
                else:
                    rows.append((key, self.buckets[bucket][key]))
                last = key
        contents = "".join(_listed(key, each) for key, each in rows)
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in groups)
        token = f"<NextContinuationToken>{quote(last)}</NextContinuationToken>" if more else ""
        facts = f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(rows) + len(groups)}</KeyCount>{token}"
        return f"<ListBucketResult><Name>{escape(bucket)}</Name>{facts}{contents}{prefixes}</ListBucketResult>".encode()

    def list_for_azure(self, bucket: str, prefix: str) -> bytes:
        """GET ?comp=list of Azure: the keys with a prefix that have no further "/"."""
        with self._lock:
            found = sorted((key, each) for key, each in self._keys(bucket).items() if key.startswith(prefix))
        blobs = "".join(_blob(key, each) for key, each in found if "/" not in key[len(prefix) :])
        return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()


def _blob(key: str, each: Object) -> str:
    facts = {**each.headers, "Content-Length": str(len(each.data)), "Etag": each.etag}
    names = ("Last-Modified", "Content-Length", "Content-Type", "Etag")
    properties = "".join(f"<{name}>{escape(facts[name])}</{name}>" for name in names)
    return f"<Blob><Name>{escape(key)}</Name><Properties>{properties}</Properties></Blob>"


def _listed(key: str, each: Object) -> str:
    stamp = "2026-01-01T00:00:00.000Z"
    size = f"<Size>{len(each.data)}</Size><StorageClass>STANDARD</StorageClass>"
    etag = f"<ETag>{escape(each.etag)}</ETag>"
    return f"<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified>{etag}{size}</Contents>"
