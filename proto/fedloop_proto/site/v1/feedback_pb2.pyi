from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LabelledExample(_message.Message):
    __slots__ = ("sequence", "prediction_id", "task", "version", "predicted", "label", "unit", "observed_unix", "inputs")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_UNIX_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    prediction_id: str
    task: str
    version: int
    predicted: str
    label: str
    unit: str
    observed_unix: int
    inputs: bytes
    def __init__(self, sequence: _Optional[int] = ..., prediction_id: _Optional[str] = ..., task: _Optional[str] = ..., version: _Optional[int] = ..., predicted: _Optional[str] = ..., label: _Optional[str] = ..., unit: _Optional[str] = ..., observed_unix: _Optional[int] = ..., inputs: _Optional[bytes] = ...) -> None: ...

class LabelledBatch(_message.Message):
    __slots__ = ("queue_id", "site", "examples", "oldest")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    queue_id: str
    site: str
    examples: _containers.RepeatedCompositeFieldContainer[LabelledExample]
    oldest: int
    def __init__(self, queue_id: _Optional[str] = ..., site: _Optional[str] = ..., examples: _Optional[_Iterable[_Union[LabelledExample, _Mapping]]] = ..., oldest: _Optional[int] = ...) -> None: ...

class LabelledAcknowledgement(_message.Message):
    __slots__ = ("queue_id", "sequence", "rejected")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    queue_id: str
    sequence: int
    rejected: _containers.RepeatedCompositeFieldContainer[Rejected]
    def __init__(self, queue_id: _Optional[str] = ..., sequence: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[Rejected, _Mapping]]] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("sequence", "code")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    code: str
    def __init__(self, sequence: _Optional[int] = ..., code: _Optional[str] = ...) -> None: ...
