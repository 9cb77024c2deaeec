from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    DEVICE_STATE_IDLE: _ClassVar[DeviceState]
    DEVICE_STATE_DOWNLOADING: _ClassVar[DeviceState]
    DEVICE_STATE_VERIFYING: _ClassVar[DeviceState]
    DEVICE_STATE_SERVING: _ClassVar[DeviceState]
    DEVICE_STATE_REFUSED: _ClassVar[DeviceState]
    DEVICE_STATE_ROLLED_BACK: _ClassVar[DeviceState]
DEVICE_STATE_UNSPECIFIED: DeviceState
DEVICE_STATE_IDLE: DeviceState
DEVICE_STATE_DOWNLOADING: DeviceState
DEVICE_STATE_VERIFYING: DeviceState
DEVICE_STATE_SERVING: DeviceState
DEVICE_STATE_REFUSED: DeviceState
DEVICE_STATE_ROLLED_BACK: DeviceState

class EnrollRequest(_message.Message):
    __slots__ = ("token", "certificate_request", "runtime", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    token: str
    certificate_request: bytes
    runtime: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, token: _Optional[str] = ..., certificate_request: _Optional[bytes] = ..., runtime: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("certificate_request",)
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    certificate_request: bytes
    def __init__(self, certificate_request: _Optional[bytes] = ...) -> None: ...

class EnrollResponse(_message.Message):
    __slots__ = ("device_id", "certificate_chain", "certificate_authority", "group", "site", "trusted_root")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_ROOT_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    certificate_chain: bytes
    certificate_authority: bytes
    group: str
    site: str
    trusted_root: bytes
    def __init__(self, device_id: _Optional[str] = ..., certificate_chain: _Optional[bytes] = ..., certificate_authority: _Optional[bytes] = ..., group: _Optional[str] = ..., site: _Optional[str] = ..., trusted_root: _Optional[bytes] = ...) -> None: ...

class GetMetadataRequest(_message.Message):
    __slots__ = ("role", "version")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    role: str
    version: int
    def __init__(self, role: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetMetadataResponse(_message.Message):
    __slots__ = ("found", "content")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    found: bool
    content: bytes
    def __init__(self, found: _Optional[bool] = ..., content: _Optional[bytes] = ...) -> None: ...

class GetBlobRequest(_message.Message):
    __slots__ = ("sha256", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    offset: int
    def __init__(self, sha256: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("offset", "content")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    content: bytes
    def __init__(self, offset: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("known_revision",)
    KNOWN_REVISION_FIELD_NUMBER: _ClassVar[int]
    known_revision: int
    def __init__(self, known_revision: _Optional[int] = ...) -> None: ...

class ReleaseChanged(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class StatusReport(_message.Message):
    __slots__ = ("queue_id", "sequence", "state", "task", "version", "serving_version", "assignment_counter", "code", "detail", "runtime", "predictions_served", "latency_p50_us", "oldest")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_COUNTER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_SERVED_FIELD_NUMBER: _ClassVar[int]
    LATENCY_P50_US_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    queue_id: str
    sequence: int
    state: DeviceState
    task: str
    version: int
    serving_version: int
    assignment_counter: int
    code: str
    detail: str
    runtime: str
    predictions_served: int
    latency_p50_us: float
    oldest: int
    def __init__(self, queue_id: _Optional[str] = ..., sequence: _Optional[int] = ..., state: _Optional[_Union[DeviceState, str]] = ..., task: _Optional[str] = ..., version: _Optional[int] = ..., serving_version: _Optional[int] = ..., assignment_counter: _Optional[int] = ..., code: _Optional[str] = ..., detail: _Optional[str] = ..., runtime: _Optional[str] = ..., predictions_served: _Optional[int] = ..., latency_p50_us: _Optional[float] = ..., oldest: _Optional[int] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("queue_id", "sequence")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    queue_id: str
    sequence: int
    def __init__(self, queue_id: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class Sketch(_message.Message):
    __slots__ = ("task", "version", "window", "profile_digest", "columns", "rows", "missing", "out_of_range")
    TASK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PROFILE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    task: str
    version: int
    window: int
    profile_digest: bytes
    columns: _containers.RepeatedCompositeFieldContainer[Counts]
    rows: int
    missing: int
    out_of_range: int
    def __init__(self, task: _Optional[str] = ..., version: _Optional[int] = ..., window: _Optional[int] = ..., profile_digest: _Optional[bytes] = ..., columns: _Optional[_Iterable[_Union[Counts, _Mapping]]] = ..., rows: _Optional[int] = ..., missing: _Optional[int] = ..., out_of_range: _Optional[int] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, counts: _Optional[_Iterable[int]] = ...) -> None: ...

class SketchBatch(_message.Message):
    __slots__ = ("queue_id", "sequence", "sketches", "oldest")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SKETCHES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    queue_id: str
    sequence: int
    sketches: _containers.RepeatedCompositeFieldContainer[Sketch]
    oldest: int
    def __init__(self, queue_id: _Optional[str] = ..., sequence: _Optional[int] = ..., sketches: _Optional[_Iterable[_Union[Sketch, _Mapping]]] = ..., oldest: _Optional[int] = ...) -> None: ...
